"""The sender against servers that are not labeler: the open inference protocol, more processes.

The server is gRPC's own, which takes and gives bytes; what they mean is written down here a second
time, from the specification.
"""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from tests.support.sending import run, sender

WIDTH = 24
NAMES = ["go", "slow", "stop"]


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def answered(scores: list[float], raw: bool) -> bytes:
    """A `ModelInferResponse` with the model's name and one output, in either of its forms."""
    values = struct.pack(f"<{len(scores)}f", *scores)
    output = field(1, b"scores") + field(2, b"FP32") + field(3, bytes([1, len(scores)]))
    if raw:
        return field(1, b"m") + field(5, output) + field(6, values)
    return field(1, b"m") + field(5, output + field(5, field(6, values)))


@contextmanager
def inferring(answer: bytes | grpc.StatusCode, came: list[bytes]) -> Iterator[str]:
    """A server of `ModelInfer` alone, which keeps what came."""

    def infer(request: bytes, context: grpc.ServicerContext) -> bytes:
        came.append(request)
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "as told")
        return answer

    handlers: dict[str, Any] = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("raw", [True, False])
def test_a_reply_of_the_open_inference_protocol_is_the_label_of_its_highest_score(
    raw: bool,
) -> None:
    with inferring(answered([0.1, 0.2, 0.7], raw), []) as address:
        made = sender(address, rpc="kserve_infer", model="m", labels=NAMES, rows="fed")
        rows = np.full((200, WIDTH), 2.5, "<f4")
        made.feed(rows.tobytes(), np.array([2] * 100 + [0] * 100, "<i2").tobytes(), b"")
        made.end_feed()
        result = run(made)
    assert (result["answered"], result["errors"]) == (200, {})
    assert (result["judged"], result["correct"]) == (200, 100)
    assert result["by_label"]["go"] == {"stop": 100}
    assert result["models"] == {"m ": 200}
    assert result["latency_us"]["count"] == 200


def test_a_request_of_the_open_inference_protocol_has_the_row_as_raw_bytes() -> None:
    came: list[bytes] = []
    with inferring(answered([1.0], True), came) as address:
        made = sender(address, rpc="kserve_infer", model="m", rows="fed")
        rows = np.arange(200 * WIDTH, dtype="<f4").reshape(200, WIDTH)
        made.feed(rows.tobytes(), np.full(200, -1, "<i2").tobytes(), b"")
        made.end_feed()
        run(made)
    tensor = field(5, field(1, b"input") + field(2, b"FP32") + field(3, bytes([1, WIDTH])))
    ends = {tensor + field(7, row.tobytes()) for row in rows}
    assert all(request.startswith(field(1, b"m")) for request in came)
    assert {request[request.index(tensor) :] for request in came} == ends


@pytest.mark.parametrize("answer", [grpc.StatusCode.NOT_FOUND, b"", field(1, b"m")])
def test_what_is_no_scores_is_counted_as_an_error(answer: bytes | grpc.StatusCode) -> None:
    with inferring(answer, []) as address:
        result = run(sender(address, rpc="kserve_infer", model="m"))
    kind = answer.name if isinstance(answer, grpc.StatusCode) else "INTERNAL"
    assert (result["answered"], result["errors"]) == (0, {kind: 200})


def test_memory_of_a_server_s_other_processes_counts_to_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        with inferring(answered([1.0], True), []) as address:
            plan = {"rpc": "kserve_infer", "server_pid": os.getpid()}
            alone = run(sender(address, **plan))["server"]
            both = run(sender(address, **plan, server_workers=[worker.pid]))["server"]
            gone = run(sender(address, **plan, server_workers=[2**22 + 1]))["server"]
        worker.kill()
    assert alone
    assert both
    assert both["rss_bytes"] > alone["rss_bytes"] > 0
    assert gone is None  # a part of the server would be no figure of it
