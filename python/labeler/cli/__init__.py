"""The command line: one file a command, each thin: read arguments, call, print.

`main` is what the script `labeler` calls. Its commands need the extra `serve`; a robot's client is
installed without it, and is told so in one line.
"""

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Runs the command of `sys.argv` and exits with its code; 1 where the extra is missing."""
    try:
        from labeler.cli.app import app_for, run

        app = app_for(sys.argv[1:])
    except ModuleNotFoundError as missing:
        if (missing.name or "labeler").partition(".")[0] == "labeler":
            raise
        hint = "the command line needs more than the client: pip install 'labeler[serve]'"
        sys.exit(f"labeler: {missing.name} is not installed; {hint}")
    run(app)
