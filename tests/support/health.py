"""Watches the standard health service, as a load balancer does."""

import threading
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_NAMES = dict(health_pb2.HealthCheckResponse.ServingStatus.items())


class HealthWatch:
    """The states that `Health/Watch` tells, in their order; `ENDED` at the stream's end."""

    def __init__(self, address: str, service: str = "") -> None:
        """Begins to watch. `service`: "" means ready for labels."""
        self.states: list[str] = []
        self._channel = grpc.insecure_channel(address)
        request = health_pb2.HealthCheckRequest(service=service)
        self._call = health_pb2_grpc.HealthStub(self._channel).Watch(request, timeout=120)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Starts the thread that listens."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the watch."""
        self._call.cancel()
        self._thread.join(10)
        self._channel.close()

    def _run(self) -> None:
        names = {number: name for name, number in _NAMES.items()}
        try:
            for update in self._call:
                self.states.append(names[update.status])
        except grpc.RpcError:
            pass
        self.states.append("ENDED")
