"""The accounts at the end of a run of load: exact, printed, and a run fails where they are not.

A service whose counters are wrong can't be had, so a relay before its admin port tells lies.
"""

import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import labeler
from labeler.fleet.accounts import between_sides, in_itself
from tests.support.load import readings
from tests.support.service import LABELER, Service, StartService, environment, run_labeler
from tests.support.waiting import eventually

FEW = ("--robots", "20", "--rate", "10", "--for", "1s")
STOP_S = 1.0


def status(answered: int = 5, journaled: int = 5) -> dict[str, Any]:
    """A reading that is exact with 5 and 5."""
    counts = dict.fromkeys(("rejected", "expired", "cancelled", "failed", "in_flight"), 1)
    method = counts | {"received": 10, "answered": answered}
    ended = dict.fromkeys(("superseded_total", "dead_total"), 1)
    journal = ended | {"journaled_total": journaled, "stored_total": 2, "pending": 1}
    return {"methods": {"Label": method}, "journal": journal}


def sides(acknowledged: int, sent: int, unheard: int = 0) -> dict[str, int]:
    return {"acknowledged_total": acknowledged, "sent_total": sent, "unheard_total": unheard}


def test_a_sum_that_is_exact_is_no_problem() -> None:
    assert in_itself(status()) == []


def test_a_sum_that_is_not_exact_is_told_with_its_parts() -> None:
    [requests, records] = in_itself(status(answered=4, journaled=9))
    assert requests.startswith("Label: received 10 is not 4 answered + 1 rejected + 1 expired")
    assert requests.endswith("+ 1 in_flight = 9")
    assert records == "journaled 9 is not 2 stored + 1 superseded + 1 dead + 1 pending = 5"


@pytest.mark.parametrize(
    ("robots", "received", "answered", "wrong"),
    [
        (sides(100, 100), 100, 100, False),
        (sides(100, 100), 100, 99, True),  # a robot has an answer that the service does not know
        (sides(99, 100), 100, 100, True),  # an answer that no robot heard, and none was lost
        (sides(99, 100, unheard=1), 100, 100, False),  # its reply was lost on the way
        (sides(98, 100, unheard=1), 100, 100, True),
        (sides(100, 100), 150, 150, False),  # others asked too
        (sides(100, 100), 150, 90, True),
    ],
)
def test_both_sides_agree_but_for_replies_that_were_lost_and_others_requests(
    robots: dict[str, int], received: int, answered: int, wrong: bool
) -> None:
    assert bool(between_sides(robots, received, answered)) == wrong


Change = Callable[[dict[str, Any]], None]


@contextmanager
def relay(service: Service, change: Change) -> Iterator[str]:
    """An admin port whose `/status` is the service's, as `change` makes it."""

    class Told(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = json.loads(service.get(self.path))
            if self.path == "/status":
                change(page)
            body = json.dumps(page).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Told)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def three_lies(page: dict[str, Any]) -> None:
    """One received too many, one stored too few, and an answer that is called a refusal."""
    counts = page["methods"]["LabelStream"]
    counts["received"] += 1
    page["journal"]["stored_total"] -= 1
    lie = min(1, counts["answered"])
    counts["answered"] -= lie
    counts["rejected"] += lie


def gone_in_the_end(page: dict[str, Any]) -> None:
    """As if the process had gone once it had answered."""
    assert not page["methods"]["LabelStream"]["answered"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            three_lies,
            (
                "LabelStream: received 201 is not 199 answered + 1 rejected",
                "journaled 200 is not 199 stored",
                "the robots were answered 200 times, the service says 199",
            ),
        ),
        (gone_in_the_end, ("after the run: no service answers at",)),
    ],
)
def test_a_run_whose_accounts_are_not_exact_says_so_and_fails(
    start_service: StartService, change: Change, said: tuple[str, ...]
) -> None:
    service = start_service()
    with relay(service, change) as admin:
        done = run_labeler("fleet", "--address", service.address, "--admin", admin, *FEW)
    assert done.returncode == 1, done.stdout + done.stderr
    assert not [text for text in said if f"UNACCOUNTED  {text}" not in done.stdout], done.stdout


def test_a_run_prints_both_sums_and_has_them_in_its_object(start_service: StartService) -> None:
    service = start_service()
    where = ("--address", service.address, "--admin", service.admin_address)
    done = run_labeler("fleet", *where, *FEW, "--warm-up", "500ms")
    assert done.returncode == 0, done.stdout
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "by LabelStream: 300 received = 300 answered" in lines
    journaled = "300 answered (100 of them in the warm-up); 300 journaled = 300 stored"
    assert f"the service: {journaled}" in lines
    found = json.loads(run_labeler("fleet", *where, *FEW, "--json").stdout)
    counts = found["server"]["requests"]["LabelStream"]
    assert (counts["received"], counts["answered"], counts["in_flight"]) == (200, 200, 0)
    assert (found["unaccounted"], found["sent_total"], found["unheard_total"]) == ([], 200, 0)


def test_labels_of_others_are_no_fault_of_the_fleet(start_service: StartService, seed: int) -> None:
    service = start_service()
    where = ("--address", service.address, "--admin", service.admin_address)
    few = ("--robots", "20", "--rate", "10", "--for", "2s", "--calls", "unary", "--json")
    fleet = subprocess.Popen(
        [LABELER, "fleet", *where, *few], env=environment({}), stdout=subprocess.PIPE, text=True
    )
    try:
        eventually(lambda: service.status()["labels_total"] > 20, timeout_s=60)
        with labeler.Client(service.address, timeout_ms=5_000) as other:
            for sequence in range(1, 11):
                other.label("another", sequence, readings(random.Random(seed)))
        said, _ = fleet.communicate(timeout=60)
    finally:
        fleet.kill()
        fleet.wait()
    found = json.loads(said)
    assert (fleet.returncode, found["unaccounted"]) == (0, [])
    assert "10 requests that the service received were not this fleet's" in found["notes"]


def test_a_stop_of_the_service_shows_in_the_percentiles_and_loses_nothing(
    start_service: StartService,
) -> None:
    """S60. These bounds are from below: a busy machine can only make the figures larger."""
    service = start_service()
    where = ("--address", service.address, "--admin", service.admin_address)
    few = ("--robots", "50", "--rate", "4", "--for", "4s")
    fleet = subprocess.Popen(
        [LABELER, "fleet", *where, *few, "--json"],
        env=environment({}),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: service.status()["labels_total"] > 100, timeout_s=60)
        service.process.send_signal(signal.SIGSTOP)
        until_s = time.monotonic() + STOP_S
        eventually(lambda: time.monotonic() >= until_s)
        service.process.send_signal(signal.SIGCONT)
        said, _ = fleet.communicate(timeout=60)
    finally:
        service.process.send_signal(signal.SIGCONT)
        fleet.kill()
        fleet.wait()
    found = json.loads(said)
    # Of 4 s of labels a quarter was due in the stop, and half of those waited for half of it.
    assert found["p99_ms"] >= STOP_S * 1000 / 2
    assert found["max_ms"] >= found["p99_ms"]
    assert found["rate_planned_per_s"] == pytest.approx(200)
    assert found["rate_reached_per_s"] <= found["rate_planned_per_s"]
    assert found["planned"] == 800 == found["labels"] + found["errors"] + found["unsent"]
    assert (fleet.returncode, found["unaccounted"]) == (0, [])
