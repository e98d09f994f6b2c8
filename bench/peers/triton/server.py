"""Triton from PyTriton's wheel, with the packaged model as the function that it calls with batches.

Answers the open inference protocol over gRPC at the address. Its HTTP port serves PyTriton alone.
"""

from __future__ import annotations

import os
import sysconfig
from typing import Any

import numpy as np
import packaged_model
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

BATCH_ROWS_MAX = 64


def main() -> None:
    """Serves until a signal ends it."""
    host, port, folder = packaged_model.address_and_model()
    # Triton starts an interpreter of its own, which has to load this one's library.
    libraries = [str(sysconfig.get_config_var("LIBDIR")), os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
    model = packaged_model.PackagedModel(folder)

    @batch  # type: ignore[untyped-decorator]
    def infer(input: Any) -> Any:
        return {"scores": model.scores(input)}

    config = TritonConfig(
        grpc_address=host,
        grpc_port=port,
        http_address=host,
        http_port=packaged_model.free_port(),
        allow_metrics=False,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name=model.name,
            infer_func=infer,
            inputs=[Tensor(name="input", dtype=np.float32, shape=(model.width,))],
            outputs=[Tensor(name="scores", dtype=np.float32, shape=(len(model.labels),))],
            config=ModelConfig(max_batch_size=BATCH_ROWS_MAX, batcher=DynamicBatcher()),
        )
        triton.run()
        print(f"serving {host}:{port}", flush=True)
        triton.serve()


if __name__ == "__main__":
    main()
