"""`labeler serve` checks its settings, then becomes the process that serves, under one id."""

import json
import os
import random
import sys
from pathlib import Path

import pytest

import labeler
from tests.support.load import readings
from tests.support.service import Service, StartService
from tests.support.threads import names, nice, on_the_label_path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux has")


def told(service: Service, name: str) -> str:
    """A file of /proc about the service; it has the id of the process that was started."""
    return Path(f"/proc/{service.pid}/{name}").read_text(encoding="utf-8")


def test_what_only_checks_settings_is_not_in_the_process_that_serves(service: Service) -> None:
    assert "_pydantic_core" not in told(service, "maps")


def test_it_is_listed_as_labeler_with_its_arguments_and_no_setting_from_elsewhere(
    start_service: StartService,
) -> None:
    service = start_service(args=("--set", "path.deadline_ms=321"), path__delay_us_max=654)

    arguments = told(service, "cmdline").split("\0")

    assert told(service, "comm") == "labeler\n"
    assert "path.deadline_ms=321" in arguments
    assert not [text for text in arguments if "654" in text]


def test_it_is_started_in_any_folder_and_takes_no_module_from_there(
    start_service: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "labeler", "sqlite3"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)

    assert json.loads(start_service().get("/status"))


def test_the_plan_is_in_no_file_that_stays_open(service: Service) -> None:
    held = [path.readlink() for path in Path(f"/proc/{service.pid}/fd").iterdir()]

    assert [path for path in held if "labeler-plan" in str(path)] == []


def test_the_plan_takes_no_standard_stream_that_is_closed(start_service: StartService) -> None:
    service = start_service(prefix=("sh", "-c", 'exec "$@" <&-', "sh"))

    arguments = told(service, "cmdline").split("\0")

    assert int(arguments[arguments.index("labeler.cli.served") + 1]) > 2


def test_it_has_an_arena_of_malloc_a_thread_unless_somebody_says_otherwise(
    service: Service, start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")

    assert arenas(start_service()) == 7
    assert arenas(service) == max(2, service.logged("serving")[0]["threads"])


def test_what_writes_to_the_store_steps_back_and_no_thread_of_the_label_path_does(
    start_service: StartService,
) -> None:
    service = start_service(writer__nice=7)
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    with labeler.Client(service.address, timeout_ms=30_000) as client:
        client.wait_ready(30_000)
        client.load_model("wall-following")  # its thread is started by one of Python's
        client.label("robot-1", 1, readings(random.Random(1)), durability="STORED")

    back, threads = nice(service.pid), names(service.pid)

    stepped = [threads[thread] for thread in back if back[thread] == mine + 7]
    assert stepped == ["labeler"] * 3  # the loop, the writer, the store's writes
    path = {thread for thread in threads if on_the_label_path(threads[thread])}
    assert {threads[thread][:5] for thread in path} == {"trans", "infer", "commi"}
    assert {back[thread] for thread in path} == {mine}


def arenas(service: Service) -> int:
    """The bound on them that the process was started with."""
    variables = dict(text.partition("=")[::2] for text in told(service, "environ").split("\0"))
    return int(variables["MALLOC_ARENA_MAX"])
