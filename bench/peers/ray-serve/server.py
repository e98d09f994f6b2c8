"""Ray Serve on a Ray of its own, one replica with the model; JSON in and out at `/predict`."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import packaged_model

IN_FLIGHT_MAX = 256


class Labels:
    """Labels one row a call."""

    def __init__(self, folder: str) -> None:
        self._model = packaged_model.PackagedModel(Path(folder))

    async def __call__(self, request: Any) -> Any:
        """The label by its name, and its score."""
        index, confidence = self._model.label((await request.json())["values"])
        return {"label": self._model.labels[index], "confidence": confidence}


def wait_until_ready(address: str) -> None:
    """Returns once a row is answered."""
    row = json.dumps({"values": [2.5] * 24}).encode()
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}/predict", data=row, timeout=1):
                return
        except OSError:
            time.sleep(0.05)


def main() -> None:
    """Serves until a signal ends it."""
    options = packaged_model.arguments().parse_args()
    host, _, port = options.address.rpartition(":")
    # Ray reads these when it is imported, in each of its processes.
    os.environ |= {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    import ray
    from ray import serve

    ray.init(
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=tempfile.gettempdir(),
    )
    serve.start(
        proxy_location="HeadOnly",
        http_options=serve.HTTPOptions(host=host, port=int(port)),
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )
    labels = serve.deployment(max_ongoing_requests=IN_FLIGHT_MAX)(Labels)
    serve.run(labels.bind(str(options.model)), route_prefix="/predict")
    wait_until_ready(options.address)
    print(f"serving {options.address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
