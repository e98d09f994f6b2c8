"""Models of a running service: on standby, damaged, unloaded, loaded again."""

import shutil
from pathlib import Path

import grpc
import pytest

import labeler
from labeler.v1 import model_pb2
from tests.support.service import Service, StartService
from tests.support.wire import MODEL, WIDTH, floats, request, wire

PACKAGED = Path(labeler.__file__).parent / "models" / "packaged"
FAR = [2.5] * WIDTH


def add_version(repository: Path, version: str) -> Path:
    """The packaged model under another version, complete and valid."""
    folder = repository / MODEL / version
    shutil.copytree(PACKAGED / MODEL / "1", folder)
    manifest = folder / "model.toml"
    text = manifest.read_text()
    assert 'version = "1"' in text
    manifest.write_text(text.replace('version = "1"', f'version = "{version}"', 1))
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def served(start_service: StartService, repository: Path) -> Service:
    return start_service(models__repositories=[str(repository)])


def test_a_standby_version_answers_only_those_who_name_it(
    served: Service, repository: Path
) -> None:
    add_version(repository, "2")
    with wire(served.address) as stubs:
        load = model_pb2.LoadModelRequest(name=MODEL, version="2", standby=True)
        assert not stubs.models.LoadModel(load).model.serving
        assert stubs.labels.Label(request("r", 1, floats(FAR))).version == "1"
        named = stubs.labels.Label(request("r", 2, floats(FAR), version="2"))
        assert (named.model, named.version) == (MODEL, "2")


def test_a_damaged_version_is_refused_by_what_is_wrong_and_the_old_one_serves_on(
    served: Service, repository: Path
) -> None:
    model = add_version(repository, "2") / "model.onnx"
    model.write_bytes(model.read_bytes()[:-100])
    with wire(served.address) as stubs:
        with pytest.raises(grpc.RpcError) as refused:
            stubs.models.LoadModel(model_pb2.LoadModelRequest(name=MODEL, version="2"))
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "model.onnx" in str(refused.value.details())
        listed = stubs.models.ListModels(model_pb2.ListModelsRequest()).models
        problems = {model.version: model.problem for model in listed}
        assert "model.onnx" in problems["2"]
        assert stubs.labels.Label(request("r", 1, floats(FAR))).version == "1"


def test_an_unloaded_model_is_not_found_and_can_be_loaded_again(served: Service) -> None:
    with wire(served.address) as stubs:
        stubs.models.UnloadModel(model_pb2.UnloadModelRequest(name=MODEL))
        with pytest.raises(grpc.RpcError) as missing:
            stubs.labels.Label(request("r", 1, floats(FAR)))
        assert missing.value.code() == grpc.StatusCode.NOT_FOUND
        stubs.models.LoadModel(model_pb2.LoadModelRequest(name=MODEL))
        assert stubs.labels.Label(request("r", 1, floats(FAR))).label


def test_counters_go_on_over_an_unload_and_a_load(served: Service) -> None:
    with wire(served.address) as stubs:
        for n in range(1, 11):
            stubs.labels.Label(request("r", n, floats(FAR)))
        before = served.metrics()
        stubs.models.UnloadModel(model_pb2.UnloadModelRequest(name=MODEL))
        stubs.models.LoadModel(model_pb2.LoadModelRequest(name=MODEL))
        stubs.labels.Label(request("r", 11, floats(FAR)))
    after = served.metrics()
    for name in ("labeler_batches_total", "labeler_stage_us_count", "labeler_batch_rows_count"):
        assert after.sum(name) > before.sum(name) > 0
