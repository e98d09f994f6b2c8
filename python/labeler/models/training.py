"""From a table to a packaged version: judge each family, choose, train, gate int8, package.

The order is the argument: nothing is written before everything is known, and int8 is packaged only
if it kept fp32's accuracy on rows that neither had seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labeler.models.data import Table
from labeler.models.errors import TrainingError
from labeler.models.evaluate import (
    Evaluation,
    Family,
    Gate,
    Models,
    evaluate,
    figures,
    gate,
    train_models,
    truth_of,
)
from labeler.models.golden import golden_rows
from labeler.models.graphs import INPUT, OUTPUT
from labeler.models.inference import open_session, run
from labeler.models.package import Credit, VersionSpec, require_new, write_version
from labeler.models.report import Told, report_of
from labeler.models.splits import Fold, Indices

__all__ = ["Task", "Trained", "package_best"]

# Candidates whose figures differ by less are as good; then the earlier one is taken.
_AS_GOOD = 0.002
# The packaged model's two forms may disagree so many times as often as those of the folds did, and
# in so many rows more: models wobble, a broken one is far beyond that.
_DISAGREEMENT_FACTOR, _DISAGREEMENT_SLACK = 5, 0.002
# How far a golden row's score may be on another CPU: products of whole numbers are exact, the last
# step (`Softmax`) and float products are not.
_SCORE_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be learnt, how it is judged, and what the package says of it.

    `families`: in order of preference. `packaged_rows`: what the packaged model learns from, None
    for all. `accuracy_min`: what each fold must reach. `baseline`: what the figures stand beside.
    """

    name: str
    version: str
    table: Table
    split: str
    folds: Sequence[Fold]
    families: Sequence[Family]
    seed: int
    baseline: Callable[[], dict[str, Any]]
    cautions: Sequence[str] = ()
    packaged_rows: Indices | None = None
    accuracy_min: float = 0.0
    range: tuple[float, float] | None = None
    credit: Credit | None = None


@dataclass(frozen=True)
class Trained:
    """What was written, and its report."""

    folder: Path
    report: dict[str, Any]


def package_best(task: Task, out: Path, say: Callable[[str], None] = lambda _: None) -> Trained:
    """Trains, judges and writes `out/NAME/VERSION`. `say` is told what is being done.

    Errors: `TrainingError`; nothing is written then.
    """
    require_new(out, task.name, task.version)
    judged = []
    for family in task.families:
        say(f"{family.name}: {len(task.folds)} folds of {len(task.table.rows)} rows")
        evaluation = evaluate(family, task.table, task.folds, task.seed)
        judged.append((evaluation, gate(task.table, evaluation)))
    judged = _best_first(task.table, judged)
    evaluations, gates = [one for one, _ in judged], [found for _, found in judged]
    _require_accuracy(task, evaluations[0], gates[0])
    say(f"{evaluations[0].family.name}: the model to package")
    models = _final_models(task, evaluations[0])
    gates[0] = _gate_of_packaged(task, gates[0], models)
    say(gates[0].reason)
    packaged = models if gates[0].passed else {"fp32": models["fp32"]}
    refitted = task.packaged_rows is None
    told = Told(
        task.name, task.version, task.seed, task.split, refitted, task.baseline(), task.cautions
    )
    report = report_of(told, task.table, evaluations, gates, packaged)
    golden = golden_rows(list(packaged.values()), task.table.rows, task.seed)
    return Trained(write_version(out, _spec(task), packaged, golden, report), report)


def _spec(task: Task) -> VersionSpec:
    return VersionSpec(
        name=task.name,
        version=task.version,
        width=task.table.rows.shape[1],
        labels=task.table.classes,
        input=INPUT,
        output=OUTPUT,
        accepts_nonfinite=False,
        range=task.range,
        score_tolerance=_SCORE_TOLERANCE,
        credit=task.credit,
    )


def _best_first(
    table: Table, judged: list[tuple[Evaluation, Gate]]
) -> list[tuple[Evaluation, Gate]]:
    """By what would be served: average precision of the rarer of two labels, else accuracy."""

    def figure(one: Evaluation, passed: bool) -> float:
        precision = "int8" if passed else "fp32"
        found = figures(truth_of(table, one), one.pooled(precision), table.classes)
        of_rare = found.get("rare", {}).get("average_precision")
        return float(found["accuracy"] if of_rare is None else of_rare)

    reached = [figure(one, found.passed) for one, found in judged]
    first = next(place for place, value in enumerate(reached) if value >= max(reached) - _AS_GOOD)
    return [judged[first], *(one for place, one in enumerate(judged) if place != first)]


def _require_accuracy(task: Task, evaluation: Evaluation, found: Gate) -> None:
    """What is served must reach the accuracy that the task asks of each fold."""
    precision = "int8" if found.passed else "fp32"
    for one in evaluation.judged:
        labels = one.scores[precision].argmax(axis=1)
        accuracy = float((labels == task.table.labels[one.fold.test]).mean())
        if accuracy < task.accuracy_min:
            raise TrainingError(
                f"{task.name}: accuracy on {one.fold.name} is {accuracy:.4f}, expected at least "
                f"{task.accuracy_min} on each fold; nothing was written"
            )


def _final_models(task: Task, evaluation: Evaluation) -> Models:
    """The models to package: of all rows, or those already judged where the rows are the same."""
    known_rows, known = evaluation.models
    if task.packaged_rows is known_rows:
        return known
    rows = np.arange(len(task.table.rows)) if task.packaged_rows is None else task.packaged_rows
    return train_models(evaluation.family, task.table, rows, task.seed)


def _gate_of_packaged(task: Task, found: Gate, models: Models) -> Gate:
    """Takes a passed gate back where the model to package, another than the folds', breaks.

    It has seen the rows, so accuracy says nothing here; how often its two forms agree does.
    """
    if not found.passed or found.agreement is None:
        return found
    labels = [run(open_session(model), task.table.rows).argmax(axis=1) for model in models.values()]
    agreement = float((labels[0] == labels[1]).mean())
    least = 1 - _DISAGREEMENT_FACTOR * (1 - found.agreement) - _DISAGREEMENT_SLACK
    found = replace(found, agreement_packaged=agreement)
    if agreement >= least:
        return found
    reason = (
        f"int8 of the model to package agrees with fp32 in {agreement:.5f} of all rows, expected "
        f"at least {least:.5f}, as the models of the folds did in {found.agreement:.5f}"
    )
    return replace(found, passed=False, reason=reason)
