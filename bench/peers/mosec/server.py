"""mosec, a worker of its own with the packaged model behind its HTTP server.

A row's raw bytes in, JSON out, at `/predict`. `--batch-rows N`: at most so many rows in a batch,
which waits 1 ms for them. `--workers N`: so many of them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import packaged_model
from mosec import Server, Worker

WAIT_MS_MAX = 1
MODEL = "PEER_MODEL"


class Labels(Worker):  # type: ignore[misc]
    """Labels a row, or each row of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self._model = packaged_model.PackagedModel(Path(os.environ[MODEL]))

    def deserialize(self, data: bytes) -> Any:
        """The row."""
        return np.frombuffer(data, np.float32)

    def forward(self, data: Any) -> Any:
        """The label and score of a row; where rows come as a list, a list of them."""
        if not isinstance(data, list):
            return self._labelled(data[np.newaxis])[0]
        return self._labelled(np.stack(data))

    def _labelled(self, rows: Any) -> list[dict[str, Any]]:
        scores = self._model.scores(rows)
        found = zip(scores.argmax(axis=1).tolist(), scores.max(axis=1).tolist(), strict=True)
        return [{"label": self._model.labels[i], "confidence": score} for i, score in found]


def tell_when_ready(address: str) -> None:
    """Prints the line once a row is answered."""
    row = np.full(24, 2.5, np.float32).tobytes()
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}/predict", data=row, timeout=1):
                break
        except OSError:
            time.sleep(0.05)
    print(f"serving {address}", flush=True)


def main() -> None:
    """Serves until a signal ends it."""
    parser = packaged_model.arguments()
    parser.add_argument("--batch-rows", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    os.environ[MODEL] = str(options.model)  # for the worker, a process of its own
    # mosec reads its settings from the command line, and would read `--address` as a host.
    sys.argv[1:] = ["--address", host, "--port", port, "--log-level", "warning"]
    threading.Thread(target=tell_when_ready, args=(options.address,), daemon=True).start()
    server = Server()
    server.append_worker(
        Labels,
        num=options.workers,
        max_batch_size=options.batch_rows,
        max_wait_time=WAIT_MS_MAX,
        route="/predict",
    )
    server.run()


if __name__ == "__main__":
    main()
