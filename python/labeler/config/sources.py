"""The sources of settings, weakest first: a TOML file, LABELER_ variables, flags.

Each gives settings with their origin, and problems for what it cannot place: a misspelt name is
never ignored. Values are not judged here; text (environment, flags) is only read into its kind.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labeler.config.problems import Problem, nearest, shown
from labeler.config.schema import Setting, all_sections, all_settings

__all__ = ["Given", "from_environment", "from_file", "from_flags"]

PREFIX = "LABELER_"

# Read by the test suite, not by the service.
_OTHERS = re.compile(r"LABELER_(?:REQUIRE_DATA|REQUIRE_ORT|DATA_DIR|TEST_[A-Z0-9_]+)")

# What Kubernetes puts into every pod beside a Service whose name begins with "labeler". With the
# values, since LABELER_PORT=50052 is a person's, who must be told that it sets nothing.
_SERVICE_LINK = re.compile(
    r"LABELER_(?:[A-Z0-9]+_)*(?:SERVICE_HOST=.+|SERVICE_PORT(?:_[A-Z0-9_]+)?=\d+"
    r"|PORT(?:_\d+_(?:TCP|UDP|SCTP))?=(?:tcp|udp|sctp)://.+"
    r"|PORT_\d+_(?:TCP|UDP|SCTP)_(?:PROTO=(?:tcp|udp|sctp)|PORT=\d+|ADDR=.+))"
)


@dataclass(frozen=True)
class Given:
    """A setting's value as one source gives it."""

    setting: str
    value: Any
    origin: str


Found = tuple[list[Given], list[Problem]]


def from_file(path: Path) -> Found:
    """Settings of a TOML file, with the line where it can be told."""
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        return [], [Problem("--config", str(path), "flag", f"expected a readable file: {reason}")]
    except (ValueError, RecursionError) as error:
        # Beside its own error the parser lets through numbers and nestings that Python refuses.
        return [], [Problem(str(path), "", "file", f"TOML: {error}")]
    lines = _lines_by_name(text)
    given: list[Given] = []
    problems: list[Problem] = []
    for name, value in _flat(table):
        line = lines.get(name)
        origin = f"{path}:{line}" if line else str(path)
        if name in all_settings():
            given.append(Given(name, value, origin))
        elif name in all_sections():
            problems.append(Problem(name, shown(value), origin, f"expected a table [{name}]"))
        else:
            problems.append(_unknown(name, origin, all_settings()))
    return given, problems


def from_environment(environ: Mapping[str, str]) -> Found:
    """LABELER_SECTION__NAME variables; another LABELER_ name is a problem, save a tool's."""
    names = {variable(name): name for name in all_settings()}
    given: list[Given] = []
    problems: list[Problem] = []
    for key, text in sorted(environ.items()):
        if not key.startswith(PREFIX) or _OTHERS.fullmatch(key):
            continue
        if key in names:
            setting = all_settings()[names[key]]
            given.append(Given(setting.name, _from_text(setting, text), key))
        elif not _SERVICE_LINK.fullmatch(f"{key}={text}"):
            problems.append(_unknown(key, "environment", names))
    # A name in lower case is another variable, and whoever wrote it believes that it counts.
    lower = [key for key in sorted(environ) if key not in names and key.upper() in names]
    problems += [
        Problem(key, "", "environment", f"unknown; did you mean `{key.upper()}`?") for key in lower
    ]
    return given, problems


def from_flags(flags: Sequence[tuple[str, str]]) -> Found:
    """Flags as (flag, text): `--set` with `section.name=value`, others with `setting=value`."""
    given: list[Given] = []
    problems: list[Problem] = []
    for flag, text in flags:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            problems.append(Problem(flag, shown(text), "flag", "expected section.name=value"))
        elif name in all_settings():
            given.append(Given(name, _from_text(all_settings()[name], value), flag))
        else:
            problems.append(_unknown(name, flag, all_settings()))
    return given, problems


def variable(setting: str) -> str:
    """The environment variable of a setting: `path.deadline_ms` is LABELER_PATH__DEADLINE_MS."""
    return PREFIX + setting.replace(".", "__").upper()


def _unknown(name: str, origin: str, known: Iterable[str]) -> Problem:
    return Problem(name, "", origin, f"unknown{nearest(name, known)}")


def _from_text(setting: Setting, text: str) -> Any:
    """Text read as the setting's kind; what cannot be read stays text and is refused later."""
    text = text.strip() if setting.kind != "text" else text
    if setting.kind == "int" and re.fullmatch(r"[+-]?\d{1,19}", text):
        return int(text)
    if setting.kind == "flag" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if setting.kind == "list":
        if text.startswith("["):
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                return text
        return [item.strip() for item in text.split(",") if item.strip()]
    return text


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted names with their values; a table below a known setting's name is its value."""
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in all_settings():
            found.extend(_flat(value, f"{name}."))
        else:
            found.append((name, value))
    return found


_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_.\s-]+?)\s*\]\s*(?:#.*)?")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=")


def _lines_by_name(text: str) -> dict[str, int]:
    """Line numbers of plain keys; a key in quotes or in an inline table has none."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            section = re.sub(r"\s", "", header[1]) + "."
        elif key := _KEY.match(line):
            lines.setdefault(section + re.sub(r"\s", "", key[1]), number)
    return lines
