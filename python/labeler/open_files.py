"""The limit on open files: raised to the hard limit at start, and how many this service may need.

Each connection is a file; the journal, SQLite, models and logs take `OPEN_FILES_RESERVE` more.
"""

from __future__ import annotations

import sys

__all__ = ["OPEN_FILES_RESERVE", "raise_limit"]

OPEN_FILES_RESERVE = 256
"""Files beside connections: journal segments, SQLite, models, sockets of the admin side."""

_UNLIMITED = 1 << 30


def raise_limit() -> int | None:
    """Raises the soft limit to the hard one; the limit now, None where the system has none."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # macOS refuses "unlimited": what was there stays
            pass
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft
