"""A disk that breaks on demand under a real service: `faulty_disk.c`, loaded before the C library.

Where there is no C compiler, or no right to mount, a test that needs it is skipped loudly;
`LABELER_REQUIRE_CC=1` and `LABELER_REQUIRE_MOUNT=1` turn that into a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from tests.support.preload import library, prefix

JOURNAL = "/journal/segment-"
"""The part of a path that all segments share."""
DATABASE = "/labels.sqlite3"
"""The same of SQLite's files."""

Fault = Literal[
    "sync_fails",
    "sync_takes",
    "sync_kills",
    "read_fails",
    "read_takes",
    "write_fails",
    "write_short",
    "clock_back",
]


class FaultyDisk:
    """Faults for the services that are started with its `prefix`, made and ended at any moment."""

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        """`root`: what is synced below it is mirrored in `mirror`, and nothing else is."""
        self.rules = folder / "rules"
        self.rules.mkdir(parents=True)
        self.mirror = folder / "mirror"
        variables = {"LD_PRELOAD": _preloaded(folder), "FAULTY_RULES": str(self.rules)}
        if root:
            if root.exists():
                shutil.copytree(root, self.mirror, ignore=shutil.ignore_patterns("*-shm"))
            else:
                self.mirror.mkdir()
            variables |= {"FAULTY_ROOT": str(root), "FAULTY_MIRROR": str(self.mirror)}
        self.prefix = prefix(**variables)

    def breaks(self, fault: Fault, part: str, argument: str | int = "always") -> None:
        """From now on, for paths that contain `part`; `argument` as the C file says."""
        made = self.rules.parent / f"{fault}.new"
        made.write_text(f"{part} {argument}\n")
        made.rename(self.rules / fault)

    def heals(self, fault: Fault) -> None:
        """From now on no more."""
        (self.rules / fault).unlink(missing_ok=True)

    def broke(self, fault: Fault) -> bool:
        """Whether a fault for `once` has happened."""
        return not (self.rules / fault).exists()


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory of `size_bytes`, mounted at `path`."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0755", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        refuse_or_skip("LABELER_REQUIRE_MOUNT", f"no right to mount: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path, left_bytes: int = 0) -> Path:
    """Takes all space of a small disk but `left_bytes`; the file that holds it."""
    ballast = path / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for step in (1 << 20, 4096):
            while free_bytes(path) >= left_bytes + step:
                file.write(bytes(step))
    return ballast


def free_bytes(path: Path) -> int:
    """What is left of a disk."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _preloaded(folder: Path) -> str:
    if shutil.which("cc") is None:
        refuse_or_skip("LABELER_REQUIRE_CC", "no C compiler `cc`")
    return library("faulty_disk", folder)


def refuse_or_skip(variable: str, why: str) -> None:
    """Skips a test that cannot run here, or fails it where the variable asks for that."""
    if os.environ.get(variable) == "1":
        pytest.fail(f"{variable}=1, but there is {why}", pytrace=False)
    pytest.skip(why)
