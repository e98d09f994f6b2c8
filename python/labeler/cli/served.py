"""The process that serves: `labeler serve` becomes it once the settings are checked.

A fresh interpreter, since what reads and checks settings would stay in memory for ever: a third of
the service at rest. Same process id, streams, limits and environment, to which a bound on malloc's
arenas is added; the plan comes in an open file that only this process has, so that no setting shows
in a list of processes.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

from labeler.cli.ending import run_to_end
from labeler.plan import ServicePlan

__all__ = ["become"]


def become(plan: ServicePlan) -> NoReturn:
    """Replaces this process by one that serves by the plan; its arguments are still shown."""
    with _handed_over() as handed:
        handed.write(plan.to_json().encode())
        handed.flush()
        # Inherited, and never in the place of a standard stream that is closed.
        number = fcntl.fcntl(handed.fileno(), fcntl.F_DUPFD, 3)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        # glibc reads it at the start alone; its own bound, 8 a core, costs memory for no time.
        os.environ.setdefault("MALLOC_ARENA_MAX", str(max(2, plan.threads)))
        program = [sys.executable, *_flags(), "-m", __name__, str(number), *sys.argv]
        os.execv(sys.executable, program)


def _handed_over() -> IO[bytes]:
    try:
        return open(os.memfd_create("labeler-plan"), "w+b")  # needs no folder to write in
    except (AttributeError, OSError):  # Linux alone has it, and may be told to refuse it
        return tempfile.TemporaryFile()


def _flags() -> list[str]:
    """The interpreter finds its modules where this one does, the folder it is started in aside."""
    if sys.flags.isolated:
        return ["-I"]
    wanted = {
        "-P": not os.path.samefile(".", Path(__file__).parents[2]),
        "-E": sys.flags.ignore_environment,
        "-s": sys.flags.no_user_site,
    }
    return [flag for flag, is_wanted in wanted.items() if is_wanted]


def _serve() -> int:
    with suppress(OSError):  # as the script is called where processes are listed, on Linux
        Path("/proc/self/comm").write_text("labeler", encoding="ascii")
    with open(int(sys.argv[1]), "rb") as handed:
        handed.seek(0)
        plan = ServicePlan.from_json(handed.read().decode())

    from labeler import service

    return service.serve(plan)


if __name__ == "__main__":
    run_to_end(_serve)
