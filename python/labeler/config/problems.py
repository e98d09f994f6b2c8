"""What is wrong with a configuration: one line each, all of them at once."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labeler.errors import ConfigError

__all__ = ["Problem", "config_error", "nearest"]

_SHOWN_CHARS_MAX = 60


@dataclass(frozen=True)
class Problem:
    """A setting, its value as shown (empty: none), where that came from, and what was expected."""

    setting: str
    value: str
    origin: str
    expected: str


def shown(value: object) -> str:
    """A value as it stands in an error line: JSON, cut to a length that keeps the line readable."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 1] + "…"


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?` with the nearest known name, or nothing if none is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{found[0]}`?" if found else ""


def config_error(problems: Sequence[Problem]) -> ConfigError:
    """The exception (exit code 64) whose message lists every problem in aligned columns."""
    assert problems
    left = [f"{p.setting} = {p.value}" if p.value else p.setting for p in problems]
    width = max(len(text) for text in left)
    origin = max(len(p.origin) for p in problems)
    count = f"{len(problems)} error" + ("s" if len(problems) > 1 else "")
    lines = [
        f"  {text:<{width}}  {problem.origin:<{origin}}  {problem.expected}"
        for text, problem in zip(left, problems, strict=True)
    ]
    return ConfigError(f"configuration: {count}, nothing was started\n" + "\n".join(lines))
