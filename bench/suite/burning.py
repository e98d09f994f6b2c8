"""A Python thread that burns a core and never lets the GIL go: in the service, or beside it.

It burns while a run is on, and sleeps between runs, so that the service can be asked what it has
done. Makes no measurement.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

__all__ = ["Burn", "burning", "burns_on_demand"]

Burn = Literal["", "inside", "beside"]

_INSIDE = Path(__file__).resolve().parent / "inside"


def burns_on_demand(flag: Path) -> dict[str, str]:
    """What a Python process needs in its environment to burn while `flag` says so."""
    flag.write_bytes(b"\0")
    return {"BENCH_BURN": str(flag), "PYTHONPATH": os.pathsep.join([str(_INSIDE), *sys.path])}


@contextmanager
def burning(burn: Burn, flag: Path) -> Iterator[None]:
    """Burns while the block runs; `flag` is what a service that burns inside was started with."""
    if burn == "inside":
        with _said(flag):
            yield
    elif burn == "beside":
        beside = flag.with_suffix(".beside")
        environment = {**os.environ, **burns_on_demand(beside)}
        process = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment
        )
        try:
            with _said(beside):
                yield
        finally:
            process.kill()
            process.wait()
    else:
        yield


@contextmanager
def _said(flag: Path) -> Iterator[None]:
    with flag.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        shared[0] = 1
        try:
            yield
        finally:
            shared[0] = 0
