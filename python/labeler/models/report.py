"""The report inside a package: what a model reached, on what split, beside what, and how fast.

Every figure is measured here on the ONNX files through ONNX Runtime, or says where it comes from.
`docs/models.md` documents the fields.
"""

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version as installed
from typing import Any

import numpy as np

from labeler.models.data import Table
from labeler.models.evaluate import (
    ACCURACY_KEPT_MIN,
    Evaluation,
    Gate,
    Models,
    figures,
    truth_of,
)
from labeler.models.inference import Rows, open_session, run_us
from labeler.models.quantise import CALIBRATION, steps_of

__all__ = ["REPORT_FORMAT", "Told", "report_of"]

REPORT_FORMAT = 1
_BATCHES = (1, 32, 256)
_LIBRARIES = ("numpy", "onnx", "onnxruntime", "scikit-learn")


@dataclass(frozen=True)
class Told:
    """What the report says that is not measured on the models: `baseline` and `cautions`, too."""

    name: str
    version: str
    seed: int
    split: str
    refitted: bool
    baseline: dict[str, Any]
    cautions: Sequence[str]


def report_of(
    told: Told,
    table: Table,
    evaluations: Sequence[Evaluation],
    gates: Sequence[Gate],
    packaged: Models,
) -> dict[str, Any]:
    """The report of the first of `evaluations`; the others are named beside it.

    `gates`: of each evaluation. `packaged`: the files that go into the folder, by precision.
    """
    chosen, gate = evaluations[0], gates[0]
    rows = np.resize(table.rows, (_BATCHES[-1], table.rows.shape[1]))
    return {
        "format": REPORT_FORMAT,
        "model": {
            "name": told.name,
            "version": told.version,
            "family": chosen.family.name,
            "settings": dict(chosen.family.settings),
            "seed": told.seed,
            "precisions": list(packaged),
            "bytes": {name: len(model) for name, model in packaged.items()},
        },
        "split": _split(told, chosen),
        "evaluation": {name: _figures(table, chosen, name) for name in chosen.precisions},
        "int8": _int8(gate, packaged),
        "candidates": [
            {
                "family": one.family.name,
                "int8_passed": passed.passed,
                **{name: _pooled(table, one, name) for name in one.precisions},
            }
            for one, passed in zip(evaluations, gates, strict=True)
        ],
        "baseline": told.baseline,
        "run_cpu_us": {name: _run_us(model, rows) for name, model in packaged.items()},
        "data": _data(table),
        "libraries": {name: installed(name) for name in _LIBRARIES}
        | {"python": platform.python_version()},
        "cautions": list(told.cautions),
    }


def _split(told: Told, chosen: Evaluation) -> dict[str, Any]:
    packaged = "trained again on all rows" if told.refitted else "the one that was judged"
    return {
        "kind": told.split,
        "packaged_model": packaged,
        "folds": [
            {
                "name": one.fold.name,
                "train_rows": len(one.fold.train),
                "test_rows": len(one.fold.test),
            }
            for one in chosen.judged
        ],
    }


def _figures(table: Table, evaluation: Evaluation, precision: str) -> dict[str, Any]:
    """All folds' rows together, then each fold."""
    blocks = [
        {
            "name": one.fold.name,
            **figures(table.labels[one.fold.test], one.scores[precision], table.classes),
        }
        for one in evaluation.judged
    ]
    return {**_pooled(table, evaluation, precision), "blocks": blocks}


def _pooled(table: Table, evaluation: Evaluation, precision: str) -> dict[str, Any]:
    return figures(truth_of(table, evaluation), evaluation.pooled(precision), table.classes)


def _int8(gate: Gate, packaged: Models) -> dict[str, Any]:
    steps = steps_of(packaged["int8"]) if gate.passed else {"int8": [], "float": []}
    return {
        **asdict(gate),
        "accuracy_kept_min": ACCURACY_KEPT_MIN,
        "steps": steps,
        "calibration": CALIBRATION if gate.passed else None,
    }


def _run_us(model: bytes, rows: Rows) -> dict[str, float]:
    """CPU time of a run in µs by rows, one thread, Python's share of the call included."""
    session = open_session(model)
    return {str(count): run_us(session, rows[:count]) for count in _BATCHES}


def _data(table: Table) -> dict[str, Any]:
    counts = np.bincount(table.labels, minlength=len(table.classes))
    return {
        "source": table.source,
        "sha256": table.sha256,
        "rows": len(table.rows),
        "rows_dropped_for_missing_values": table.dropped,
        "columns": list(table.columns),
        "rows_by_label": dict(zip(table.classes, counts.tolist(), strict=True)),
    }
