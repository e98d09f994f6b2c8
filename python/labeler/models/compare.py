"""Two versions on the same rows: how often they agree, how right, how fast and how large they are.

Scores come from ONNX Runtime as the service runs it. Decides nothing: the figures are for people.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labeler.errors import ModelInvalidError
from labeler.models.errors import TrainingError
from labeler.models.folders import VersionFolder
from labeler.models.inference import Rows, open_session, run, run_us
from labeler.models.verify import golden_of

__all__ = ["Comparison", "Contender", "compare", "contender_of", "golden_rows_of"]

_BATCH = 256
_DISAGREEMENTS_MAX = 10


@dataclass(frozen=True)
class Contender:
    """A version in one precision."""

    version: VersionFolder
    precision: str

    @property
    def reference(self) -> str:
        """`name@version precision`."""
        return f"{self.version.reference} {self.precision}"


@dataclass(frozen=True)
class Side:
    """One contender's figures. `accuracy`: None without labels. µs: CPU time, one thread."""

    reference: str
    precision: str
    bytes: int
    run_cpu_us: float
    row_cpu_us_in_256: float
    accuracy: float | None


@dataclass(frozen=True)
class Comparison:
    """Figures on `rows` rows. `disagreements`: (label of A, label of B, rows), most first."""

    rows: int
    agreement: float
    sides: tuple[Side, Side]
    disagreements: list[tuple[str, str, int]]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def contender_of(version: VersionFolder, precision: str) -> Contender:
    """The version in a precision, by default in the first that the service would try.

    Errors: `TrainingError` where it has no such file.
    """
    if precision and precision not in version.files:
        has = " and ".join(version.files)
        raise TrainingError(f"{version.reference} has no {precision} file, only {has}")
    return Contender(version, precision or next(iter(version.files)))


def golden_rows_of(a: VersionFolder, b: VersionFolder) -> Rows:
    """The golden rows of both, each once: `[n, width]`. Errors: `TrainingError`: other widths."""
    _require_width(a, b.width)
    rows: Rows = np.unique(np.concatenate([golden_of(a)[0], golden_of(b)[0]]), axis=0)
    return rows


def compare(a: Contender, b: Contender, rows: Rows, labels: Sequence[str]) -> Comparison:
    """Compares on `rows` `[n, width]`; `labels`: their true labels by name, empty if unknown.

    Errors: `TrainingError` for rows of another width, `ModelInvalidError` for a file that differs.
    """
    found, sides = [], []
    for one in (a, b):
        _require_width(one.version, rows.shape[1])
        entry = one.version.files[one.precision]
        session = open_session(one.version.content(entry))
        scores = run(session, rows)
        if scores.shape != (len(rows), len(one.version.labels)):
            raise ModelInvalidError(f"{one.reference}: scores are {list(scores.shape)}")
        names = np.array(one.version.labels)[scores.argmax(axis=1)]
        full = np.resize(rows, (_BATCH, rows.shape[1]))
        found.append(names)
        sides.append(
            Side(
                reference=one.reference,
                precision=one.precision,
                bytes=entry.bytes,
                run_cpu_us=run_us(session, rows[:1]),
                row_cpu_us_in_256=round(run_us(session, full) / _BATCH, 3),
                accuracy=float((names == np.array(labels)).mean()) if len(labels) else None,
            )
        )
    pairs = Counter(zip(found[0].tolist(), found[1].tolist(), strict=True))
    different = [(x, y, count) for (x, y), count in pairs.most_common() if x != y]
    agreement = float((found[0] == found[1]).mean())
    return Comparison(len(rows), agreement, (sides[0], sides[1]), different[:_DISAGREEMENTS_MAX])


def _require_width(version: VersionFolder, width: int) -> None:
    if version.width != width:
        raise TrainingError(
            f"{version.reference} takes {version.width} values a payload, the rows have {width}"
        )
