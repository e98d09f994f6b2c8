"""Reads result files of the bench as they are: no figure is made, none is left out unsaid.

Knows the format of a result file alone; a side keeps the name of its file, so that whatever is
shown of it can be traced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.suite.peers import PEER

__all__ = ["LATEST", "ReportError", "Result", "SideOf", "read_results"]

LATEST = "latest.json"
"""The short form's file: results of several cases."""
_NEEDED = ("case", "about", "date", "commit", "machine", "sides", "compared", "guards", "runs")


class ReportError(Exception):
    """There is nothing to report of, or a file is no result; the message names it."""


@dataclass(frozen=True)
class Result:
    """One case as it was measured. `file`: its name; of `latest.json` with the case."""

    file: str
    document: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The case's."""
        return str(self.document["case"])

    @property
    def has_peers(self) -> bool:
        """Whether other people's servers were measured in it."""
        servers: Mapping[str, Mapping[str, Any]] = self.document.get("servers", {})
        return any(str(said.get("server", "")).startswith(PEER) for said in servers.values())

    @property
    def left_out(self) -> int:
        """Pairs that a sender spoiled."""
        pairs = self.document["runs"]
        return sum(any(run.get("invalid_because") for run in pair.values()) for pair in pairs)

    @property
    def sides(self) -> Iterator[SideOf]:
        """All that have a figure."""
        for name, figures in self.document["sides"].items():
            if figures:
                yield SideOf(self, name, figures)


@dataclass(frozen=True)
class SideOf:
    """A side of a result: `figures` over its valid runs, as the file has them."""

    result: Result
    name: str
    figures: Mapping[str, float]

    @property
    def load(self) -> Mapping[str, Any]:
        """What it was sent; empty for a case without a load."""
        loads: Mapping[str, Mapping[str, Any]] = self.result.document.get("loads", {})
        return loads.get(self.name, {})

    @property
    def plain_server(self) -> str:
        """Its server, of a peer with its arguments, where nothing else was asked of it; else empty.

        Files that are older than this key have sides that are called like their server.
        """
        servers: Mapping[str, Mapping[str, Any]] = self.result.document.get("servers", {})
        if servers:
            said = servers.get(self.name, {})
            if set(said) - {"server", "arguments"}:
                return ""
            return " ".join([str(said["server"]), *said.get("arguments", [])])
        return self.name if self.name in ("echo", "labeler") else ""

    @property
    def shape(self) -> str:
        """Of its schedule; empty without a load."""
        return str(self.load.get("schedule", {}).get("shape", ""))

    @property
    def source(self) -> str:
        """Where its figures are."""
        count = len(self.valid_runs)
        runs = "1 run" if count == 1 else f"{count} runs"
        return f"{self.result.file}, side `{self.name}`, {runs}"

    @property
    def valid_runs(self) -> Sequence[Mapping[str, Any]]:
        """Its runs in pairs that no side's sender spoiled."""
        pairs = self.result.document["runs"]
        valid = [p for p in pairs if not any(run.get("invalid_because") for run in p.values())]
        return [pair[self.name] for pair in valid]

    def runs(self, metric: str) -> list[float]:
        """The figure of each valid run that has it."""
        return [float(run[metric]) for run in self.valid_runs if metric in run]


def read_results(folder: Path) -> list[Result]:
    """All results in the folder, by case; a case's own file goes before the short form's.

    Errors: `ReportError` with the file that is no result, or where there is none at all.
    """
    own = [
        _result(file.name, _json(file))
        for file in sorted(folder.glob("*.json"))
        if file.name != LATEST
    ]
    found = {result.name: result for result in own}
    latest = folder / LATEST
    if latest.is_file():
        for name, document in _json(latest).get("cases", {}).items():
            found.setdefault(name, _result(f"{LATEST}, case {name}", document))
    if not found:
        raise ReportError(f"no result in {folder}; `make bench` writes some")
    return [found[name] for name in sorted(found)]


def _json(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ReportError(f"{file} is no result of the bench: expected an object")
    return found


def _result(name: str, document: Mapping[str, Any]) -> Result:
    missing = [key for key in _NEEDED if key not in document]
    if missing:
        raise ReportError(f"{name} is no result of the bench: it has no {', '.join(missing)}")
    return Result(name, document)
