"""The sender over HTTP/1.1, against Python's own server: what comes is judged, nothing is hidden.

One call at a time on a connection; a call that waits for one is timed from when it was due.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import labeler
from labeler._core import loadgen
from tests.support.sending import ended, run, sender

WIDTH = 24
CALLS = 200
STOP = json.dumps({"label": "stop", "confidence": 0.9}).encode()
NAMES = ["go", "slow", "stop"]
STALL_S = 0.5


@dataclass
class Seen:
    """What a server was asked, and how: `connections` by the caller's port."""

    bodies: list[bytes] = field(default_factory=list)
    heads: set[tuple[str, str]] = field(default_factory=set)
    connections: set[int] = field(default_factory=set)
    under_way: int = 0
    under_way_max: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def began(self, body: bytes, head: tuple[str, str], port: int) -> int:
        """A call came; which one it is, from 0."""
        with self.lock:
            self.bodies.append(body)
            self.heads.add(head)
            self.connections.add(port)
            self.under_way += 1
            self.under_way_max = max(self.under_way_max, self.under_way)
            return len(self.bodies) - 1

    def ended(self) -> None:
        with self.lock:
            self.under_way -= 1


Answer = tuple[int, bytes] | None
"""Status and body; none: the connection is closed without a word."""


@contextmanager
def predicting(answer: Callable[[int], Answer], closes: bool = False) -> Iterator[tuple[str, Seen]]:
    """A server that answers the n-th call so; its address, and what it saw.

    `closes`: each reply says that its connection is closed after it.
    """
    seen = Seen()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # a reply in one piece

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            head = (self.path, self.headers["Content-Type"])
            number = seen.began(body, head, self.client_address[1])
            found = answer(number)
            seen.ended()
            if found is None:
                self.close_connection = True
                return
            self.send_response(found[0])
            self.send_header("Content-Length", str(len(found[1])))
            if closes:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(found[1])

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a caller that gave up and went

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


def fed(address: str, rows: np.ndarray, truths: list[int], **plan: object) -> loadgen.Sender:
    made = sender(address, rpc="http_predict", rows="fed", labels=NAMES, **plan)
    made.feed(rows.tobytes(), np.array(truths, "<i2").tobytes(), b"")
    made.end_feed()
    return made


def test_a_reply_of_json_is_a_label_that_is_judged() -> None:
    rows = np.full((CALLS, WIDTH), 2.5, "<f4")
    with predicting(lambda _: (200, STOP)) as (address, _):
        result = run(fed(address, rows, [2] * 100 + [0] * 100))
    assert (result["answered"], result["errors"]) == (CALLS, {})
    assert (result["judged"], result["correct"]) == (CALLS, 100)
    assert result["by_label"]["go"] == {"stop": 100}
    assert result["latency_us"]["count"] == CALLS


def test_rows_travel_as_json_on_connections_that_are_kept() -> None:
    rows = np.random.default_rng(7).uniform(0.4, 5.0, (CALLS, WIDTH)).astype("<f4")
    with predicting(lambda _: (200, STOP)) as (address, seen):
        run(fed(address, rows, [-1] * CALLS))
    came = {np.array(json.loads(body)["values"], "<f4").tobytes() for body in seen.bodies}
    assert came == {row.tobytes() for row in rows}
    assert seen.heads == {("/predict", "application/json")}
    assert len(seen.connections) == 2


def test_rows_travel_as_their_bytes_where_the_plan_says_raw() -> None:
    rows = np.random.default_rng(7).uniform(0.4, 5.0, (CALLS, WIDTH)).astype("<f4")
    with predicting(lambda _: (200, STOP)) as (address, seen):
        run(fed(address, rows, [-1] * CALLS, payload="raw_float32"))
    assert set(seen.bodies) == {row.tobytes() for row in rows}
    assert seen.heads == {("/predict", "application/octet-stream")}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "INTERNAL"), (404, "UNIMPLEMENTED"), (500, "UNKNOWN"), (503, "UNAVAILABLE")],
)
def test_another_status_is_counted_as_an_error_whatever_the_body_says(
    status: int, kind: str
) -> None:
    with predicting(lambda _: (status, STOP)) as (address, _):
        result = run(sender(address, rpc="http_predict"))
    assert (result["answered"], result["errors"]) == (0, {kind: CALLS})
    assert result["latency_us"]["count"] == 0


@pytest.mark.parametrize(
    "body", [b"", b"stop", b'{"label": "stop"}', b'{"label": 3, "confidence": 1}', b"x" * (2 << 20)]
)
def test_a_body_that_is_no_label_is_counted_as_an_error(body: bytes) -> None:
    with predicting(lambda number: (200, body if number % 2 else STOP)) as (address, _):
        result = run(sender(address, rpc="http_predict"))
    assert (result["answered"], result["errors"]) == (100, {"INTERNAL": 100})


def test_a_connection_that_is_closed_under_a_call_is_counted_and_made_again() -> None:
    with predicting(lambda number: None if number % 10 == 0 else (200, STOP)) as (address, seen):
        result = run(sender(address, rpc="http_predict"))
    assert (result["answered"], result["errors"]) == (180, {"TRANSPORT": 20})
    assert len(seen.bodies) == CALLS, "a call was sent again"
    assert len(seen.connections) >= 20


def test_a_server_that_closes_after_each_reply_gets_a_connection_a_call() -> None:
    with predicting(lambda _: (200, STOP), closes=True) as (address, seen):
        result = run(sender(address, rpc="http_predict"))
    assert (result["answered"], result["errors"]) == (CALLS, {})
    assert len(seen.connections) == CALLS


def test_a_call_that_is_never_answered_times_out_and_no_other_gets_its_reply() -> None:
    held = threading.Event()

    def answer(number: int) -> Answer:
        if number == 0:
            held.wait(30)
            return 200, b'{"label": "late", "confidence": 1}'
        return 200, STOP

    rows = np.full((CALLS, WIDTH), 2.5, "<f4")
    with predicting(answer) as (address, _):
        result = run(fed(address, rows, [2] * CALLS, timeout_ms=200))
        held.set()
    assert (result["answered"], result["correct"]) == (CALLS - 1, CALLS - 1)
    assert result["errors"] == {"TIMEOUT": 1}


def test_a_server_that_has_gone_is_counted_call_by_call() -> None:
    with predicting(lambda _: None) as (address, _):
        made = sender(address, rpc="http_predict")
        made.connect()
    made.fire()
    result = ended(made)
    # Of the two connections that it had each may still take a call, and there are no others.
    assert result["answered"] == 0
    assert result["errors"]["UNAVAILABLE"] >= CALLS - 2, result["errors"]


def test_calls_behind_a_stall_are_timed_from_when_they_were_due() -> None:
    def answer(number: int) -> Answer:
        if number == 50:
            threading.Event().wait(STALL_S)
        return 200, STOP

    with predicting(answer) as (address, seen):
        result = run(sender(address, rpc="http_predict", robots=1, connections=1))
    assert (result["answered"], result["errors"]) == (CALLS, {})
    assert seen.under_way_max == 1
    # Of the hundred calls that are due in the stall ten wait for nine tenths of it and more.
    assert result["latency_us"]["p95"] >= STALL_S * 0.85e6
    assert result["latency_uncorrected_us"]["p95"] < result["latency_us"]["p95"]


def test_a_closed_loop_has_a_call_on_each_connection() -> None:
    together = threading.Barrier(8)

    def answer(number: int) -> Answer:
        if number < 8:
            together.wait(30)
        return 200, STOP

    schedule = {"shape": "saturate", "in_flight": 8}
    with predicting(answer) as (address, seen):
        plan = {"schedule": schedule, "connections": 8, "duration_s": 0.5}
        result = run(sender(address, rpc="http_predict", **plan))
    assert result["closed_loop"]
    assert (result["answered"], result["errors"]) == (len(seen.bodies), {})
    assert (seen.under_way_max, len(seen.connections)) == (8, 8)


def test_a_port_that_nobody_listens_at_is_not_ready() -> None:
    with predicting(lambda _: (200, STOP)) as (address, _):
        pass
    with pytest.raises(
        labeler.UnavailableError, match="0 of 2 connections are up; Connection refused"
    ):
        sender(address, rpc="http_predict", ready_timeout_ms=200).connect()


def test_more_calls_under_way_than_connections_are_refused() -> None:
    schedule = {"shape": "saturate", "in_flight": 3}
    with pytest.raises(
        labeler.InvalidRequestError, match=r"schedule.in_flight is 3, expected at most 2"
    ):
        sender("127.0.0.1:1", rpc="http_predict", schedule=schedule)
