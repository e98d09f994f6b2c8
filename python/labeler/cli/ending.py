"""How every run of `labeler` ends: errors become exit codes here and nowhere else.

One line that says what to do, never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from labeler.errors import ConfigError, LabelerError, RuntimeLibraryError

__all__ = ["run_to_end"]


def run_to_end(command: Callable[[], int]) -> NoReturn:
    """Runs a command and exits with its code, or with that of its error."""
    code: int | str | None = 1
    try:
        code = command()
    except SystemExit as ending:
        code = ending.code
    except LabelerError as error:
        # A configuration error is a table of its own, with its own headline.
        prefix = "" if isinstance(error, ConfigError) else "labeler: "
        print(f"{prefix}{error.message}", file=sys.stderr)
        code = error.exit_code
        if isinstance(error, RuntimeLibraryError):
            # A library that hangs while it is loaded holds a lock that a normal exit waits for.
            sys.stderr.flush()
            os._exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has left: nothing to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        print(f"labeler: internal error: {_told(error)}; please report it", file=sys.stderr)
    sys.exit(code)


def _told(error: BaseException) -> str:
    """The error with the line that raised it: enough for a report, without a traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}: {error}{where}"
