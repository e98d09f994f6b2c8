"""Answers the control requests that the core hands up: read-back and model operations.

Reads run on one thread, operations on another, one after the other, so that a load that warms for
seconds delays no read. Both outlive whatever a request raises; they end with the engine. A request
whose time is over is not begun: the core has answered its caller.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from labeler.errors import (
    ForkedError,
    InvalidRequestError,
    LabelerError,
    ModelInvalidError,
    ModelNotFoundError,
    RuntimeLibraryError,
    StoppedError,
    UnavailableError,
)
from labeler.loop import LoopThread
from labeler.stores.base import Query, Store, StoredRow, StoreUnavailableError

__all__ = ["Control", "ControlSide"]

_log = logging.getLogger(__name__)

_GROUP_ROWS_MAX = 8
"""Few, so that gets come between the pages of long lists."""
_IDLE_MS = 500
_OPERATIONS_MAX = 64
_PAGE_ROWS_DEFAULT, _PAGE_ROWS_MAX = 100, 1000
_STORED = 3
"""`labeler.v1.Durability`: what the store gives back is stored."""

Answer = dict[str, Any]
_Result = TypeVar("_Result")


class ControlSide(Protocol):
    """The core's side: requests, answers, and the models that operations act on."""

    def take_control(self, rows_max: int, timeout_ms: int) -> Sequence[Mapping[str, Any]]:
        """Requests whose callers still wait; `deadline_ms` is the time left at the take."""

    def answer_control(self, answers: Sequence[tuple[int, dict[str, Any]]]) -> None:
        """Answers by id."""

    def load_model(self, name: str, version: str, standby: bool) -> Mapping[str, Any]:
        """Loads, warms and switches; waits."""

    def unload_model(self, name: str, version: str) -> Sequence[Mapping[str, Any]]:
        """Stops a version; waits."""

    def list_models(self) -> Sequence[Mapping[str, Any]]:
        """Loaded and available versions."""


@dataclass(frozen=True)
class _Request:
    """A control request, with the end of its time on our monotonic clock."""

    id: int
    kind: str
    body: Mapping[str, Any]
    end_s: float

    @classmethod
    def taken(cls, request: Mapping[str, Any], now_s: float) -> _Request:
        """A request that the core handed up at `now_s`."""
        end_s = now_s + request["deadline_ms"] / 1000
        return cls(request["id"], request["kind"], request["body"], end_s)

    @property
    def left_ms(self) -> int:
        """What is left of its time; 0 when the caller has left."""
        return max(0, int((self.end_s - time.monotonic()) * 1000))


class Control:
    """Two threads: one takes and reads, one operates on models."""

    def __init__(self, core: ControlSide, store: Store, loop: LoopThread) -> None:
        """Only stores what it is given; the store is asked on the loop."""
        self._core, self._store, self._loop = core, store, loop
        self._operations: queue.Queue[_Request | None] = queue.Queue(_OPERATIONS_MAX)
        self._threads = [
            threading.Thread(target=self._take, name="labeler-control", daemon=True),
            threading.Thread(target=self._operate, name="labeler-models", daemon=True),
        ]

    def start(self) -> None:
        """Begins to answer."""
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> None:
        """Waits for the threads after the engine's stop; an operation that hangs is left behind."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _take(self) -> None:
        while True:
            try:
                taken = self._core.take_control(_GROUP_ROWS_MAX, _IDLE_MS)
                now = time.monotonic()
                self._answer_group([_Request.taken(request, now) for request in taken])
            except (StoppedError, ForkedError):
                break
            except BaseException as error:  # trap 13: the thread must not end in silence
                _log.error("control requests were not answered: %r", error, exc_info=error)
        self._operations.put(None)

    def _answer_group(self, requests: Sequence[_Request]) -> None:
        """Gets as one group; pages one by one, since each may take its whole time."""
        gets = [request for request in requests if request.kind == "get"]
        answers = [(request.id, self._answer(request)) for request in gets if request.left_ms]
        if answers:
            self._core.answer_control(answers)
        for request in requests:
            if request.kind in ("load_model", "unload_model"):
                self._enqueue(request)
            elif request.kind != "get":
                self._answer_one(request)

    def _answer_one(self, request: _Request) -> None:
        if request.left_ms:
            self._core.answer_control([(request.id, self._answer(request))])

    def _enqueue(self, request: _Request) -> None:
        try:
            self._operations.put_nowait(request)
        except queue.Full:
            busy = _error(
                "unavailable", f"{_OPERATIONS_MAX} model operations wait; try again later"
            )
            self._core.answer_control([(request.id, busy)])

    def _operate(self) -> None:
        while (request := self._operations.get()) is not None:
            try:
                self._answer_one(request)
            except (StoppedError, ForkedError):
                return
            except BaseException as error:
                _log.error("a model operation was not answered: %r", error, exc_info=error)

    def _answer(self, request: _Request) -> Answer:
        """The reply, or the error in the reply's form; raises only when the engine is gone."""
        try:
            return self._perform(request)
        except (StoppedError, ForkedError):
            raise
        except LabelerError as error:
            answer = dict(_error(_kind(error), error.message))
            if isinstance(error, InvalidRequestError):
                answer |= {"field": error.field, "value": error.value, "expected": error.expected}
            return answer
        except BaseException as error:  # a panic of the core is no `Exception`
            _log.error("control request %s failed: %r", request.kind, error, exc_info=error)
            return _error("internal", f"the control side failed: {error!r}")

    def _perform(self, request: _Request) -> Answer:
        kind, body = request.kind, request.body
        if kind == "get":
            return self._get(body["robot_id"], body["sequence"], request.left_ms)
        if kind == "list":
            return self._list(body, request.left_ms)
        if kind == "load_model":
            model = self._core.load_model(body["name"], body["version"], body["standby"])
            return {"models": [dict(model)]}
        if kind == "unload_model":
            unloaded = self._core.unload_model(body["name"], body["version"])
            return {"models": [dict(model) for model in unloaded]}
        if kind == "list_models":
            return {"models": [dict(model) for model in self._core.list_models()]}
        raise InvalidRequestError(f"control request {kind!r} is not known here")

    def _get(self, robot_id: str, sequence: int, left_ms: int) -> Answer:
        row = self._ask(self._store.get(robot_id, sequence), left_ms)
        if row is None:
            missing = _error("label_not_found", f"no label {sequence} of {robot_id!r}")
            return {**missing, "robot_id": robot_id, "sequence": sequence}
        return {"label": _stored_label(row)}

    def _list(self, body: Mapping[str, Any], left_ms: int) -> Answer:
        wanted = body["page_size"] or _PAGE_ROWS_DEFAULT
        query = Query(
            robot_id=body["robot_id"],
            page_size=min(wanted, _PAGE_ROWS_MAX),
            page_token=body["page_token"],
            from_unix_us=body["from_unix_us"],
            to_unix_us=body["to_unix_us"],
            timeout_ms=max(1, left_ms),
        )
        page = self._ask(self._store.list(query), left_ms)
        labels = [_stored_label(row) for row in page.rows]
        return {"labels": labels, "next_page_token": page.next_page_token}

    def _ask(self, reading: Coroutine[Any, Any, _Result], left_ms: int) -> _Result:
        try:
            return self._loop.call(reading, max(1, left_ms) / 1000)
        except TimeoutError as error:
            raise StoreUnavailableError(f"the store did not answer in {left_ms} ms") from error


def _stored_label(row: StoredRow) -> dict[str, Any]:
    return {**row._asdict(), "durability": _STORED}


def _error(kind: str, message: str) -> Answer:
    return {"error": kind, "message": message}


def _kind(error: LabelerError) -> str:
    if isinstance(error, ModelNotFoundError):
        return "not_found"
    if isinstance(error, InvalidRequestError):
        return "invalid"
    if isinstance(error, ModelInvalidError | RuntimeLibraryError):
        return "model_invalid"
    if isinstance(error, StoreUnavailableError | UnavailableError):
        return "unavailable"
    return "internal"
