"""Finds what a tree is compared with, and checks it out beside it.

Reads the repository; changes nothing of it but a list of work trees, which it cleans up.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["ROOT", "TreeError", "accepted", "base_of", "checked_out", "full_name"]

ROOT = Path(__file__).resolve().parent.parent.parent
_DEFAULTS = ("origin/HEAD", "origin/main", "main")
_COSTS = re.compile(r"^Costs: (?P<name>\S+): (?P<why>.+)$", re.MULTILINE)


class TreeError(Exception):
    """A commit that was named does not exist, or cannot be checked out."""


def base_of(environment: Mapping[str, str], root: Path = ROOT) -> tuple[str, str] | None:
    """The commit to compare with, and how it was found; None where there is none.

    `$LABELER_BASE`, else where the default branch was left, else the commit before. Errors:
    `TreeError` where `$LABELER_BASE` is no commit.
    """
    if named := environment.get("LABELER_BASE"):
        return full_name(named, root), f"$LABELER_BASE, {named}"
    head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    for branch in _DEFAULTS:
        found = _git(root, "merge-base", "HEAD", branch)
        if found and found != head:
            return found, f"where {branch} was left"
    before = _git(root, "rev-parse", "--verify", "--quiet", "HEAD~1^{commit}")
    return (before, "HEAD~1") if before else None


def full_name(commit: str, root: Path = ROOT) -> str:
    """A commit's hash. Errors: `TreeError`."""
    found = _git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if not found:
        raise TreeError(f"{commit} is no commit of this repository (a shallow clone lacks it)")
    return found


def accepted(base: str, root: Path = ROOT, head: str = "HEAD") -> dict[str, str]:
    """Figures whose growth a commit from `base` to `head` says is wanted: `Costs: FIGURE: why`."""
    said = _git(root, "log", "--format=%B", f"{base}..{head}") or ""
    return {match["name"]: match["why"] for match in _COSTS.finditer(said)}


@contextmanager
def checked_out(commit: str, folder: Path, root: Path = ROOT) -> Iterator[Path]:
    """The commit's tree in `folder` while the block runs. Errors: `TreeError`."""
    _remove(folder, root)
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "worktree", "add", "--detach", "--force", str(folder), commit]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TreeError(f"{commit} cannot be checked out: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        _remove(folder, root)


def _remove(folder: Path, root: Path) -> None:
    _git(root, "worktree", "remove", "--force", str(folder))
    shutil.rmtree(folder, ignore_errors=True)
    _git(root, "worktree", "prune")


def _git(root: Path, *arguments: str) -> str | None:
    """What git says; None where it fails, or is not there."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
