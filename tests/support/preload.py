"""Compiles a C file of `tests/support` into a library that a service is started with.

The compiler is `cc`, which links Rust too: where the service can be built it is there.
"""

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SUPPORT = Path(__file__).parent


def library(name: str, folder: Path) -> str:
    """`NAME.c` as a shared library in `folder`: the value of LD_PRELOAD."""
    made = folder / f"{name}.so"
    made.write_bytes(_compiled(name))
    before = os.environ.get("LD_PRELOAD")
    return f"{made}:{before}" if before else str(made)


@cache
def _compiled(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.so"
        command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(made)]
        subprocess.run([*command, str(SUPPORT / f"{name}.c"), "-ldl"], check=True)
        return made.read_bytes()


def prefix(**variables: str) -> tuple[str, ...]:
    """What starts a command with these variables set."""
    return ("env", *(f"{name}={value}" for name, value in variables.items()))
