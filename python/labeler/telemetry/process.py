"""What this process uses of its machine: CPU by kind, memory now and at most."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

__all__ = ["process_facts"]

_STATM = Path("/proc/self/statm")


def process_facts() -> dict[str, int]:
    """`pid`, `cpu_user_us`, `cpu_system_us`, `resident_bytes`, `resident_bytes_max` (its most yet).

    Where the system does not tell the memory in use now, `resident_bytes` is the most yet.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    now = _resident_bytes() or most
    return {
        "pid": os.getpid(),
        "cpu_user_us": int(used.ru_utime * 1e6),
        "cpu_system_us": int(used.ru_stime * 1e6),
        "resident_bytes": now,
        "resident_bytes_max": max(now, most),  # the system notes its most a little later
    }


def _resident_bytes() -> int:
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()
