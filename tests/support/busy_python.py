"""A service whose Python never lets the GIL go and never answers: run as a program.

`busy_python.py STATE_DIR [SETTING…]` prints the address that the core listens on, then burns.
"""

import sys

from labeler._core import Engine
from labeler.config import Sources, core_json, load


def main() -> None:
    """Starts the label path alone, with the control side's thread as busy as can be."""
    settings = f"state_dir={sys.argv[1]}", "transport.grpc_address=127.0.0.1:0", *sys.argv[2:]
    config = load(Sources(flags=[("--set", setting) for setting in settings]))
    # A long switch interval keeps the GIL with the loop, whatever else asks for it.
    sys.setswitchinterval(3600)
    engine = Engine.start(core_json(config))
    print(engine.grpc_address(), flush=True)
    while True:
        pass


if __name__ == "__main__":
    main()
