"""Version folders as people name them: a path, or NAME[@VERSION] in the repositories.

Reads and checks `model.toml` and hashes what it lists; loads no model. The core reads the same file
with more rules before it serves a version.
"""

import hashlib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labeler.errors import ModelInvalidError, ModelNotFoundError

__all__ = ["Entry", "VersionFolder", "find_version", "read_version"]

_FORMAT = 1
_PRECISIONS = ("int8", "fp32")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VERSION_PARTS = re.compile(r"[._-]")


@dataclass(frozen=True)
class Entry:
    """One listed file: its name, SHA-256 in hex and size."""

    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class VersionFolder:
    """A version on disk; `files` by precision, `int8` first as the core tries them."""

    folder: Path
    name: str
    version: str
    width: int
    labels: tuple[str, ...]
    range: tuple[float, float] | None
    score_tolerance: float
    files: dict[str, Entry]
    golden: Entry
    report: Entry | None

    @property
    def reference(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    def content(self, entry: Entry) -> bytes:
        """The file's bytes. Errors: `ModelInvalidError` if they are not those of the manifest."""
        try:
            content = (self.folder / entry.path).read_bytes()
        except OSError as error:
            raise ModelInvalidError(f"{self.folder / entry.path}: {error.strerror}") from error
        found = hashlib.sha256(content).hexdigest()
        if len(content) != entry.bytes:
            raise ModelInvalidError(
                f"{entry.path} has {len(content)} bytes, expected {entry.bytes}"
            )
        if found != entry.sha256:
            raise ModelInvalidError(f"{entry.path} has SHA-256 {found}, expected {entry.sha256}")
        return content


def find_version(reference: str, roots: Sequence[Path]) -> VersionFolder:
    """The version that `reference` names; without a version the newest of the first root with it.

    Errors: `ModelNotFoundError`, `ModelInvalidError`.
    """
    if "/" in reference:
        path = Path(reference)
        if not path.is_dir():
            raise ModelNotFoundError(f"{reference} is no folder, expected NAME/VERSION of a model")
        return read_version(path)
    name, _, version = reference.partition("@")
    found: dict[str, Path] = {}
    for root in roots if _NAME.fullmatch(name) else ():
        for manifest in sorted((root / name).glob("*/model.toml")):
            found.setdefault(manifest.parent.name, manifest.parent)
    if version:
        found = {known: folder for known, folder in found.items() if known == version}
    if not found:
        searched = ", ".join(map(str, roots))
        raise ModelNotFoundError(f"no model {reference!r} in {searched}; a path has a / in it")
    return read_version(found[max(found, key=_order)])


def read_version(folder: Path) -> VersionFolder:
    """Reads `folder/model.toml`. Errors: `ModelInvalidError` names file and field."""
    path = folder / "model.toml"
    try:
        manifest = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelInvalidError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelInvalidError(f"{path}: {error}") from error
    if manifest.get("format") != _FORMAT:
        found = manifest.get("format", "missing")
        raise ModelInvalidError(f"{path}: format is {found}, expected {_FORMAT}")
    try:
        return _version(folder, manifest)
    except KeyError as missing:
        raise ModelInvalidError(f"{path}: {missing.args[0]} is missing") from missing
    except (TypeError, ValueError) as error:
        raise ModelInvalidError(f"{path}: {error}") from error


def _version(folder: Path, manifest: dict[str, Any]) -> VersionFolder:
    listed = {entry["precision"]: _entry(entry) for entry in manifest["files"]}
    files = {name: listed.pop(name) for name in _PRECISIONS if name in listed}
    if listed or not files:
        raise ValueError(f"files are of {[*listed, *files]}, expected fp32, int8 or both")
    ends = manifest.get("range")
    return VersionFolder(
        folder=folder,
        name=str(manifest["name"]),
        version=str(manifest["version"]),
        width=int(manifest["width"]),
        labels=tuple(manifest["labels"]),
        range=None if ends is None else (float(ends[0]), float(ends[1])),
        score_tolerance=float(manifest["score_tolerance"]),
        files=files,
        golden=_entry(manifest["golden"]),
        report=_entry(manifest["report"]) if "report" in manifest else None,
    )


def _entry(values: dict[str, Any]) -> Entry:
    path = str(values["path"])
    if Path(path).name != path:
        raise ValueError(f"path is {path!r}, expected a file name without folders")
    return Entry(path, str(values["sha256"]), int(values["bytes"]))


def _order(version: str) -> list[tuple[int, int, str]]:
    """The core's order of versions: numbers as integers and above text, `1.0-rc1 < 1.0 < 1.0.1`."""
    parts = [
        (2, int(part), "") if part.isascii() and part.isdigit() else (0, 0, part)
        for part in _VERSION_PARTS.split(version)
    ]
    return [*parts, (1, 0, "")]
