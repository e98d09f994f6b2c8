"""Log lines of the control side have the core's schema, never wait, are counted when dropped."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import threading

from labeler.telemetry.logs import QUEUE_LINES_MAX, LogSink, resolve_format


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
