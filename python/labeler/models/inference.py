"""ONNX Runtime as the service runs it: one thread, in order, no spinning.

The only place in Python that makes an `InferenceSession`, so that no other one follows the host's
cores. Used to evaluate and package models; the label path has its own in Rust.
"""

import time
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime

__all__ = ["Rows", "Scores", "open_session", "run", "run_us"]

Rows: TypeAlias = npt.NDArray[np.float32]
"""Float32 `[rows, width]`."""

Scores: TypeAlias = npt.NDArray[np.float32]
"""Float32 `[rows, labels]`."""


def open_session(model: bytes) -> onnxruntime.InferenceSession:
    """A session of the model file's bytes, on the CPU, with the options of the label path."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, rows: Rows) -> Scores:
    """Scores `[rows, labels]` of the session's first output for its only input."""
    (name,) = (tensor.name for tensor in session.get_inputs())
    scores: Scores = session.run([session.get_outputs()[0].name], {name: rows})[0]
    return scores


def run_us(session: onnxruntime.InferenceSession, rows: Rows) -> float:
    """CPU time of one run in µs: the best of 15 rounds, Python's share of the call included.

    One thread does all the work, so on an idle machine it is the time too; the best round is the
    one that other programs disturbed least.
    """
    repeats = 200
    run(session, rows)
    rounds = []
    for _ in range(15):
        start_ns = time.thread_time_ns()
        for _ in range(repeats):
            run(session, rows)
        rounds.append((time.thread_time_ns() - start_ns) / 1_000 / repeats)
    return round(min(rounds), 1)
