"""Runs the real service as a process: starts it, waits until it serves, ends it in every way.

The one place in the tests that knows how it is started, how it says that it is ready (a log line
whose message is `serving`, with its addresses), and how its admin port is read.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from tests.support.metrics import Metrics

LABELER = Path(sys.executable).with_name("labeler")
READY_S = 60.0
EXIT_S = 40.0


class NotServingError(Exception):
    """The service ended, or stayed silent, before it served; the message has its log."""


def environment(settings: Mapping[str, object]) -> dict[str, str]:
    """This process's environment without our own variables, and with `settings` as LABELER_ ones.

    A setting's name is written with `__` between section and name, as the environment has it.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith("LABELER_")}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in settings.items()
    }
    return kept | {f"LABELER_{name.upper()}": text for name, text in texts.items()}


class Service:
    """A `labeler serve` on ports of its own, with a state directory of its own."""

    def __init__(
        self,
        command: Sequence[str],
        state_dir: Path,
        folder: Path | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Starts it in `folder` and returns at once; see `serve` for the usual way."""
        self.state_dir = state_dir
        self.address = ""
        self.admin_address = ""
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment({"log__format": "json"} | dict(settings or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name="service-stderr", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def database(self) -> Path:
        """The SQLite file where its labels end."""
        return self.state_dir / "labels.sqlite3"

    @property
    def stderr(self) -> list[str]:
        """The lines of its log so far."""
        with self._changed:
            return list(self._lines)

    def logged(self, message: str) -> list[dict[str, Any]]:
        """The fields of the log lines with exactly this message."""
        fields = [fields_of(line) for line in self.stderr]
        return [found for found in fields if found.get("message") == message]

    def wait_ready(self, timeout_s: float = READY_S) -> "Service":
        """Waits until it serves. Errors: `NotServingError` with its log."""
        with self._changed:
            self._changed.wait_for(lambda: self.address or self._ended, timeout_s)
        if not self.address:
            code = self.process.poll()
            said = f"exited with {code}" if code is not None else f"silent for {timeout_s} s"
            raise NotServingError("\n".join([f"the service {said}; its log:", *self.stderr]))
        return self

    def terminate(self) -> None:
        """Sends SIGTERM, the first or the second."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it with SIGKILL and waits until it is gone."""
        self.process.kill()
        self.wait()

    def wait(self, timeout_s: float = EXIT_S) -> int:
        """Waits for its end; the exit code, negative for a signal."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def stop(self) -> int:
        """SIGTERM, then its end. The exit code."""
        self.terminate()
        return self.wait()

    def close(self) -> None:
        """Leaves no process and no open file behind, whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        if self.process.stderr:
            self.process.stderr.close()

    def metrics(self) -> Metrics:
        """One scrape of the admin port."""
        return Metrics(self.get("/metrics"))

    def get(self, path: str) -> str:
        """The body of a page of the admin port."""
        with urllib.request.urlopen(f"http://{self.admin_address}{path}", timeout=10) as reply:
            return cast(bytes, reply.read()).decode()

    def status(self) -> dict[str, Any]:
        """The golden figures, as `labeler status --json` shows them."""
        return cast(dict[str, Any], json.loads(self.get("/status")))

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            fields = fields_of(line)
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                if fields.get("message") == "serving":
                    self.admin_address = str(fields["admin_address"])
                    self.address = str(fields["grpc_address"])
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def serve(
    state_dir: Path,
    prefix: Sequence[str] = (),
    args: Sequence[str] = (),
    labeler: Path = LABELER,
    **settings: object,
) -> Service:
    """Starts `labeler serve` on free ports and returns at once.

    `prefix`: a command that runs it, such as `setpriv …`. `labeler`: another installation's.
    `settings`: `path__deadline_ms=50` sets `path.deadline_ms`.
    """
    ports = {"transport__grpc_address": "127.0.0.1:0", "admin__address": "127.0.0.1:0"}
    command = [*prefix, str(labeler), "serve", *args]
    return Service(command, state_dir, None, ports | {"state_dir": str(state_dir)} | settings)


@contextmanager
def serving(state_dir: Path, **settings: object) -> Iterator[Service]:
    """A service that serves until the block ends: for the fixtures of a whole file."""
    one = serve(state_dir, **settings)  # type: ignore[arg-type]
    try:
        yield one.wait_ready()
    finally:
        one.close()


StartService = Callable[..., Service]
"""What the fixture `start_service` gives."""


def fields_of(line: str) -> dict[str, Any]:
    """The `fields` of a log line; empty for any other line."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    fields = found.get("fields", {}) if isinstance(found, dict) else {}
    return fields if isinstance(fields, dict) else {}


def run_labeler(*args: str, text: str = "", **settings: object) -> subprocess.CompletedProcess[str]:
    """Runs a command of `labeler` to its end: `text` on stdin, `settings` in its environment."""
    return subprocess.run(
        [LABELER, *args],
        env=environment(settings),
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
