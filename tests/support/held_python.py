"""`labeler serve` whose Python stands still on command: run as a program in its place.

`held_python.py FIFO COMMAND serve …`: for each line in the FIFO, a number of milliseconds, the
interpreter is held for so long (a call that keeps the GIL); the file FIFO.told has one more line
before and one more after. SIGSTOP would stop the label path too; this stops Python alone.
"""

import ctypes
import sys
import threading
from pathlib import Path

from labeler.cli import main


def hold_on_command(fifo: Path) -> None:
    """Holds the GIL as the FIFO says, and tells when it does and when it has let go."""
    hold = ctypes.PyDLL(None).poll  # unlike CDLL, a call through PyDLL keeps the GIL
    told = fifo.with_suffix(".told").open("a", buffering=1)
    while True:
        for line in fifo.read_text().split():
            told.write("held\n")
            hold(None, 0, int(line))
            told.write("let go\n")


if __name__ == "__main__":
    threading.Thread(target=hold_on_command, args=(Path(sys.argv[1]),), daemon=True).start()
    sys.argv = sys.argv[2:]
    main()
