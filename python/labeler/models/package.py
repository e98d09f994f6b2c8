"""Packaging: a version's folder as the core's repository reads it, written whole or not at all.

`ROOT/NAME/VERSION/` gets `model.onnx`, `model.int8.onnx` if there is one, `golden.json`,
`report.json`, and `model.toml` with size and SHA-256 of each. Trains nothing, never packages what
would measure its ranges while serving, and never changes a version that exists: what has been
served under a name stays what it was.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labeler.models.errors import TrainingError
from labeler.models.inference import Rows, Scores, open_session, run
from labeler.models.quantise import require_static
from labeler.models.shapes import batches_that_differ

__all__ = ["Credit", "VersionSpec", "require_new", "write_version"]

_FORMAT = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FILES = {"fp32": "model.onnx", "int8": "model.int8.onnx"}


@dataclass(frozen=True)
class Credit:
    """Whose data a model was trained on, as its licence asks."""

    title: str
    authors: str
    source: str
    licence: str
    changes: str


@dataclass(frozen=True)
class VersionSpec:
    """What the manifest says of a version; the core's `Manifest` documents each field."""

    name: str
    version: str
    width: int
    labels: Sequence[str]
    input: str
    output: str
    accepts_nonfinite: bool
    range: tuple[float, float] | None
    score_tolerance: float
    credit: Credit | None


def write_version(
    root: Path,
    spec: VersionSpec,
    models: Mapping[str, bytes],
    golden: Rows,
    report: Mapping[str, object],
) -> Path:
    """Writes `root/NAME/VERSION` and returns it.

    `models` maps `fp32` and `int8` to the bytes of an ONNX file. `golden` `[rows, width]` are rows
    whose scores, measured here, each later load must reproduce; they are published, so they hold
    no row of the training data. Errors: `TrainingError` for a version that exists, an unknown
    precision, a model whose scores are not those of its labels, dynamic quantisation, or an int8
    file whose scores change with the batch.
    """
    target = require_new(root, spec.name, spec.version)
    unknown = sorted(set(models) - set(_FILES))
    if unknown or not models:
        raise TrainingError(f"models are {sorted(models)}, expected fp32, int8 or both")
    scores = {
        precision: _golden_scores(spec, precision, model, golden)
        for precision, model in models.items()
    }
    files = {
        "golden.json": _json(
            {
                "rows": _floats(golden),
                "scores": {precision: _floats(rows) for precision, rows in scores.items()},
            }
        ),
        "report.json": _json(report, indent=2),
    }
    files |= {_FILES[precision]: model for precision, model in models.items()}
    files["model.toml"] = _manifest(spec, list(models), files).encode()
    _write_folder(target, files)
    return target


def require_new(root: Path, name: str, version: str) -> Path:
    """The folder of a version that does not exist yet. Errors: `TrainingError`, also for names."""
    for field, text in (("name", name), ("version", version)):
        if not _NAME.fullmatch(text):
            raise TrainingError(
                f"{field} is {text!r}, expected 1 to 64 of a-z, 0-9, `.`, `_`, `-`, starting with "
                "a letter or digit"
            )
    target = root / name / version
    if target.exists():
        raise TrainingError(f"{target} exists and versions never change; choose another version")
    return target


def _golden_scores(spec: VersionSpec, precision: str, model: bytes, golden: Rows) -> Scores:
    require_static(model, _FILES[precision])
    session = open_session(model)
    scores = run(session, golden)
    expected = (len(golden), len(spec.labels))
    if scores.dtype != np.float32 or scores.shape != expected or not np.isfinite(scores).all():
        found = f"{scores.dtype} {list(scores.shape)}"
        raise TrainingError(f"scores are {found}, expected finite float32 {list(expected)}")
    # Sums of whole numbers have no order; float sums do, and the core pads a batch where it shows.
    differing = batches_that_differ(session, golden, spec.range) if precision == "int8" else []
    if differing:
        raise TrainingError(
            f"{_FILES[precision]}: a row's scores change in batches of {differing} rows, expected "
            "the same bits in every batch"
        )
    return scores


def _write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Writes beside the target under a hidden name, then renames: nobody reads half a folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for name, content in files.items():
            (draft / name).write_bytes(content)
        draft.chmod(0o755)
        os.rename(draft, target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _manifest(spec: VersionSpec, precisions: Sequence[str], files: Mapping[str, bytes]) -> str:
    lines = [
        "# Written by `labeler.models.package`. The core refuses the version if a file differs.",
        f"format = {_FORMAT}",
        f"name = {_toml(spec.name)}",
        f"version = {_toml(spec.version)}",
        f"width = {spec.width}",
        f"labels = [{', '.join(_toml(label) for label in spec.labels)}]",
        f"input = {_toml(spec.input)}",
        f"output = {_toml(spec.output)}",
        f"accepts_nonfinite = {'true' if spec.accepts_nonfinite else 'false'}",
        f"score_tolerance = {spec.score_tolerance!r}",
    ]
    if spec.range is not None:
        lines.append(f"range = [{float(spec.range[0])!r}, {float(spec.range[1])!r}]")
    if spec.credit is not None:
        lines += ["", "[credit]"]
        lines += [f"{key} = {_toml(value)}" for key, value in vars(spec.credit).items()]
    lines += ["", "[golden]", *_entry("golden.json", files)]
    lines += ["", "[report]", *_entry("report.json", files)]
    for precision in precisions:
        entry = _entry(_FILES[precision], files)
        lines += ["", "[[files]]", f"precision = {_toml(precision)}", *entry]
    return "\n".join(lines) + "\n"


def _entry(name: str, files: Mapping[str, bytes]) -> list[str]:
    content = files[name]
    sha256 = hashlib.sha256(content).hexdigest()
    return [f"path = {_toml(name)}", f'sha256 = "{sha256}"', f"bytes = {len(content)}"]


def _toml(text: str) -> str:
    """A TOML basic string: JSON's escapes are a part of TOML's."""
    return json.dumps(text, ensure_ascii=False)


def _json(value: object, indent: int | None = None) -> bytes:
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def _floats(rows: Rows) -> list[list[float]]:
    """Python floats: each float32 is exactly one of them, so JSON carries it without loss."""
    return [[float(value) for value in row] for row in rows]
