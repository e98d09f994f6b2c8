"""SIGTERM to whatever started the service reaches it: it drains, and the exit says so.

Case W60, chalie #1895: what is in between, such as `make`, passes the signal on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from labeler._core import journal_stat
from tests.support.database import stored
from tests.support.repo import read
from tests.support.service import LABELER, environment
from tests.support.waiting import eventually

SHORT = "--for 500ms --warm-up '' --robots 50 --json"


def recipe_of_run() -> str:
    """What `make run` does once everything is built."""
    lines = read("Makefile").splitlines()
    [start] = [at for at, line in enumerate(lines) if line.startswith("run:")]
    [recipe] = [line for line in lines[start + 1 : start + 3] if line.startswith("\t")]
    return recipe


@pytest.mark.parametrize("starter", ["the command", "make"])
def test_sigterm_to_what_runs_the_demo_drains_its_service(tmp_path: Path, starter: str) -> None:
    recipe = f"{recipe_of_run()} --state-dir {tmp_path / 'state'} {SHORT}"
    (tmp_path / "Makefile").write_text(f"BIN := {LABELER.parent}\nrun:\n{recipe}\n")
    plain = recipe.strip().lstrip("@").replace("$(BIN)", str(LABELER.parent))
    command = {
        "the command": ["sh", "-c", f"exec {plain}"],
        "make": ["make", "--no-print-directory", "-C", str(tmp_path), "run"],
    }[starter]
    ports = {"transport__grpc_address": "127.0.0.1:0", "admin__address": "127.0.0.1:0"}
    process = subprocess.Popen(
        command,
        env=environment(ports),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    lines: list[str] = []
    assert process.stdout
    reading = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
    reading.start()
    try:
        eventually(lambda: any(line.startswith("}") or '"labels"' in line for line in lines), 60)
        process.send_signal(signal.SIGTERM)
        code = process.wait(40)
        reading.join(40)
        assert not reading.is_alive(), "the demo has ended too"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
    if starter == "the command":
        assert code == 0
    found = journal_stat(str(tmp_path / "state" / "journal"))
    assert found["pending"] == 0, "it was drained, not killed"
    assert stored(tmp_path / "state" / "labels.sqlite3")
