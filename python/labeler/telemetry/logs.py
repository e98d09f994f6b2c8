"""The control side's log: the core's schema of JSON lines, or readable lines on a terminal.

A log call never waits for stderr: lines go through a bounded queue to a thread that writes them,
and what does not fit is dropped and counted. An exit waits for it no longer than `close` says: no
lock that `logging` or the interpreter take at exit is held over a write. Nothing is configured on
import: `service.py` does.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO, Any

__all__ = ["JsonFormatter", "LogSink", "TextFormatter", "resolve_format"]

QUEUE_LINES_MAX = 4096
_LEVELS = {"trace": 5, "debug": 10, "info": 20, "warn": 30, "error": 40}
_NAMES = ((40, "ERROR"), (30, "WARN"), (20, "INFO"), (10, "DEBUG"), (0, "TRACE"))


def resolve_format(configured: str, stream: IO[str]) -> str:
    """`auto` is text on a terminal, else JSON."""
    if configured == "auto":
        return "text" if stream.isatty() else "json"
    return configured


class LogSink:
    """Takes the records of the logger `labeler` and all below it until it is closed."""

    def __init__(self, level: str, form: str, stream: IO[str]) -> None:
        """`level`: a name of `log.level`; `form`: `json` or `text`."""
        self._queue: queue.Queue[Any] = queue.Queue(QUEUE_LINES_MAX)
        self._handler = _BoundedHandler(self._queue)
        self._formatter = JsonFormatter() if form == "json" else TextFormatter()
        self._write, self._lost = _writing_to(stream), 0
        self._logger = logging.getLogger("labeler")
        self._logger.setLevel(_LEVELS[level])
        self._logger.propagate = False
        self._logger.addHandler(self._handler)
        self._thread = threading.Thread(target=self._run, name="labeler-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that did not fit, or that the stream did not take."""
        return self._handler.dropped + self._lost

    def close(self, timeout_s: float = 1.0) -> None:
        """Writes what is queued, within the time: a blocked stderr must not hold an exit."""
        self._logger.removeHandler(self._handler)
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            try:
                self._write(f"{self._formatter.format(record)}\n")
            except Exception:  # a closed pipe, or a field that cannot be shown: the next may be
                self._lost += 1


def _writing_to(stream: IO[str]) -> Callable[[str], None]:
    """Writes a line: to the descriptor where there is one, past the locks of Python's streams.

    Such a lock, held by a thread that a full pipe blocks, would abort the interpreter at its exit.
    """
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return lambda line: _write_text(stream, line)
    return lambda line: _write_bytes(descriptor, line.encode("utf-8", "backslashreplace"))


def _write_text(stream: IO[str], line: str) -> None:
    stream.write(line)
    stream.flush()


def _write_bytes(descriptor: int, line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[os.write(descriptor, left) :]


class _BoundedHandler(logging.handlers.QueueHandler):
    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Drops and counts where the standard handler would print a traceback."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Makes the message here, since its arguments may change; keeps the traceback as text."""
        record.message = record.getMessage()
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.msg, record.args, record.exc_info = record.message, None, None
        return record


class JsonFormatter(logging.Formatter):
    """One line: `timestamp`, `level`, `fields` (with `message`), `target`, as the core has it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; further fields come from `extra={"fields": {…}}`."""
        fields: dict[str, Any] = {"message": record.getMessage(), **_fields(record)}
        if record.exc_text:
            fields["traceback"] = record.exc_text
        line = {
            "timestamp": _timestamp(record),
            "level": _level(record),
            "fields": fields,
            "target": _target(record),
        }
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """For people: time, level, target, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; a traceback follows on lines of its own."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        text = f"{_timestamp(record)} {_level(record):>5} {_target(record)}: {record.getMessage()}"
        return f"{text}{fields}" + (f"\n{record.exc_text}" if record.exc_text else "")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found = getattr(record, "fields", {})
    return found if isinstance(found, dict) else {}


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _level(record: logging.LogRecord) -> str:
    return next(name for least, name in _NAMES if record.levelno >= least)


def _target(record: logging.LogRecord) -> str:
    return record.name.replace(".", "::")
