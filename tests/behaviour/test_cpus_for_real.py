"""Thread counts under real quotas, sets and affinities, and what models cost that nobody asks.

Cases S44, S46; trap 9. What groups say by their files, v2 among them, stands in `test_cpus.py`.
Full counts: about 70 s.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import labeler
from labeler.models.inference import open_session
from tests.support.counts import counts
from tests.support.load import readings
from tests.support.made_models import write_identity
from tests.support.repo import project_files, read
from tests.support.service import LABELER, StartService, environment
from tests.support.threads import counted, switches
from tests.support.waiting import eventually

PACKAGED = Path(labeler.__file__).parent / "models" / "packaged"


def origin(prefix: tuple[str, ...]) -> str:
    """What `labeler config show` says of the threads, for a process that is started so."""
    command = [*prefix, str(LABELER), "config", "show", "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment({}))
    return str(json.loads(shown.stdout)["transport.threads"])


@contextmanager
def group(controller: str, **files: str) -> Iterator[tuple[tuple[str, ...], Path]]:
    """A cgroup (v1) with these files, and what starts a command in it. Skips, aloud, without one.

    LABELER_REQUIRE_CGROUP=1 turns that into a failure.
    """
    folder = Path("/sys/fs/cgroup") / controller / f"labeler-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        reason = f"no cgroup v1 to make here, real quotas are NOT tested: {error}"
        if os.environ.get("LABELER_REQUIRE_CGROUP") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        yield ("sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"), folder
    finally:
        eventually(lambda: not (folder / "cgroup.procs").read_text(), timeout_s=30)
        folder.rmdir()


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
SEVERAL = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="one CPU: there is none to leave out",
)


def labels_on_one_thread(start_service: StartService, prefix: tuple[str, ...], said: str) -> None:
    """S44: it serves on one thread, says by whose word, and has no word of affinity in its log."""
    service = start_service(prefix=prefix)
    with labeler.Client(service.address, timeout_ms=30_000) as client:
        client.wait_ready(30_000)
        assert client.label("robot-1", 1, readings(random.Random(1))).label
    assert counted(service.pid)["transport"] == 1
    [started] = service.logged("serving")
    assert started["threads"] == 1
    assert said in started["threads_origin"]
    assert said in origin(prefix)
    assert service.stop() == 0
    assert not [line for line in service.stderr if "setaffinity" in line or "WARN" in line]


@LINUX
@SEVERAL
def test_a_real_v1_quota_bounds_the_threads_of_a_service(start_service: StartService) -> None:
    with group("cpu", cpu__cfs_quota_us="150000") as (prefix, folder):
        quota = f"cgroup quota 1.5 in {folder}/cpu.cfs_quota_us"
        labels_on_one_thread(start_service, prefix, quota)


@LINUX
@SEVERAL
def test_a_real_cpuset_that_does_not_begin_at_core_0_bounds_the_threads(
    start_service: StartService,
) -> None:
    last = str(max(os.sched_getaffinity(0)))
    with group("cpuset", cpuset__cpus=last, cpuset__mems="0") as (prefix, _):
        labels_on_one_thread(start_service, prefix, "affinity 1")


@LINUX
@SEVERAL
def test_an_affinity_that_does_not_begin_at_core_0_bounds_the_threads(
    start_service: StartService,
) -> None:
    last = str(max(os.sched_getaffinity(0)))
    labels_on_one_thread(start_service, ("taskset", "-c", last), "affinity 1")


# S46, trap 9: pools that follow the host, or spin.

FOUR = [f"model-{number}" for number in range(4)]


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def machine_s() -> float:
    """Seconds that the machine has been up: the window's end is waited for, not measured."""
    return float(Path("/proc/uptime").read_text().split()[0])


@LINUX
@counts("seconds", quick=3, full=60, full_timeout_s=300)
def test_four_models_that_nobody_asks_burn_nothing_and_have_a_thread_each(
    start_service: StartService, tmp_path: Path, seconds: int
) -> None:
    for name in FOUR:
        write_identity(tmp_path / "models", name=name)
    service = start_service(
        models__repositories=[str(tmp_path / "models")],
        models__load=FOUR,
        models__default=FOUR[0],
    )
    # A pool of a session would have its creator's name.
    threads = counted(service.pid)
    assert sum(count for name, count in threads.items() if name.startswith("infer-")) == 4

    def idle() -> tuple[float, float]:
        """CPUs in use, and times a second that a thread was woken."""
        began, ticks, woken = machine_s(), cpu_ticks(service.pid), switches(service.pid)
        eventually(lambda: machine_s() >= began + seconds, timeout_s=10 * seconds)
        took = machine_s() - began
        used = (cpu_ticks(service.pid) - ticks) / os.sysconf("SC_CLK_TCK")
        return used / took, (switches(service.pid) - woken) / took

    def still() -> bool:
        used, woken = idle()
        print(f"idle with four models: {100 * used:.2f} % of a core, {woken:.0f} wake-ups a second")
        return used < 0.02 and woken < 200

    # What a start leaves to do may fall into the first window; spinning falls into all.
    assert any(still() for _ in range(3))


def test_sessions_are_made_in_one_place_a_side_and_each_has_one_thread() -> None:
    python = {
        name
        for name in project_files()
        if name.endswith(".py") and name.startswith("python/") and "InferenceSession(" in read(name)
    }
    rust = {
        name
        for name in project_files()
        if name.endswith(".rs")
        and re.search(r"\bSession(Builder)?::(builder|new)\(\w", read(name))
        and "use ort::session" in read(name)
    }
    assert python == {"python/labeler/models/inference.py"}
    assert rust == {"rust_core/src/models/graph.rs"}
    options = open_session(
        (PACKAGED / "kiva-floor" / "1" / "model.onnx").read_bytes()
    ).get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    for kind in ("intra", "inter"):
        spins = options.get_session_config_entry(f"session.{kind}_op.allow_spinning")
        assert spins == "0"
        [line] = re.findall(rf"with_{kind}_op_spinning\((\w+)\)", read(*rust))
        assert line == "false"
        assert re.findall(rf"with_{kind}_threads\((\d+)\)", read(*rust)) == ["1"]
