"""Compiles a C file of `tests/support` into a library that a service is started with.

The compiler is `cc`, which links Rust too: where the service can be built it is there.
"""

import os
import subprocess
from pathlib import Path

SUPPORT = Path(__file__).parent


def library(name: str, folder: Path) -> str:
    """`NAME.c` as a shared library in `folder`: the value of LD_PRELOAD."""
    made = folder / f"{name}.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(made)]
    subprocess.run([*command, str(SUPPORT / f"{name}.c"), "-ldl"], check=True)
    before = os.environ.get("LD_PRELOAD")
    return f"{made}:{before}" if before else str(made)


def prefix(**variables: str) -> tuple[str, ...]:
    """What starts a command with these variables set."""
    return ("env", *(f"{name}={value}" for name, value in variables.items()))
