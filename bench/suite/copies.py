"""Copies of the packaged model under other names, so that a service has several to serve.

A copy is the model's own files; its name alone differs. Starts nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from labeler.config import packaged_models

__all__ = ["copied", "copy_name"]

_ORIGINAL = "kiva-floor"
_VERSION = "1"


def copy_name(number: int) -> str:
    """Of copy `number`, from 1 up."""
    return f"copy-{number}"


def copied(folder: Path, count: int) -> list[str]:
    """Makes them in `folder`; the arguments of a service of them, the first its default."""
    names = [copy_name(number) for number in range(1, count + 1)]
    for name in names:
        version = folder / name / _VERSION
        shutil.copytree(packaged_models() / _ORIGINAL / _VERSION, version)
        manifest = version / "model.toml"
        text = manifest.read_text(encoding="utf-8")
        manifest.write_text(text.replace(f'"{_ORIGINAL}"', f'"{name}"', 1), encoding="utf-8")
    settings = {"repositories": str(folder), "load": ",".join(names), "default": names[0]}
    return [part for key, text in settings.items() for part in ("--set", f"models.{key}={text}")]
