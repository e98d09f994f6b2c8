"""Whether this process may use its state directory: asked once, before anything is opened in it.

A volume that belongs to someone else is the usual first start in a container, so the message has
the setting, the path, who we are, whose it is, and what to do. Makes the directory if it is
missing; changes nothing else, and never falls back to another place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from labeler.errors import DiskError

__all__ = ["check"]

_OURS = (
    *("instance_id", "labels.sqlite3*", "dead_letters.sqlite3*"),
    *("journal", "journal/lock", "journal/segment-*.log*", "journal/quarantine"),
)


def check(directory: Path) -> None:
    """Makes `directory` if need be. Errors: `DiskError` (exit code 74) naming what is in the way.

    Looks at the directory and at what the service has made in it, never at anything else: a volume
    has a `lost+found` of root.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(directory, _nearest(directory), error.strerror or str(error)) from error
    for path in (directory, *_ours(directory)):
        if not _usable(path):
            raise _refused(directory, path, "permission denied")


def _ours(directory: Path) -> Iterator[Path]:
    for pattern in _OURS:
        # A folder that cannot be read gives nothing: it stands before what is in it.
        yield from sorted(directory.glob(pattern))


def _usable(path: Path) -> bool:
    mode = os.R_OK | os.W_OK
    if path.is_dir():
        mode |= os.X_OK
    # One that is gone by now, such as a segment that was deleted, is in nobody's way.
    return os.access(path, mode, effective_ids=True) or not os.path.lexists(path)


def _nearest(directory: Path) -> Path:
    """The deepest part of the path that exists: whoever may not enter it cannot see further."""
    for path in (directory, *directory.parents):
        try:
            if path.exists():
                return path
        except OSError:
            continue
    return directory


def _refused(directory: Path, path: Path, why: str) -> DiskError:
    return DiskError(
        f"state_dir = {directory}: user {os.geteuid()} (group {os.getegid()}) cannot use {path}: "
        f"{why}; {_remedy(directory, path)}, or set state_dir (--state-dir) to a directory that "
        "this user may read and write"
    )


def _remedy(directory: Path, path: Path) -> str:
    try:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return "its file system is read-only: mount it for writing"
        found = path.stat()
    except OSError:
        return "make it reachable for this user"
    if not path.is_dir() and path in (directory, *directory.parents):
        return "it is not a directory: move it away"
    return (
        f"it belongs to user {found.st_uid} (group {found.st_gid}), mode "
        f"{found.st_mode & 0o7777:04o}: chown -R {os.geteuid()} {directory} (in Kubernetes "
        f"securityContext.fsGroup)"
    )
