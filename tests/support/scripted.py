"""A label service that answers as a test tells it to, and counts what reaches it.

For what the real one can't be told to do: stay silent, refuse on command, end a stream.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from types import TracebackType
from typing import Any, Self

import grpc

from labeler.v1 import label_pb2, label_pb2_grpc, types_pb2

Answer = label_pb2.LabelResponse | types_pb2.Error | None
Script = Callable[[label_pb2.LabelRequest], Answer]
CODES = {code.value[0]: code for code in grpc.StatusCode}


def a_label(request: label_pb2.LabelRequest) -> Answer:
    """The script of a service in good health."""
    return label_pb2.LabelResponse(sequence=request.sequence, label="Move-Forward")


class ScriptedServer(label_pb2_grpc.LabelServiceServicer):
    """Serves on a free loopback port; the script makes an answer, an error, or None for silence."""

    def __init__(self, script: Script = a_label) -> None:
        """Begins to serve."""
        self.script = script
        self.received: list[label_pb2.LabelRequest] = []
        self.streams_open = 0
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        label_pb2_grpc.add_LabelServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops at once."""
        self._server.stop(0).wait(10)

    def Label(self, request: label_pb2.LabelRequest, context: Any) -> label_pb2.LabelResponse:
        """Answers by the script; silent ones stay open until their caller leaves."""
        answer = self._answer(request)
        if answer is None:
            left = threading.Event()
            if context.add_callback(left.set):
                left.wait(30)
            context.abort(grpc.StatusCode.CANCELLED, "the caller left")
        if isinstance(answer, types_pb2.Error):
            _abort(context, answer)
        assert isinstance(answer, label_pb2.LabelResponse)
        return answer

    def LabelStream(
        self, requests: Iterator[label_pb2.LabelRequest], context: Any
    ) -> Iterator[label_pb2.LabelStreamResponse]:
        """Answers each by the script; an error with code UNAVAILABLE ends the stream."""
        with self._lock:
            self.streams_open += 1
        context.add_callback(self._stream_left)
        for request in requests:
            answer = self._answer(request)
            if isinstance(answer, label_pb2.LabelResponse):
                yield label_pb2.LabelStreamResponse(sequence=request.sequence, response=answer)
            elif isinstance(answer, types_pb2.Error):
                if answer.code == grpc.StatusCode.UNAVAILABLE.value[0]:
                    _abort(context, answer)
                yield label_pb2.LabelStreamResponse(sequence=request.sequence, error=answer)

    def _answer(self, request: label_pb2.LabelRequest) -> Answer:
        with self._lock:
            self.received.append(request)
        return self.script(request)

    def _stream_left(self) -> None:
        with self._lock:
            self.streams_open -= 1


def _abort(context: Any, error: types_pb2.Error) -> None:
    """Ends the call with the error in the trailers, as the service does."""
    details = types_pb2.StatusDetails(code=error.code, message=error.message)
    details.details.add().Pack(error)
    context.set_trailing_metadata((("grpc-status-details-bin", details.SerializeToString()),))
    context.abort(CODES[error.code], error.message)
