"""How good a model is on rows it has never seen, and whether its int8 form is as good.

Each fold's model is trained, exported, quantised and run as it would be served; what is measured is
the ONNX file through ONNX Runtime, never the library's own prediction. Packages nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, f1_score, recall_score, roc_auc_score

from labeler.models.data import Labels, Table
from labeler.models.errors import TrainingError
from labeler.models.inference import Rows, Scores, open_session, run
from labeler.models.quantise import can_quantise, quantise
from labeler.models.splits import Fold, Indices

__all__ = [
    "ACCURACY_KEPT_MIN",
    "Evaluation",
    "Family",
    "Gate",
    "Models",
    "evaluate",
    "figures",
    "gate",
    "train_models",
    "truth_of",
]

ACCURACY_KEPT_MIN = 0.999
"""What int8 must keep of fp32's accuracy on held-out rows."""

Models = dict[str, bytes]
"""ONNX files by precision, `int8` first where there is one."""


@dataclass(frozen=True)
class Family:
    """A kind of model. `train(rows, labels, labels_total, seed)` gives an fp32 ONNX file.

    `settings`: what it is trained with, for the report.
    """

    name: str
    train: Callable[[Rows, Labels, int, int], bytes]
    settings: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Judged:
    """Scores `[test rows, labels]` of one fold by precision."""

    fold: Fold
    scores: dict[str, Scores]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a family reached on the folds. `models`: of the last fold, with its training rows."""

    family: Family
    judged: list[Judged]
    models: tuple[Indices, Models] = field(repr=False)

    def pooled(self, precision: str) -> Scores:
        """Scores of all folds' test rows, one after the other."""
        return np.concatenate([one.scores[precision] for one in self.judged])

    @property
    def precisions(self) -> list[str]:
        """The precisions that were judged, `int8` first."""
        return list(self.judged[0].scores)


@dataclass(frozen=True)
class Gate:
    """Whether int8 may be packaged, with the figures it was decided on; None: nothing to judge.

    `agreement`: share of held-out rows with the same label. `agreement_packaged`: of all rows, by
    the model that is packaged.
    """

    passed: bool
    reason: str
    accuracy_fp32: float
    accuracy_int8: float | None = None
    accuracy_kept: float | None = None
    agreement: float | None = None
    agreement_packaged: float | None = None


def train_models(family: Family, table: Table, train: Indices, seed: int) -> Models:
    """The family's model of these rows, and its int8 form, calibrated on the same rows."""
    rows, labels = table.rows[train], table.labels[train]
    fp32 = family.train(rows, labels, len(table.classes), seed)
    if not can_quantise(fp32):
        return {"fp32": fp32}
    return {"int8": quantise(fp32, rows), "fp32": fp32}


def evaluate(family: Family, table: Table, folds: Sequence[Fold], seed: int) -> Evaluation:
    """Trains for each fold and judges on its test rows; folds of the same rows share a model.

    Errors: `TrainingError` for a fold whose training rows hold one label only.
    """
    judged: list[Judged] = []
    known: tuple[Indices, Models] | None = None
    for fold in folds:
        if known is None or known[0] is not fold.train:
            if len(np.unique(table.labels[fold.train])) < 2:
                raise TrainingError(
                    f"before {fold.name} all rows have one label, so nothing can be learnt for it; "
                    "use fewer blocks or another split"
                )
            known = (fold.train, train_models(family, table, fold.train, seed))
        rows = table.rows[fold.test]
        scores = {name: run(open_session(model), rows) for name, model in known[1].items()}
        judged.append(Judged(fold, scores))
    assert known is not None
    return Evaluation(family, judged, known)


def gate(table: Table, evaluation: Evaluation) -> Gate:
    """int8 against fp32 on the test rows of all folds together."""
    truth = truth_of(table, evaluation)
    labels = evaluation.pooled("fp32").argmax(axis=1)
    accuracy = float((labels == truth).mean())
    if "int8" not in evaluation.precisions:
        reason = "there is no int8 form: trees compare and add, there is no product to quantise"
        return Gate(False, reason, accuracy)
    narrow = evaluation.pooled("int8").argmax(axis=1)
    accuracy_int8 = float((narrow == truth).mean())
    kept = accuracy_int8 / accuracy if accuracy else 0.0
    passed = kept >= ACCURACY_KEPT_MIN
    reason = (
        f"int8 keeps {kept:.5f} of fp32's accuracy on held-out rows, "
        f"{'at least' if passed else 'expected at least'} {ACCURACY_KEPT_MIN}"
    )
    return Gate(passed, reason, accuracy, accuracy_int8, kept, float((labels == narrow).mean()))


def figures(truth: Labels, scores: Scores, classes: Sequence[str]) -> dict[str, Any]:
    """Accuracy, macro F1 and recalls; of two labels also how well the rarer one is found.

    A figure that these rows can't give (no row of a label) is None.
    """
    found = scores.argmax(axis=1)
    present = np.bincount(truth, minlength=len(classes))
    recall = recall_score(truth, found, average=None, labels=range(len(classes)), zero_division=0)
    both = sorted({*truth.tolist(), *found.tolist()})
    result: dict[str, Any] = {
        "rows": len(truth),
        "accuracy": float((found == truth).mean()),
        "f1_macro": float(f1_score(truth, found, average="macro", labels=both, zero_division=0)),
        "recall": {
            name: float(share) if present[place] else None
            for place, (name, share) in enumerate(zip(classes, recall, strict=True))
        },
    }
    if len(classes) == 2:
        result["rare"] = _rare_figures(truth, scores, classes)
    return result


def _rare_figures(truth: Labels, scores: Scores, classes: Sequence[str]) -> dict[str, Any]:
    """How well the second of two labels is found; None where all rows have the same label."""
    is_it = truth == 1
    one_sided = is_it.all() or not is_it.any()
    score = scores[:, 1]
    return {
        "label": classes[1],
        "share": float(is_it.mean()),
        "average_precision": None if one_sided else float(average_precision_score(is_it, score)),
        "roc_auc": None if one_sided else float(roc_auc_score(is_it, score)),
        "f1_at_half": float(f1_score(is_it, score >= 0.5, zero_division=0)),
    }


def truth_of(table: Table, evaluation: Evaluation) -> Labels:
    """The labels of all folds' test rows, in the order of `Evaluation.pooled`."""
    truth: Labels = np.concatenate([table.labels[one.fold.test] for one in evaluation.judged])
    return truth
