"""Runs `labeler serve` as a demo's child, which ends when its parent does, even by SIGKILL.

`python -m labeler.cli.demo_child PARENT serve …`. Where the system can't tell a parent's end
(only Linux can), the child is ended by the demo's own clean-up alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

from labeler.cli import main

_PR_SET_PDEATHSIG = 1


def run() -> NoReturn:
    """Asks for SIGTERM at the parent's end, then becomes the command line."""
    parent = int(sys.argv.pop(1))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before it could be asked for
            sys.exit(0)
    main()


if __name__ == "__main__":
    run()
