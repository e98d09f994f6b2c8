"""The server that a team writes by hand: grpc.aio, ONNX Runtime, labeler's own proto.

`--processes N` shares the port among N of them; `--store` writes each label to DynamoDB before its
answer, by boto3, which blocks. Answers single calls only; keeps nothing, limits nothing.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import boto3  # type: ignore[import-untyped]
import grpc
import packaged_model
import uvloop

from labeler.v1 import label_pb2, label_pb2_grpc, types_pb2


class Service(label_pb2_grpc.LabelServiceServicer):
    """Labels one row a call."""

    def __init__(self, model: packaged_model.PackagedModel, store: Any) -> None:
        self._model, self._store = model, store

    async def Label(self, request: Any, context: Any) -> Any:
        """One payload, one label."""
        index, confidence = self._model.label(request.payload.floats)
        label = self._model.labels[index]
        if self._store:
            item = {"robot_id": {"S": request.robot_id}, "sequence": {"N": str(request.sequence)}}
            self._store.put_item(TableName="labels", Item=item | {"label": {"S": label}})
        return label_pb2.LabelResponse(
            sequence=request.sequence,
            label=label,
            index=index,
            confidence=confidence,
            model=self._model.name,
            version=self._model.version,
            source=types_pb2.SOURCE_MODEL,
            durability=types_pb2.DURABILITY_BUFFERED,
        )


async def serve(options: Any, ready: Any) -> None:
    """Serves for ever; tells `ready` when it listens."""
    store = (
        boto3.client("dynamodb", endpoint_url=os.environ["STORE_URL"]) if options.store else None
    )
    server = grpc.aio.server(options=[("grpc.so_reuseport", 1)])
    service = Service(packaged_model.PackagedModel(options.model), store)
    label_pb2_grpc.add_LabelServiceServicer_to_server(service, server)
    server.add_insecure_port(options.address)
    await server.start()
    ready.release()
    await server.wait_for_termination()


def main() -> None:
    """Serves until it is ended."""
    parser = packaged_model.arguments()
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args()
    # gRPC does not survive a fork: each process begins anew.
    context = multiprocessing.get_context("spawn")
    ready = context.Semaphore(0)
    workers = [
        context.Process(target=work, args=(options, ready), daemon=True)
        for _ in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    print(f"serving {options.address}", flush=True)
    for worker in workers:
        worker.join()


def work(options: Any, ready: Any) -> None:
    """One process's life."""
    uvloop.run(serve(options, ready))


if __name__ == "__main__":
    main()
