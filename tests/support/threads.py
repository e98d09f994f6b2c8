"""The threads of a process, as the system names and counts them.

A name is cut to 15 characters. Threads of Python have the name of their process, and so has any
thread until it has first run, which on a busy machine is a while after it was made.
"""

import time
from collections import Counter
from pathlib import Path

from tests.support.waiting import eventually

LABEL_PATH = ("transport", "infer-", "committer")
"""How the names of the threads begin that a label meets on its way."""


def names(pid: int) -> dict[int, str]:
    """The threads of a process: thread id to name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found[int(task.name)] = (task / "comm").read_text().rstrip("\n")
        except OSError:  # it has ended meanwhile
            continue
    return found


def counted(pid: int) -> Counter[str]:
    """How many threads have each name."""
    return Counter(names(pid).values())


def settled(pid: int, quiet_s: float = 0.5) -> Counter[str]:
    """How many threads have each name, once that has stayed the same for `quiet_s` seconds."""
    seen = counted(pid)
    since_s = time.monotonic()

    def quiet() -> bool:
        nonlocal seen, since_s
        now = counted(pid)
        if now != seen:
            seen, since_s = now, time.monotonic()
        return time.monotonic() - since_s > quiet_s

    eventually(quiet, timeout_s=60)
    return seen


def nice(pid: int) -> dict[int, int]:
    """How far each thread steps back for others: thread id to its nice value."""
    found = {}
    for thread in names(pid):
        try:
            stat = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
        except OSError:
            continue
        found[thread] = int(stat.rpartition(")")[2].split()[16])
    return found


def on_the_label_path(name: str) -> bool:
    """Whether a label meets the thread of this name."""
    return name.startswith(LABEL_PATH)


def switches(pid: int) -> int:
    """How often threads of the process have gone to sleep and been woken again."""
    total = 0
    for thread in names(pid):
        try:
            status = Path(f"/proc/{pid}/task/{thread}/status").read_text()
        except OSError:
            continue
        [line] = [line for line in status.splitlines() if line.startswith("voluntary_ctxt")]
        total += int(line.split()[1])
    return total
