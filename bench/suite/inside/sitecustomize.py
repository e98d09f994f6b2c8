"""Lets a Python process burn on demand: on its path, a file named by BENCH_BURN says when.

Python imports a module of this name at each start. Does nothing else, and nothing where the
variable is not set.
"""

import mmap
import os
import sys
import threading
import time

_IDLE_S = 0.02


def burn_while(said: mmap.mmap) -> None:
    """Forever: while the first byte is 1, runs Python and never lets the GIL go."""
    usual_s = sys.getswitchinterval()
    while True:
        if said[0]:
            # Whoever asks for the GIL waits so long before this thread is told to let it go.
            sys.setswitchinterval(3600)
            while said[0]:
                pass
            sys.setswitchinterval(usual_s)
        time.sleep(_IDLE_S)


if path := os.environ.get("BENCH_BURN"):
    with open(path, "rb") as file:
        shared = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    threading.Thread(target=burn_while, args=(shared,), name="burn", daemon=True).start()
