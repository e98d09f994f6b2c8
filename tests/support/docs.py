"""Runs the console blocks of a document as a reader would: in order, in one folder, one service.

The folder shows the project through links, so that what a command writes stays out of the project.
A `labeler serve` in a document is really started; until one is, a service on the default ports is.
"""

import os
import shlex
import subprocess
from pathlib import Path

from tests.support.console import Block, Command, missing_line
from tests.support.repo import ROOT
from tests.support.service import LABELER, Service, environment

COMMAND_S = 300


class Reader:
    """Someone who follows a document. `close` ends what was started."""

    def __init__(self, folder: Path) -> None:
        """Looks at the project through `folder`, and starts a service on the default ports."""
        self._folder = folder
        for path in ROOT.iterdir():
            if path.name not in ("labeler-state", ".git"):
                (folder / path.name).symlink_to(path)
        self._service: Service | None = None
        self._serve("serve")

    def follow(self, block: Block) -> list[str]:
        """Runs a block. What went otherwise than the document says, with the document's line."""
        return [problem for command in block.commands if (problem := self._run(command))]

    def close(self) -> None:
        """Stops the service."""
        if self._service:
            self._service.close()

    def _run(self, command: Command) -> str | None:
        if command.serves:
            words = shlex.split(command.text.rstrip("& "))
            self._serve(*words[[Path(word).name for word in words].index("labeler") + 1 :])
            return None
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", command.text],
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=COMMAND_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"line {command.line}: `{command.text}` did not end within {COMMAND_S} s"
        missing = missing_line(command.expected, done.stdout)
        where = f"line {command.line}: `{command.text}`"
        if missing is not None:
            return f"{where} has no {missing!r} in:\n{done.stdout}"
        if done.returncode != 0 and not command.expected:  # a document may show an error
            return f"{where} exits with {done.returncode}:\n{done.stdout}"
        return None

    def _serve(self, *arguments: str) -> None:
        self.close()
        state_dir = self._folder / "labeler-state"
        self._service = Service([str(LABELER), *arguments], state_dir, self._folder)
        self._service.wait_ready()

    def _environment(self) -> dict[str, str]:
        plain = environment({})
        return plain | {
            "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{plain['PATH']}",
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "TERM": "dumb",
        }
