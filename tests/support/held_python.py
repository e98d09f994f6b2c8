"""`labeler serve` whose Python stands still on command: run as a program in its place.

`held_python.py FIFO COMMAND serve …`: for each line in the FIFO, a number of milliseconds, the
interpreter is held for so long (a call that keeps the GIL); the file FIFO.told has one more line
before and one more after. SIGSTOP would stop the label path too; this stops Python alone.

The process that serves is another program, which the command becomes: that one is run here again.
"""

import ctypes
import os
import runpy
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from labeler.cli import main

execute = os.execv


def hold_on_command(fifo: Path) -> None:
    """Holds the GIL as the FIFO says, and tells when it does and when it has let go."""
    hold = ctypes.PyDLL(None).poll  # unlike CDLL, a call through PyDLL keeps the GIL
    told = fifo.with_suffix(".told").open("a", buffering=1)
    while True:
        for line in fifo.read_text().split():
            told.write("held\n")
            hold(None, 0, int(line))
            told.write("let go\n")


def held(program: str, words: Sequence[str]) -> NoReturn:
    """Becomes the module that was to be run, held too."""
    execute(program, [program, "-P", __file__, sys.argv[0], *words[words.index("-m") :]])


if __name__ == "__main__":
    fifo, command, *arguments = sys.argv[1:]
    if command == "-m":
        threading.Thread(target=hold_on_command, args=(Path(fifo),), daemon=True).start()
        module, *sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        os.execv = held  # type: ignore[assignment]
        sys.argv = [fifo, *arguments]
        main()
