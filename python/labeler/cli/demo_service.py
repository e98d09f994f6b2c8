"""The demo's service: a `labeler serve` as a process of its own, watched through its log."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from labeler.errors import LabelerError

__all__ = ["DemoService"]

_START_S = 60.0
_STOP_S = 30.0


class DemoService:
    """Starts it, learns its addresses, passes its log on, ends it."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """`arguments`: those of `labeler serve`. Returns at once; `wait_ready` waits."""
        environ = {name: text for name, text in os.environ.items() if name != "LABELER_LOG__FORMAT"}
        # Flags win over what the caller's environment says: we read the line `serving`.
        log = ["--set", "log.format=json", "--set", "log.level=info"]
        child = [sys.executable, "-m", "labeler.cli.demo_child", str(os.getpid())]
        # A session of its own: Ctrl-C reaches it once, from us; a second signal would mean haste.
        self._process = subprocess.Popen(
            [*child, "serve", *log, *arguments],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._ready: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._read, name="demo-log", daemon=True)
        self._reader.start()

    def wait_ready(self) -> dict[str, Any]:
        """The fields of its line `serving`. Errors: `LabelerError` with what it said."""
        try:
            fields = self._ready.get(timeout=_START_S)
        except queue.Empty:
            self.stop()
            raise LabelerError(f"the service was not ready within {_START_S:.0f} s") from None
        if fields is None:
            code = self._process.wait()
            said = "\n".join(self._said[-20:]) or "it said nothing"
            error = LabelerError(f"the service did not start (exit code {code}):\n{said}")
            error.exit_code = code  # type: ignore[misc]  # what ended it is what we end with
            raise error
        return fields

    def wait(self) -> int:
        """Waits for its end."""
        return self._process.wait()

    def stop(self) -> int:
        """Ends it as a deployment does, once; after a time without mercy. Its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for text in self._process.stderr:
            line = text.rstrip("\n")
            record = _record(line)
            fields = record.get("fields", {})
            if fields.get("message") == "serving":
                self._ready.put(fields)
            elif record.get("level") in ("WARN", "ERROR") or not record:
                self._said.append(_readable(record) if record else line)
                if len(self._said) <= 100:
                    print(self._said[-1], file=sys.stderr)
        self._ready.put(None)


def _record(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _readable(record: dict[str, Any]) -> str:
    fields = dict(record.get("fields", {}))
    message = fields.pop("message", "")
    rest = "".join(f" {name}={value}" for name, value in fields.items())
    return f"{record.get('level', '')} {record.get('target', '')}: {message}{rest}"
