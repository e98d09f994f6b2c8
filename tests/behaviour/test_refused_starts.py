"""A start that cannot succeed: one clear message, its exit code, and nothing touched."""

import os
import shutil
import socket
from pathlib import Path

import pytest

import labeler
from tests.support.service import Service, StartService

PACKAGED = Path(labeler.__file__).parent / "models" / "packaged"


def refused(service: Service, code: int, *words: str) -> str:
    """Checks the exit code, and that one message has all the words; returns the log."""
    assert service.wait() == code, "\n".join(service.stderr)
    log = "\n".join(service.stderr)
    assert "Traceback" not in log
    assert "panicked" not in log
    missing = [word for word in words if word not in log]
    assert not missing, f"{missing} missing in:\n{log}"
    return log


@pytest.mark.parametrize("port", ["transport__grpc_address", "admin__address"])
def test_a_taken_port_is_named_with_exit_code_69(start_service: StartService, port: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused(start_service(ready=False, **{port: address}), 69, address, "in use")


def test_a_second_process_on_the_journal_is_refused_with_exit_code_69(
    start_service: StartService,
) -> None:
    first = start_service()
    refused(start_service(first.state_dir, ready=False), 69, "journal", "in use")
    assert first.stop() == 0


def test_a_process_that_was_refused_the_lock_touches_nothing(start_service: StartService) -> None:
    first = start_service()
    before = snapshot(first.state_dir / "journal")
    refused(start_service(first.state_dir, ready=False), 69)
    assert snapshot(first.state_dir / "journal") == before


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and change time of each file."""
    found = {str(path.relative_to(folder)): path.stat() for path in sorted(folder.rglob("*"))}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def test_a_corrupt_model_file_is_named(start_service: StartService, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    shutil.copytree(PACKAGED, repository)
    [model] = repository.glob("kiva-floor/*/model.onnx")
    broken = bytearray(model.read_bytes())
    broken[len(broken) // 2] ^= 1
    model.write_bytes(broken)
    service = start_service(ready=False, models__repositories=[str(repository)])
    refused(service, labeler.ModelInvalidError.exit_code, "kiva-floor", "SHA-256")


def test_a_model_that_is_not_there_is_named(start_service: StartService) -> None:
    service = start_service(ready=False, models__load=["no-such"], models__default="no-such")
    assert service.wait() not in (0, 1)
    assert "no-such" in "\n".join(service.stderr)


def test_a_state_directory_that_cannot_be_written_is_named_with_exit_code_74(
    start_service: StartService, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    # Root writes everywhere while it has its capabilities; without them it is an ordinary owner.
    without = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    refused(start_service(locked / "state", ready=False, prefix=without), 74, str(locked))


def test_a_state_directory_that_is_a_file_is_named_with_exit_code_74(
    start_service: StartService, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    refused(start_service(tmp_path / "file", ready=False), 74, str(tmp_path / "file"))


def test_the_address_is_free_again_after_a_stop(start_service: StartService) -> None:
    first = start_service()
    address = first.address
    assert first.stop() == 0
    assert start_service(transport__grpc_address=address).address == address
