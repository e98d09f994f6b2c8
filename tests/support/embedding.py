"""A program that has the label path inside and leaves in one of many ways: run as a program.

`embedding.py STATE_DIR WAY` prints the address that the core listens on, waits for a line (or a
signal), and leaves. Nothing in it stops the engine: that is what is tested.
"""

import sys
import threading
from collections.abc import Callable

from labeler._core import Engine
from labeler.config import Sources, core_json, load

CODES = {
    "return": 0,
    "sys.exit": 3,
    "exception": 1,
    "sigterm": 0,
    "sigint": -2,
    "daemon threads": 0,
    "daemon threads exception": 1,
    "last reference": 0,
}
"""Ways to leave, and how each ends: an exit code, or minus the signal that Python dies of."""


def forever(call: Callable[[], object]) -> None:
    """Threads that Python does not wait for: where the interpreter ends they are in the core."""
    threading.Thread(target=lambda: [call() for _ in iter(int, 1)], daemon=True).start()


def deliver(engine: Engine) -> None:
    """What the writer does."""
    rows = engine.take_records(100, 1 << 20, 50)
    engine.confirm([row[-1] for row in rows], "stored")


def main() -> None:
    """Starts, says where, leaves."""
    state_dir, way = sys.argv[1:]
    settings = (
        f"state_dir={state_dir}",
        "transport.grpc_address=127.0.0.1:0",
        # What is acknowledged from memory alone is on disk only if somebody closes the journal.
        "journal.commit_gap_us_min=1000000",
    )
    engine = Engine.start(core_json(load(Sources(flags=[("--set", each) for each in settings]))))
    print(engine.grpc_address(), flush=True)
    if way.startswith("daemon threads"):
        threading.excepthook = lambda _: None  # each of them ends by `StoppedError`
        forever(lambda: deliver(engine))
        forever(lambda: engine.take_control(8, 50))
        forever(engine.snapshot)
        forever(engine.stages)
    if way.startswith("sig"):
        while engine.wait_state(1000) == "serving":
            pass
        return
    sys.stdin.readline()
    if way == "sys.exit":
        sys.exit(CODES[way])
    if way == "last reference":
        del engine
    if way.endswith("exception"):
        raise RuntimeError("on purpose")


if __name__ == "__main__":
    main()
