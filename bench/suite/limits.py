"""The limit of computing: ONNX Runtime in a bare loop, with nothing around it, in one process.

`python -m bench.suite.limits` is that process; it prints µs a row by rows at once. Knows no server,
and answers nobody. The limits of the network (the bare echo) and of the disk (fdatasync) are
measured beside the runs, in `measure`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping

from bench.suite.peers import MODEL, ROOT

__all__ = ["main", "ort_us_per_row"]

_ROWS = (1, 32)
_ROUNDS, _RUNS = 20, 200
_LOOP_S = 60.0


def ort_us_per_row() -> Mapping[str, float]:
    """µs a row by rows at once, the median of 20 times 200 runs of the packaged int8 model."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.suite.limits"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_LOOP_S,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """The loop."""
    import numpy as np

    from bench.peers.packaged_model import PackagedModel

    model = PackagedModel(MODEL)
    found = {}
    for rows in _ROWS:
        values = np.random.default_rng(7).uniform(0.5, 5, (rows, model.width)).astype(np.float32)
        times_us = []
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            for _ in range(_RUNS):
                model.scores(values)
            times_us.append((time.perf_counter() - begin) / _RUNS / rows * 1e6)
        found[rows] = statistics.median(times_us)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
