"""MLServer in one process, with the packaged model in a runtime of its own.

Answers the open inference protocol over gRPC at the address, and over HTTP at a port that nobody is
told of, which is asked whether the model is ready.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import packaged_model
import uvloop
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse


class Runtime(MLModel):  # type: ignore[misc]
    """Labels the rows of the first input."""

    async def load(self) -> bool:
        """Loads the packaged model."""
        self._packaged = packaged_model.PackagedModel(Path(self.settings.parameters.uri))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """The scores of each row."""
        rows = NumpyCodec.decode_input(payload.inputs[0])
        scores = NumpyCodec.encode_output("scores", self._packaged.scores(rows))
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=[scores])


def tell_when_ready(url: str, address: str) -> None:
    """Prints the line once the model answers."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1):
                break
        except OSError:
            time.sleep(0.05)
    print(f"serving {address}", flush=True)


async def serve(host: str, port: int, folder: Path) -> None:
    """Serves until a signal ends it."""
    http_port = packaged_model.free_port()
    settings = Settings(
        debug=False,
        parallel_workers=0,
        host=host,
        grpc_port=port,
        http_port=http_port,
        metrics_endpoint=None,
    )
    version = ModelParameters(uri=str(folder), version=folder.name)
    model: Any = ModelSettings(name=folder.parent.name, implementation=Runtime, parameters=version)
    ready = f"http://{host}:{http_port}/v2/models/{folder.parent.name}/ready"
    threading.Thread(target=tell_when_ready, args=(ready, f"{host}:{port}"), daemon=True).start()
    await MLServer(settings).start([model])


if __name__ == "__main__":
    uvloop.run(serve(*packaged_model.address_and_model()))
