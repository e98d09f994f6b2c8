"""Loads the configuration: defaults ▸ file ▸ environment ▸ flags, each value with its origin.

Everything that is wrong is collected, then raised at once; nothing falls back in silence. The only
place of the package that reads the environment for settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from labeler import cpus
from labeler.config.checks import CHECKS, NOTHING_KNOWN, Facts
from labeler.config.problems import Problem, config_error, shown
from labeler.config.schema import Settings, all_settings
from labeler.config.sources import Given, from_environment, from_file, from_flags
from labeler.config.units import format_bytes

__all__ = ["Config", "Effective", "Origins", "Sources", "effective", "load"]

Origins = Mapping[str, str]


@dataclass(frozen=True)
class Sources:
    """Where settings come from. `flags`: (flag, `section.name=value`); no `environ`: os.environ."""

    file: Path | None = None
    environ: Mapping[str, str] | None = None
    flags: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Config:
    """Checked settings, and the origin of each that is not a default."""

    settings: Settings
    origins: Origins

    def threads(self) -> cpus.Cpus:
        """Transport threads with the origin of their count; `auto` is asked from the system."""
        if self.settings.transport.threads == "auto":
            return cpus.available()
        origin = self.origins.get("transport.threads", "default")
        return cpus.Cpus(self.settings.transport.threads, origin)


@dataclass(frozen=True)
class Effective:
    """A value in force: as JSON, as shown to people, and where it comes from."""

    setting: str
    value: Any
    text: str
    origin: str


def load(sources: Sources, facts: Facts = NOTHING_KNOWN) -> Config:
    """The checked configuration.

    Errors: `ConfigError` (exit code 64) that lists every problem with setting, value, origin and
    expectation, relations between settings included.
    """
    given, problems = _gather(sources)
    last = {item.setting: item for item in given}
    wrong = _values_at_fault(last)
    problems += [_wrong_value(last[name]) for name in last if name in wrong]
    right = {name: item for name, item in last.items() if name not in wrong}
    settings = Settings.model_validate(_nested(right.values()))
    problems += _broken_relations(settings, facts, right, wrong)
    if problems:
        raise config_error(problems)
    return Config(settings, {name: item.origin for name, item in right.items()})


def effective(config: Config) -> list[Effective]:
    """Every setting in schema order with its value and origin."""
    values = config.settings.model_dump()
    result: list[Effective] = []
    for name, setting in all_settings().items():
        section, _, inner = name.rpartition(".")
        value = values[section][inner] if section else values[inner]
        text = format_bytes(value) if setting.kind == "bytes" else shown(value)
        origin = config.origins.get(name, "default")
        if name == "transport.threads" and value == "auto":
            found = config.threads()
            text, origin = f"auto ({found.count})", f"{origin}: {found.origin}"
        result.append(Effective(name, value, text, origin))
    return result


def _gather(sources: Sources) -> tuple[list[Given], list[Problem]]:
    given: list[Given] = []
    problems: list[Problem] = []
    environ = os.environ if sources.environ is None else sources.environ
    found = [from_file(sources.file)] if sources.file is not None else []
    found += [from_environment(environ), from_flags(sources.flags)]
    for items, wrong in found:
        given += items
        problems += wrong
    return given, problems


def _values_at_fault(last: Mapping[str, Given]) -> set[str]:
    try:
        Settings.model_validate(_nested(last.values()))
    except ValidationError as error:
        known = all_settings()
        # (section, name, …) or (name, …): the longest beginning that is a setting.
        paths = [[str(part) for part in item["loc"]] for item in error.errors()]
        return {".".join(path[:2]) if ".".join(path[:2]) in known else path[0] for path in paths}
    return set()


def _wrong_value(item: Given) -> Problem:
    expected = all_settings()[item.setting].expected
    return Problem(item.setting, shown(item.value), item.origin, f"expected {expected}")


def _broken_relations(
    settings: Settings, facts: Facts, right: Mapping[str, Given], wrong: set[str]
) -> list[Problem]:
    problems: list[Problem] = []
    values = {item.setting: item for item in effective(Config(settings, {}))}
    for check in CHECKS:
        if wrong.intersection(check.settings):
            continue
        expected = check.expected(settings, facts)
        if expected is not None:
            blamed = _blamed(check.settings, right)
            origin = right[blamed].origin if blamed in right else "default"
            first = check.settings[0]
            note = expected if blamed == first else f"{first} = {values[first].text}: {expected}"
            problems.append(Problem(blamed, values[blamed].text, origin, note))
    return problems


def _blamed(names: Sequence[str], right: Mapping[str, Given]) -> str:
    """The first setting that somebody gave: a default is never what an operator has to correct."""
    return next((name for name in names if name in right), names[0])


def _nested(items: Iterable[Given]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for item in items:
        section, _, inner = item.setting.rpartition(".")
        target = table.setdefault(section, {}) if section else table
        target[inner] = item.value
    return table
