"""LitServe: FastAPI in a process, the packaged model in another; JSON in and out at `/predict`.

`--workers N`: so many of both. `--batch-rows N`: at most so many rows in a batch, which waits 1 ms.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import packaged_model

# With its default, 0, a worker that batches asks an empty queue again and again, on a whole core.
WAIT_S_MAX = 0.001


class Labels(litserve.LitAPI):  # type: ignore[misc]
    """Labels a row, or each row of a batch."""

    def __init__(self, folder: Path, batch_rows: int) -> None:
        super().__init__(max_batch_size=batch_rows, batch_timeout=WAIT_S_MAX)
        self._folder = folder

    def setup(self, device: Any) -> None:
        """Loads the packaged model, in the worker."""
        self._model = packaged_model.PackagedModel(self._folder)

    def decode_request(self, request):  # type: ignore[no-untyped-def]
        """The row. FastAPI would read an annotation here as one of a query's parameters."""
        return request["values"]

    def predict(self, values: Any) -> Any:
        """A row's label by index and its score; of a batch a list of them."""
        if not isinstance(values[0], list):
            return self._model.label(values)
        scores = self._model.scores(np.asarray(values, np.float32))
        return list(zip(scores.argmax(axis=1).tolist(), scores.max(axis=1).tolist(), strict=True))

    def encode_response(self, output: Any) -> Any:
        """The label by its name."""
        index, confidence = output
        return {"label": self._model.labels[index], "confidence": confidence}


def tell_when_ready(address: str) -> None:
    """Prints the line once a row is answered."""
    row = json.dumps({"values": [2.5] * 24}).encode()
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}/predict", data=row, headers=head)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=1):
                break
        except OSError:
            time.sleep(0.05)
    print(f"serving {address}", flush=True)


def main() -> None:
    """Serves until a signal ends it."""
    parser = packaged_model.arguments()
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch-rows", type=int, default=1)
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    server = litserve.LitServer(
        Labels(options.model, options.batch_rows),
        accelerator="cpu",
        workers_per_device=options.workers,
        fast_queue=True,
        disable_openapi_url=True,
    )
    threading.Thread(target=tell_when_ready, args=(options.address,), daemon=True).start()
    server.run(host=host, port=int(port), generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
