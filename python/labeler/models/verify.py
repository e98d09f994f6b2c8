"""Whether a version is fit to serve on this very machine, file by file, before a service loads it.

The proofs are the core's: sizes and SHA-256, golden rows on this CPU within the tolerance and with
the same labels, an int8 file's rows the same bits in every batch. Changes nothing.
"""

import json
from dataclasses import dataclass

import numpy as np

from labeler.errors import ModelInvalidError
from labeler.models.folders import Entry, VersionFolder
from labeler.models.inference import Rows, Scores, open_session, run
from labeler.models.shapes import batches_that_differ

__all__ = ["Checked", "golden_of", "verify_version"]


@dataclass(frozen=True)
class Checked:
    """One file: `problem` says what is wrong with it, and is empty where nothing is."""

    file: str
    precision: str
    result: str
    problem: str = ""


def verify_version(version: VersionFolder) -> list[Checked]:
    """What was found, file by file: all of them, also after the first that is wrong."""
    checked = [_hashed(version, entry) for entry in (version.golden, version.report) if entry]
    golden: tuple[Rows, dict[str, Scores]] | None = None
    if not checked[0].problem:
        try:
            golden = golden_of(version)
        except ModelInvalidError as error:
            checked[0] = Checked(version.golden.path, "", "", error.message)
    for precision, entry in version.files.items():
        found = _hashed(version, entry, precision)
        if not found.problem and golden:
            found = _proven(version, precision, entry, *golden)
        checked.append(found)
    return checked


def golden_of(version: VersionFolder) -> tuple[Rows, dict[str, Scores]]:
    """Golden rows `[n, width]` and their scores `[n, labels]` by precision.

    Errors: `ModelInvalidError` for a file that differs or has another form.
    """
    path = version.golden.path
    try:
        content = json.loads(version.content(version.golden))
        rows = np.array(content["rows"], dtype=np.float32)
        scores = {
            name: np.array(values, dtype=np.float32) for name, values in content["scores"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelInvalidError(f"{path}: expected rows and scores: {error!r}") from error
    shapes = {(version.width, rows.ndim), *((len(version.labels), s.ndim) for s in scores.values())}
    found = {(array.shape[-1], array.ndim) for array in (rows, *scores.values())}
    if found != shapes or any(len(one) != len(rows) for one in scores.values()):
        raise ModelInvalidError(
            f"{path}: expected rows of {version.width} values and scores of {len(version.labels)}"
        )
    return rows, scores


def _hashed(version: VersionFolder, entry: Entry, precision: str = "") -> Checked:
    try:
        content = version.content(entry)
    except ModelInvalidError as error:
        return Checked(entry.path, precision, "", error.message)
    return Checked(entry.path, precision, f"{len(content)} bytes, SHA-256 as packaged")


def _proven(
    version: VersionFolder, precision: str, entry: Entry, rows: Rows, golden: dict[str, Scores]
) -> Checked:
    def wrong(problem: str) -> Checked:
        return Checked(entry.path, precision, "", f"{entry.path}: {problem}")

    if precision not in golden:
        return wrong(f"{version.golden.path} has no scores.{precision}")
    try:
        session = open_session(version.content(entry))
        scores = run(session, rows)
    except Exception as error:  # the runtime's own exceptions share no base
        return wrong(f"ONNX Runtime refuses it: {error}")
    expected = golden[precision]
    if scores.shape != expected.shape:
        return wrong(f"scores are {list(scores.shape)}, expected {list(expected.shape)}")
    other = np.flatnonzero(scores.argmax(axis=1) != expected.argmax(axis=1))
    if len(other):
        return wrong(f"golden row {other[0]} gives another label on this CPU")
    off = np.abs(scores - expected).max()
    if not off <= version.score_tolerance:
        return wrong(
            f"a golden score is {off:.2g} off on this CPU, expected within "
            f"{version.score_tolerance:.2g}"
        )
    differing = batches_that_differ(session, rows, version.range)
    if differing and precision == "int8":
        return wrong(f"a row's scores change in batches of {differing} rows")
    alone = "some batches are padded" if differing else "rows stand alone in every batch"
    return Checked(entry.path, precision, f"{len(rows)} golden rows within {off:.1g}; {alone}")
