"""The bench's peers: folders that can be installed again, and servers that answer as labeler does.

A peer that cannot be run leaves the result with its reason. The slow test installs one, and skips
loudly where its packages cannot be had.
"""

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from bench.suite import measure as measuring
from bench.suite import peers
from bench.suite.case import Case, CaseError, case_names, read_case
from bench.suite.compare import Run, judge
from bench.suite.measure import MeasureError, Options
from bench.suite.metrics import METRICS
from bench.suite.servers import Server, ServerError, Spec, running
from bench.suite.show import document, lines
from labeler import Client, Label
from labeler.fleet import LABELS
from labeler.v1 import label_pb2, label_pb2_grpc, types_pb2
from tests.support.sending import run, sender
from tests.support.service import Service
from tests.support.waiting import eventually

CASE = """
about = "How much of the one does the other give?"
seed = 7
guards = ["errors_total == 0", "far.errors_total == 0"]

[load]
rpc = "label"
durability = "BUFFERED"
robots = 64
schedule = { shape = "saturate", in_flight = 64 }

[sides.labeler]
server = "labeler"

[sides.echo]
server = "echo"

[sides.far]
server = "peer:grpc-aio"
arguments = ["--processes", "2"]

[[goals]]
metric = "labels_per_s"
side = "labeler"
against = "far"
ratio_min = 3
"""
GOES_ON = "import time\nwhile True: time.sleep(0.01)"
WITH_A_WORKER = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {GOES_ON!r}])\n"


def written(folder: Path, text: str = CASE) -> Case:
    (folder / "planted").mkdir(exist_ok=True)
    (folder / "planted" / "case.toml").write_text(text)
    return read_case("planted", folder)


def over_http(peer: str, **changes: object) -> str:
    """A peer's name, and its load over HTTP."""
    load = {"rpc": "http_predict", "connections": 64} | changes
    told = ", ".join(f"{key} = {json.dumps(value)}" for key, value in load.items())
    return f'"peer:{peer}"\nload = {{ {told} }}'


# --- the folders


@pytest.mark.parametrize("name", peers.peer_names())
def test_every_package_of_a_peer_has_its_version_and_hashes(name: str) -> None:
    text = (peers.PEERS / name / "requirements.txt").read_text().replace("\\\n", "")
    wanted = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert wanted
    for line in wanted:
        assert re.match(r"[a-z0-9-]+(\[[a-z,]+\])?==\S+ .*--hash=sha256:[0-9a-f]{64}", line), line


@pytest.mark.parametrize("name", peers.peer_names())
def test_what_is_asked_for_is_among_what_is_pinned(name: str) -> None:
    folder = peers.PEERS / name
    asked = re.findall(r"^[a-z][a-z0-9-]*", (folder / "requirements.in").read_text(), re.M)
    pinned = (folder / "requirements.txt").read_text()
    assert asked
    assert all(re.search(rf"^{package}==", pinned, re.M) for package in asked)


@pytest.mark.parametrize("name", peers.peer_names())
def test_every_peer_says_what_it_is_its_licence_and_whose_advice_it_follows(name: str) -> None:
    assert peers.read_peer(name).licence in peers.LICENCES
    readme = (peers.PEERS / name / "README.md").read_text()
    said = readme[readme.index("Configuration: ") :]
    assert re.search(r"\*[A-Z][^*]+\*", said), "names no document, such as *Performance Guide*"


def test_every_peer_is_measured_by_a_case() -> None:
    sides = [side for name in case_names() for side in read_case(name).sides.values()]
    assert {peers.PEER + name for name in peers.peer_names()} <= {side.server for side in sides}


def test_peers_over_http_are_measured_in_batches_and_with_as_many_workers_as_cores() -> None:
    sides = read_case("peers-http-saturated").sides
    for peer in ("mosec", "litserve"):
        told = {tuple(s.arguments) for s in sides.values() if s.server == peers.PEER + peer}
        assert told == {(), ("--workers", "2"), ("--batch-rows", "64")}
        server = (peers.PEERS / peer / "server.py").read_text()
        assert all(f'"{words[0]}"' in server for words in told if words)


def test_a_late_sender_of_the_peers_comparison_is_judged_as_of_other_crowded_cases() -> None:
    limits = {side.load.lag_limit_ms for side in read_case("peers-2300").sides.values()}
    assert limits == {read_case("bulk-beside-robots").sides["beside"].load.lag_limit_ms} == {5}


@pytest.mark.parametrize(
    ("name", "setting"), [("mlserver", "metrics_endpoint=None"), ("triton", "allow_metrics=False")]
)
def test_a_peer_that_can_count_its_calls_does_not_and_says_so(name: str, setting: str) -> None:
    folder = peers.PEERS / name
    assert setting in (folder / "server.py").read_text()
    assert "Metrics are off" in (folder / "README.md").read_text()


def test_a_licence_that_is_not_permissive_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    text = 'about = "It is closed"\nlicence = "SSPL-1.0"\nrpc = "label"\n'
    (tmp_path / "closed" / "peer.toml").write_text(text)
    monkeypatch.setattr(peers, "PEERS", tmp_path)
    with pytest.raises(peers.PeerError, match=r"licence 'SSPL-1.0' is none of"):
        peers.read_peer("closed")


# --- the format


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("peer:grpc-aio", "peer:grpc", "sides.far.server: no peer 'grpc'; there are: "),
        ('server = "echo"', 'server = "echo"\narguments = ["x"]', "echo.arguments: known of a pee"),
        ('"peer:grpc-aio"', '"peer:grpc-aio"\nswaps = true', "far.swaps: known of a labeler only"),
        ('"peer:grpc-aio"', '"peer:grpc-aio"\nload = { rpc = "label_batch" }', "answers"),
        ('"peer:grpc-aio"', '"peer:grpc-aio"\nload = { payload = "double" }', 'takes "float"'),
        ('"peer:grpc-aio"', over_http("mosec"), 'payload = "float": mosec takes "raw_float32"'),
        ('"peer:grpc-aio"', over_http("litserve", model="m"), "model: http_predict has no place"),
        ('"peer:grpc-aio"', over_http("litserve", connections=63), "at most `connections` (63)"),
        ("far.errors_total ==", "far.backlog_rows ==", "known of a labeler only, and 'far' is pee"),
    ],
)
def test_a_wrong_side_of_a_peer_is_refused_by_the_name_of_what_is_wrong(
    tmp_path: Path, before: str, after: str, problem: str
) -> None:
    assert before in CASE
    with pytest.raises(CaseError) as caught:
        written(tmp_path, CASE.replace(before, after, 1))
    assert problem in str(caught.value)


# --- one that fails


def planted(monkeypatch: pytest.MonkeyPatch, failing: Any) -> None:
    """Runs without servers: each side's CPU is 40 µs; `failing(side)` may raise."""
    whole = dict.fromkeys(METRICS, 40.0) | {"errors_total": 0.0}

    def planted_run(case: Case, side: Any, *_: object) -> Run:
        failing(side)
        return Run(whole)

    server = Server(Spec("echo", 2), 1, "127.0.0.1:1", "", Path("burn"))
    monkeypatch.setattr(measuring, "_run", planted_run)
    monkeypatch.setattr(measuring, "_start", lambda *_: dict.fromkeys(map(_spec, SIDES), server))
    monkeypatch.setattr(measuring, "ort_us_per_row", lambda: {"1": 6.0, "32": 1.0})


SIDES = ("labeler", "echo", "peer:grpc-aio")


def _spec(kind: str) -> Spec:
    config, arguments = None, ("--processes", "2") if kind.startswith(peers.PEER) else ()
    return Spec(kind, 2, config, arguments=arguments)


def test_a_peer_that_fails_in_a_later_pair_leaves_the_result_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, runs = written(tmp_path), []

    def failing(side: Any) -> None:
        runs.append(side.server)
        if side.server.startswith(peers.PEER) and len(runs) > 4:
            raise MeasureError("no label was left to measure")

    planted(monkeypatch, failing)
    measured = measuring.measure(case, Options(8, 5.0), tmp_path, lambda *_: None)
    assert measured.could_not_run == {"far": "no label was left to measure"}
    left = case.without(measured.could_not_run)
    report = judge(left, measured.pairs, 8, 5.0)
    assert report.pairs == 8
    assert report.failures() == []
    assert list(report.sides) == ["labeler", "echo"]
    assert runs.count("peer:grpc-aio") == 3  # and after that no more
    text = "\n".join(lines(left, report, measured, 5.0))
    assert "far could not run: no label was left to measure" in text
    assert "bare ONNX Runtime 6.0 µs/row 1 at once, 1.0 µs/row 32 at once" in text
    found = document(left, report, measured, 5.0)
    assert found["could_not_run"] == measured.could_not_run
    assert all(set(pair) == {"labeler", "echo"} for pair in found["runs"])


def test_ours_that_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(side: Any) -> None:
        if side.server == "labeler":
            raise ServerError("it ended with 1")

    planted(monkeypatch, failing)
    with pytest.raises(ServerError, match="it ended with 1"):
        measuring.measure(written(tmp_path), Options(8, 5.0), tmp_path, lambda *_: None)


def test_a_peer_that_is_not_set_up_says_how_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_ENVIRONMENTS", tmp_path)
    with pytest.raises(ServerError, match=r"not set up: `make bench-peers` does"):
        with running(Spec("peer:grpc-aio", 2), tmp_path / "server"):
            pass


def test_a_peer_that_cannot_be_installed_says_why_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_ENVIRONMENTS", tmp_path)
    peer = peers.read_peer("grpc-aio")

    def refused(_: object) -> None:
        raise peers.PeerError("no wheel for this machine")

    monkeypatch.setattr(peers, "_uv", refused)
    assert peers.main() == 0
    with pytest.raises(peers.PeerError, match="could not be installed: no wheel for this machine"):
        peer.command([])


# --- processes


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def environment(pid: int) -> dict[str, str]:
    """What the process was started with."""
    said = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in said if "=" in line)


def begotten(ancestor: int) -> set[int]:
    """All processes that come from this one, whatever sessions they have made of themselves."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    more = {ancestor}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that still run; what waits for its parent to look at it does not."""
    found = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= {pid} if state(pid) != "Z" else set()
    return found


def test_a_peer_rests_between_runs_and_ends_with_all_of_its_processes() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_A_WORKER + GOES_ON], start_new_session=True
    )
    try:
        eventually(lambda: len(peers.session(process.pid)) == 2)
        [leader, worker] = peers.session(process.pid)
        peers.freeze(process.pid)
        eventually(lambda: state(leader) == state(worker) == "T")
        peers.thaw(process.pid)
        eventually(lambda: state(leader) != "T" and state(worker) != "T")
        peers.freeze(process.pid)
    finally:
        peers.end(process)
    assert peers.session(process.pid)[1:] == []
    assert process.returncode is not None


# --- for real


@pytest.mark.slow  # a minute where its packages have to be fetched, seconds where they are there
@pytest.mark.timeout(600)
def test_the_peer_written_by_hand_answers_with_labeler_s_labels(
    service: Service, tmp_path: Path
) -> None:
    peer = peers.read_peer("grpc-aio")
    try:
        peers.set_up(peer)
    except peers.PeerError as error:
        pytest.skip(f"{peer.name} could not be installed here: {error}")
    rows = [[0.4 + 0.2 * ((n * place) % 23) for place in range(1, 25)] for n in range(40)]
    spec = Spec("peer:grpc-aio", 2, arguments=("--processes", "2"))
    with running(spec, tmp_path / "peer") as server, grpc.insecure_channel(server.address) as link:
        server.begin()
        theirs = label_pb2_grpc.LabelServiceStub(link)
        assert len(server.workers()) >= 2
        with Client(service.address) as ours:
            for number, row in enumerate(rows, 1):
                label = ours.label("peer", number, row, model="kiva-floor")
                payload = types_pb2.Payload(floats=row)
                request = label_pb2.LabelRequest(robot_id="peer", sequence=number, payload=payload)
                reply = theirs.Label(request, timeout=10)
                assert (reply.label, reply.sequence) == (label.label, number)


@pytest.mark.timeout(300)  # Ray alone takes 40 s to start on a busy machine
@pytest.mark.slow  # seconds each; what is not set up is not installed here, since it is large
@pytest.mark.parametrize(
    "name", [n for n in peers.peer_names() if peers.read_peer(n).rpc != "label"]
)
def test_a_peer_that_is_set_up_answers_with_labeler_s_labels(
    name: str, service: Service, tmp_path: Path, seed: int
) -> None:
    try:
        peers.read_peer(name).command([])
    except peers.PeerError as error:
        pytest.skip(f"{name}: {error}")
    rows = np.random.default_rng(seed).uniform(0.4, 5.0, (200, 24)).astype("<f4")
    with Client(service.address) as ours:
        labelled = ours.label_rows(name, 1, rows, model="kiva-floor")
        truths = np.array([row.index for row in labelled if isinstance(row, Label)], "<i2")
    with running(Spec(peers.PEER + name, 2), tmp_path / "peer") as server:
        server.begin()
        made = sender(server.address, **plan_for(name), labels=list(LABELS))
        made.feed(rows.tobytes(), truths.tobytes(), b"")
        made.end_feed()
        result = run(made)
        processes = begotten(server.pid)
        counted = {*server.workers()}
        scratch = Path(environment(server.pid)["TMPDIR"])
    assert (result["answered"], result["judged"], result["accuracy"]) == (200, 200, 1.0)
    assert processes <= counted, "the CPU of some is nobody's"
    assert alive(processes) == set()
    assert not scratch.exists()


def plan_for(name: str) -> dict[str, Any]:
    """What a peer is sent, which has one model."""
    peer = peers.read_peer(name)
    plan = {"rpc": peer.rpc, "payload": peer.payload, "rows": "fed"}
    return plan if peer.rpc == "http_predict" else plan | {"model": "kiva-floor"}
