"""The packaged int8 model as every peer loads it: the same file, the same threads, the same names.

Knows no server. Runs in a peer's own environment, which has numpy and ONNX Runtime and not labeler.
"""

from __future__ import annotations

import argparse
import socket
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

__all__ = ["PackagedModel", "address_and_model", "arguments", "free_port"]


class PackagedModel:
    """Rows in, indices and scores out."""

    def __init__(self, folder: Path) -> None:
        """Loads the int8 file of a version's folder, with one thread."""
        described = tomllib.loads((folder / "model.toml").read_text(encoding="utf-8"))
        [file] = [f["path"] for f in described["files"] if f["precision"] == "int8"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.name: str = described["name"]
        self.version: str = described["version"]
        self.labels: list[str] = described["labels"]
        self.width: int = described["width"]
        self._input, self._output = described["input"], [described["output"]]
        self._session = onnxruntime.InferenceSession(
            str(folder / file), options, providers=["CPUExecutionProvider"]
        )

    def scores(self, rows: Any) -> Any:
        """Of float32 rows (rows × width) the scores (rows × labels)."""
        [scores] = self._session.run(self._output, {self._input: rows})
        return scores

    def label(self, values: Sequence[float]) -> tuple[int, float]:
        """Of one row the label's index and its score."""
        [scores] = self.scores(np.asarray([values], np.float32))
        index = int(scores.argmax())
        return index, float(scores[index])


def arguments() -> argparse.ArgumentParser:
    """What every peer's server.py takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True, help="HOST:PORT")
    parser.add_argument("--model", required=True, type=Path, help="a version's folder")
    return parser


def address_and_model() -> tuple[str, int, Path]:
    """Host, port and folder, for a server that takes nothing else."""
    options = arguments().parse_args()
    host, _, port = options.address.rpartition(":")
    return host, int(port), options.model


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
