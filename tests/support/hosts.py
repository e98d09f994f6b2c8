"""A hosts file of one's own for a service, in which a name comes and goes: DNS that fails.

In a mount namespace, where no server is asked for names. Without the right to make one the test is
skipped loudly; `LABELER_REQUIRE_MOUNT=1` turns that into a failure.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.faulty_disk import refuse_or_skip

_ENTER = (
    'mount --bind "$0" /etc/hosts && mount --bind "$1" /etc/nsswitch.conf && shift && exec "$@"'
)


class Hosts:
    """Knows no name at first, not even localhost's; services that start with `prefix` ask it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._file, only_files = folder / "hosts", folder / "nsswitch.conf"
        self._file.touch()
        only_files.write_text("hosts: files\n")
        self.prefix = (
            *("unshare", "--mount", "--propagation", "private"),
            *("sh", "-c", _ENTER, str(self._file), str(only_files)),
        )
        tried = subprocess.run([*self.prefix, "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            refuse_or_skip("LABELER_REQUIRE_MOUNT", f"no right to mount: {tried.stderr.strip()}")

    def knows(self, name: str, address: str = "127.0.0.1") -> None:
        """From now on the name has an address."""
        self._file.write_text(f"{address} {name}\n")  # in place: a new file would not be mounted

    def forgets(self) -> None:
        """From now on no name has one."""
        self._file.write_text("")
