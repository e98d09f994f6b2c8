"""LitServe: FastAPI in a process, the packaged model in another; JSON in and out at `/predict`.

`--workers N`: so many of both.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import litserve
import packaged_model


class Labels(litserve.LitAPI):  # type: ignore[misc]
    """Labels one row a call."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def setup(self, device: Any) -> None:
        """Loads the packaged model, in the worker."""
        self._model = packaged_model.PackagedModel(self._folder)

    def decode_request(self, request):  # type: ignore[no-untyped-def]
        """The row. FastAPI would read an annotation here as one of a query's parameters."""
        return request["values"]

    def predict(self, values: Any) -> Any:
        """Its label's index and score."""
        return self._model.label(values)

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
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    server = litserve.LitServer(
        Labels(options.model),
        accelerator="cpu",
        workers_per_device=options.workers,
        fast_queue=True,
        disable_openapi_url=True,
    )
    threading.Thread(target=tell_when_ready, args=(options.address,), daemon=True).start()
    server.run(host=host, port=int(port), generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
