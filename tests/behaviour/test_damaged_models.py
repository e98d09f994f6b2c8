"""Damaged version folders: half copied, cut short, changed. Cases S40, tensorflow/serving#1086.

`LoadModel` of a running service refuses each by file and reason and goes on serving what it
serves; `labeler models verify` and a start say the same. Full counts (every byte): about 20 s.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import onnx
import pytest

from labeler.errors import ModelInvalidError
from labeler.models.folders import read_version
from labeler.models.verify import verify_version
from labeler.v1 import model_pb2
from tests.support import made_models
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.made_models import sign_again
from tests.support.service import Service, StartService, serve
from tests.support.wire import Wire, floats, request, wire

NAME = made_models.NAME
FIELDS = ["format", "name", "version", "width", "labels", "input", "output", "accepts_nonfinite"]
FIELDS += ["score_tolerance"]


class Shop:
    """A service that serves `identity` 1, and its repository, where versions come to harm."""

    def __init__(self, service: Service, root: Path, stubs: Wire) -> None:
        self.service, self.root, self.stubs = service, root, stubs
        self._made = 1

    def version(self) -> Path:
        """A new good version that is not loaded."""
        self._made += 1
        return made_models.write_identity(self.root, version=str(self._made))

    def refusal(self, folder: Path) -> str:
        """Why the folder's version is not loaded; version 1 must go on."""
        asked = model_pb2.LoadModelRequest(name=NAME, version=folder.name)
        with pytest.raises(grpc.RpcError) as refused:
            self.stubs.models.LoadModel(asked, timeout=30)
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        said = str(refused.value.details())
        assert f"model {NAME} version {folder.name} cannot be loaded: " in said
        self.goes_on("1")
        return said

    def goes_on(self, version: str) -> None:
        """A label comes from this version."""
        self._made += 1
        asked = request("shop", self._made, floats([1.0, 0, 0, 0]))
        assert self.stubs.labels.Label(asked).version == version

    def problem(self, folder: Path) -> str:
        """What `ListModels` says against it."""
        listed = self.stubs.models.ListModels(model_pb2.ListModelsRequest(), timeout=30).models
        [found] = [one for one in listed if (one.name, one.version) == (NAME, folder.name)]
        return str(found.problem)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("damaged-models")
    made_models.write_identity(folder / "models", version="1")
    settings: dict[str, Any] = {
        **made_models.settings(folder / "models"),
        "models__load": [f"{NAME}@1"],
    }
    started = serve(folder / "state", **settings)
    try:
        started.wait_ready()
        with wire(started.address) as stubs:
            yield Shop(started, folder / "models", stubs)
    finally:
        started.close()


def verified(folder: Path) -> str:
    """All that `labeler models verify` finds, as it prints it."""
    try:
        return "; ".join(one.problem for one in verify_version(read_version(folder)) if one.problem)
    except ModelInvalidError as error:
        return error.message


@counts("cuts", quick=6, full=200, full_timeout_s=200)
@pytest.mark.parametrize("signed", [False, True], ids=["as packaged", "with a fitting checksum"])
def test_a_model_that_is_cut_short_anywhere_is_never_served(
    shop: Shop, signed: bool, cuts: int, seed: int
) -> None:
    folder = shop.version()
    whole = (folder / "model.onnx").read_bytes()
    drawn = random.Random(seed).sample(range(len(whole)), k=min(cuts, len(whole)))
    places = {0, 1, len(whole) - 1, *drawn}
    for place in places:
        (folder / "model.onnx").write_bytes(whole[:place])
        if signed:
            sign_again(folder, "model.onnx")
        expected = "" if signed else f"model.onnx has {place} bytes, expected {len(whole)}"
        assert expected in shop.refusal(folder)
        assert expected in verified(folder)
        assert verified(folder)
    balanced(shop.service)


def _cut(text: str) -> str:
    return text[: len(text) // 2]


def _without(field: str) -> Callable[[str], str]:
    return lambda text: "".join(
        line for line in text.splitlines(True) if not line.startswith(f"{field} =")
    )


MANIFESTS: dict[str, tuple[Callable[[str], str | bytes], str]] = {
    **{f"no {field}": (_without(field), field) for field in FIELDS},
    "no files": (lambda text: text[: text.index("[[files]]")], "files"),
    "no golden rows": (
        lambda text: text[: text.index("[golden]")] + text[text.index("[report]") :],
        "golden",
    ),
    "empty": (lambda _: "", "format is missing"),
    "cut": (_cut, "model.toml"),
    "not UTF-8": (lambda text: text.encode() + b"# \xff\n", "UTF-8"),
    "a NUL": (lambda text: text + "\0", "model.toml"),
    "nested too deeply": (lambda text: "x = " + "[" * 5000 + text, "model.toml"),
    "a number of 5,000 digits": (lambda text: text + "x = " + "1" * 5000, "model.toml"),
    "width as text": (lambda text: text.replace("width = 4", 'width = "4"'), "width"),
    "a later format": (lambda text: text.replace("format = 1", "format = 2"), "format is 2"),
    "another's name": (lambda text: text.replace(f'"{NAME}"', '"other"'), "other"),
}


@pytest.mark.parametrize("case", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_manifest_that_is_damaged_is_refused_by_file_and_field(
    shop: Shop, case: tuple[Callable[[str], str | bytes], str]
) -> None:
    damage, expected = case
    folder = shop.version()
    manifest = folder / "model.toml"
    damaged = damage(manifest.read_text())
    manifest.write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
    assert expected in shop.refusal(folder)
    assert expected in shop.problem(folder)


def test_a_version_that_is_copied_slowly_is_not_eligible_until_it_is_whole(shop: Shop) -> None:
    """Case S40: each order of the files, a few bytes at a time, beside labels."""
    for order in (["model.toml", "model.onnx"], ["model.onnx", "model.toml"]):
        whole = shop.version()
        names = [*order, "golden.json", "report.json"]
        parts = {name: (whole / name).read_bytes() for name in names}
        shutil.rmtree(whole)
        whole.mkdir()
        for name in names:
            for place in range(4):
                with (whole / name).open("ab") as file:
                    length = len(parts[name])
                    file.write(parts[name][length * place // 4 : length * (place + 1) // 4])
                if (name, place) != (names[-1], 3):
                    refusal, problem = shop.refusal(whole), shop.problem(whole)
                    assert problem in refusal
                    assert any(name in problem for name in names), "the file is named"
        asked = model_pb2.LoadModelRequest(name=NAME, version=whole.name)
        loaded = shop.stubs.models.LoadModel(asked, timeout=30).model
        assert (loaded.version, loaded.serving) == (whole.name, True)
        shop.goes_on(whole.name)
        gone = model_pb2.UnloadModelRequest(name=NAME, version=whole.name)
        shop.stubs.models.UnloadModel(gone, timeout=30)
        shop.goes_on("1")
    balanced(shop.service)


def test_data_outside_the_model_file_is_never_taken(shop: Shop) -> None:
    """Case S40: an external data file has no checksum, so a model that wants one is refused."""
    for left in (False, True):
        folder = shop.version()
        model = onnx.load(folder / "model.onnx")
        # The weights alone: shapes have to stand in the file itself.
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT:
                tensor.raw_data = onnx.numpy_helper.to_array(tensor).tobytes()
                tensor.ClearField("float_data")
                onnx.external_data_helper.set_external_data(tensor, "weights.bin")
        onnx.save_model(model, folder / "model.onnx")
        assert (folder / "weights.bin").exists()
        if not left:
            (folder / "weights.bin").unlink()
        sign_again(folder, "model.onnx")
        assert "weights.bin" in shop.refusal(folder)
        assert "weights.bin" in verified(folder)


def test_links_are_followed_and_what_they_lead_to_must_be_the_packaged_bytes(
    shop: Shop, tmp_path: Path
) -> None:
    folder = shop.version()
    model = folder / "model.onnx"
    outside = tmp_path / "outside.onnx"
    shutil.move(model, outside)
    os.symlink(tmp_path / "nowhere", model)
    assert "model.onnx: cannot be read" in shop.refusal(folder)
    model.unlink()
    os.symlink("/dev/zero", model)
    assert "model.onnx: is not a regular file" in shop.refusal(folder)
    model.unlink()
    os.symlink("/etc/passwd", model)
    said = shop.refusal(folder)
    assert "model.onnx has" in said
    assert "root:" not in said, "what the link leads to is not told"
    model.unlink()
    os.symlink(outside, model)
    assert shop.problem(folder) == ""


@pytest.mark.parametrize("name", ["..", "../secret", "/etc", "a/b", "A b", "a\0b", ".hidden", "é"])
def test_a_name_that_is_no_folders_is_refused_before_the_disk(shop: Shop, name: str) -> None:
    for asked in (
        model_pb2.LoadModelRequest(name=name),
        model_pb2.LoadModelRequest(name=NAME, version=name),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            shop.stubs.models.LoadModel(asked, timeout=30)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "expected 1 to 64 of a-z" in str(refused.value.details())


def test_a_start_names_every_model_that_it_cannot_load(
    start_service: StartService, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    for name, file in (("one", "model.onnx"), ("two", "golden.json")):
        folder = made_models.write_identity(root, name=name)
        (folder / file).write_bytes((folder / file).read_bytes()[:-1])
    made_models.write_identity(root, name="good")
    service = start_service(
        ready=False,
        models__repositories=[str(root)],
        models__load=["one", "good", "two", "three"],
        models__default="good",
    )
    assert service.wait() == 64
    log = "\n".join(service.stderr)
    assert "model one version 1 cannot be loaded: model.onnx has" in log
    assert "model two version 1 cannot be loaded: golden.json has" in log
    assert 'model "three"' in log
    assert not [line for line in service.stderr if '"serving"' in line]
