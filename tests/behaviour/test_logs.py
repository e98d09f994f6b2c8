"""Log lines of the control side have the core's schema, never wait, are counted when dropped."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

from labeler.telemetry.logs import QUEUE_LINES_MAX, LogSink, resolve_format
from labeler.v1 import label_pb2
from tests.support.counts import counts
from tests.support.service import LABELER, environment
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, floats, request, wire


class Blocked(io.StringIO):
    """A stderr that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        self.free.wait(20)
        return super().write(text)


def test_a_line_has_timestamp_level_fields_and_target() -> None:
    stream = io.StringIO()
    sink = LogSink("info", "json", stream)
    logging.getLogger("labeler.writer").warning(
        "%d rows \u00b5", 3, extra={"fields": {"store": "sqlite"}}
    )
    logging.getLogger("labeler.writer").debug("not written")
    sink.close()
    [line] = stream.getvalue().splitlines()
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", found.pop("timestamp"))
    assert found == {
        "level": "WARN",
        "fields": {"message": "3 rows \u00b5", "store": "sqlite"},
        "target": "labeler::writer",
    }


def test_a_traceback_stays_within_its_line() -> None:
    stream = io.StringIO()
    sink = LogSink("info", "json", stream)
    try:
        raise ValueError("broken")
    except ValueError as error:
        logging.getLogger("labeler.x").error("it failed", exc_info=error)
    sink.close()
    [line] = stream.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(line)["fields"]["traceback"]


def test_text_lines_read_well() -> None:
    stream = io.StringIO()
    sink = LogSink("info", "text", stream)
    logging.getLogger("labeler.service").info("serving", extra={"fields": {"threads": 2}})
    sink.close()
    assert stream.getvalue().endswith("Z  INFO labeler::service: serving threads=2\n")


def test_a_blocked_stderr_drops_lines_and_counts_them() -> None:
    stream = Blocked()
    sink = LogSink("info", "json", stream)
    lines = QUEUE_LINES_MAX + 100
    for number in range(lines):
        logging.getLogger("labeler.x").info("line %d", number)
    assert sink.dropped >= 99  # one line may be in the writer's hands
    stream.free.set()
    sink.close(20)
    assert len(stream.getvalue().splitlines()) + sink.dropped == lines


def test_a_process_whose_stderr_nobody_reads_exits_all_the_same() -> None:
    program = (
        "import logging, sys; sys.path[:0] = sys.argv[1].split(':')\n"
        "from labeler.telemetry.logs import LogSink\n"
        "sink = LogSink('info', 'json', sys.stderr)\n"
        "for _ in range(1000): logging.getLogger('labeler.x').info('x' * 1000)\n"
        "sink.close(0.1)\n"
    )
    command = [sys.executable, "-c", program, ":".join(sys.path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as child:
        try:
            assert child.wait(timeout=30) == 0
        finally:
            child.kill()


def test_a_line_that_cannot_be_written_is_counted_and_the_next_is_written() -> None:
    stream = io.StringIO()
    sink = LogSink("info", "json", stream)
    logging.getLogger("labeler.x").info("bad", extra={"fields": {1: {(): "no key of JSON"}}})
    logging.getLogger("labeler.x").info("good")
    sink.close()
    assert sink.dropped == 1
    assert "good" in stream.getvalue()


def test_two_sinks_one_after_the_other_do_not_share_lines() -> None:
    first, second = io.StringIO(), io.StringIO()
    sink = LogSink("info", "text", first)
    sink.close()
    sink = LogSink("info", "text", second)
    logging.getLogger("labeler.x").info("to the second")
    sink.close()
    assert first.getvalue() == ""
    assert "to the second" in second.getvalue()


def test_auto_is_json_unless_it_is_a_terminal() -> None:
    assert resolve_format("auto", io.StringIO()) == "json"
    assert resolve_format("text", io.StringIO()) == "text"


def flood(admin_address: str) -> None:
    """Lines without end into a stderr that nobody reads: each request has one at DEBUG."""
    host, _, port = admin_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as pages:
        replies = pages.makefile("rb")

        def dropped() -> int:
            pages.sendall(b"GET /healthz HTTP/1.1\r\nHost: admin\r\n\r\n" * 500)
            live = 0
            while live < 500:
                live += replies.readline() == b"live\n"
            with urllib.request.urlopen(f"http://{admin_address}/status", timeout=30) as status:
                return int(json.loads(status.read())["logs_dropped_total"])

        eventually(dropped, timeout_s=60)
        replies.close()


@counts("labels", quick=10_000, full=100_000, full_timeout_s=600)
def test_labels_pass_at_trace_while_nobody_reads_stderr_and_what_is_dropped_is_counted(
    tmp_path: Path, labels: int
) -> None:
    """S50, trap 12: a log at its finest, a pipe that is full, and no thread that waits for it."""
    ports = ("transport.grpc_address=127.0.0.1:0", "admin.address=127.0.0.1:0")
    settings = (*ports, f"state_dir={tmp_path / 'state'}", "log.level=trace", "log.format=json")
    options = [word for setting in settings for word in ("--set", setting)]
    command = [str(LABELER), "serve", *options]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, env=environment({}), text=True
    ) as served:
        try:
            assert served.stderr
            line = ""
            while '"message": "serving"' not in line:  # from there on nobody reads
                line = served.stderr.readline()
            found = json.loads(line)["fields"]
            flood(found["admin_address"])
            with wire(found["grpc_address"]) as stubs:
                for first in range(0, labels, 500):
                    batch = [
                        request("r", first + n + 1, floats([2.5] * WIDTH), timeout_us=60_000_000)
                        for n in range(500)
                    ]
                    message = label_pb2.LabelBatchRequest(requests=batch)
                    reply = stubs.labels.LabelBatch(message)
                    assert all(row.HasField("response") for row in reply.results)
            served.terminate()
            assert served.wait(60) == 0, "an exit waits for no reader"
        finally:
            served.kill()
