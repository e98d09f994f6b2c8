"""`labeler journal verify|stat|dump|deliver`: looks at a journal's files; `deliver` empties one."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.markup import escape

from labeler.cli.common import (
    ConfigOption,
    JsonOption,
    SetOption,
    flags_of,
    help_of,
    print_json,
    seconds_of,
)
from labeler.cli.tables import amount, bytes_text, out, table
from labeler.config import Facts, Sources, delivery_plan, load
from labeler.errors import DiskError, LabelerError
from labeler.stores import registry

__all__ = ["register"]

_DUMP_ROWS = 1000
_UNDECODABLE = re.compile(r"record (\d+): (.*)")
_NUMBER_MAX = (1 << 63) - 1
_PROGRESS_S = 2.0

DirArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A journal, or the state directory that holds it.")
]


def register(app: typer.Typer) -> None:
    """Adds the group of commands."""
    group = typer.Typer(
        help="Look at a journal's files, changing nothing; or deliver what one holds.",
        rich_markup_mode=None,
    )
    group.command(help=help_of(verify))(verify)
    group.command(help=help_of(stat))(stat)
    group.command(help=help_of(dump))(dump)
    group.command(help=help_of(deliver))(deliver)
    app.add_typer(group, name="journal", no_args_is_help=True)


def verify(directory: DirArgument, as_json: JsonOption = False) -> None:
    """Read every group and check it. Exit code 74 if there is damage.

    Examples:
      labeler journal verify ./labeler-state
      labeler journal verify ./labeler-state/journal --json
    """
    from labeler import service

    found = service.journal_verify(str(_journal(directory)))
    if as_json:
        print_json(found)
    else:
        console = out()
        console.print(
            f"{amount(found['segments'])} segments, {amount(found['groups'])} groups, "
            f"{amount(found['records'])} records; {bytes_text(found['tail_bytes'])} of tail"
        )
        for damage in found["damage"]:
            console.print(escape(f"damage: {damage}"))
        console.print("[bold]damaged[/]" if found["damage"] else "[bold]sound[/]")
    if found["damage"]:
        raise typer.Exit(DiskError.exit_code)


def stat(directory: DirArgument, as_json: JsonOption = False) -> None:
    """Show sizes and counts.

    Examples:
      labeler journal stat ./labeler-state
      labeler journal stat ./labeler-state --json | jq .pending
    """
    from labeler import service

    found = service.journal_stat(str(_journal(directory)))
    if as_json:
        print_json(found)
    else:
        _show_stat(found)


def _show_stat(found: Mapping[str, Any]) -> None:
    """A line for each figure, and a table of the segments where there are any."""
    console, segments = out(), found.get("segments", [])
    for name, value in {**found, "segments": len(segments)}.items():
        console.print(f"{name:14} {_figure(name, value)}", markup=False)
    if segments:
        console.print(table("segments", *_columns(segments)))


def _columns(segments: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: the file, then its figures as the journal names them."""
    names = [name for name in segments[0] if name != "file"]
    rows = [
        [segment["file"], *(_figure(name, segment[name]) for name in names)] for segment in segments
    ]
    return ["file", *(name.replace("_", " ") for name in names)], rows


def _figure(name: str, value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, int) and name.endswith("bytes"):
        return bytes_text(value)
    return str(value)


def dump(
    directory: DirArgument,
    from_number: Annotated[
        int, typer.Option("--from", min=0, max=_NUMBER_MAX, help="The first number.")
    ] = 0,
    rows_max: Annotated[
        int, typer.Option("--rows", min=0, max=_NUMBER_MAX, help="At most so many; 0 is all.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Print records, one a line; with --json one JSON object a line.

    Examples:
      labeler journal dump ./labeler-state --rows 20
      labeler journal dump ./labeler-state --from 1000 --json | jq .label
    """
    path, left, number = str(_journal(directory)), rows_max, from_number
    while rows_max == 0 or left > 0:
        group = _next_records(path, number, min(left, _DUMP_ROWS) if rows_max else _DUMP_ROWS)
        for record in group:
            if as_json:
                print(json.dumps(record, ensure_ascii=False, default=str))
            elif "undecodable" in record:
                print(f"{record['number']:>12} is no label: {record['undecodable']}")
            else:
                state = "pending" if record.get("pending") else "done"
                print(
                    f"{record['number']:>12} {state:7} {record['robot_id']} "
                    f"{record['sequence']} {record['label']} {record['confidence']:.4f} "
                    f"{record['model']} {record['version']}"
                )
        if not group:
            return
        left -= len(group)
        number = group[-1]["number"] + 1


def _next_records(path: str, number: int, rows_max: int) -> Sequence[Mapping[str, Any]]:
    """Some of the records from `number` on; one that can't be read alone, with `undecodable`."""
    from labeler import service

    while True:
        try:
            return service.journal_dump(path, number, rows_max)
        except ValueError as error:
            broken = _UNDECODABLE.match(str(error))
            if broken is None:
                raise
            if rows_max == 1:
                return [{"number": int(broken[1]), "undecodable": broken[2]}]
            rows_max = max(1, min(int(broken[1]) - number, rows_max // 2))


def deliver(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="What a service left: its state directory."),
    ],
    config: ConfigOption = None,
    sets: SetOption = None,
    state_dir: Annotated[
        str | None, typer.Option("--state-dir", help="For a store that lives in one, as SQLite.")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", help="How long the store may take nothing.")
    ] = "5m",
    as_json: JsonOption = False,
) -> None:
    """Deliver what a removed service left to the store that the settings name.

    The journal's lock is taken: one that is in use is not touched. Labels keep the ids of the
    service that made them; what the store refuses becomes a dead letter of DIR. Whenever it ends,
    the same command goes on with the rest. DIR stays, with an empty journal.

    Examples:
      labeler journal deliver /mnt/labeler-2 --config labeler.toml
      labeler journal deliver ./labeler-state/journal --timeout 30s --json

    Exit codes: 0 nothing is left, 1 some are left since the store is away or by a signal,
    64 configuration, 65 journal of a newer program, 69 journal in use, 74 disk, or no journal.
    """
    from labeler import service

    timeout_s = seconds_of(timeout, "--timeout")
    sources = Sources(config, None, flags_of(sets, state_dir=state_dir))
    plan = delivery_plan(load(sources, Facts(stores=registry.names())))
    progress = Progress(sys.stderr)
    stats = service.deliver(plan, directory, timeout_s, progress.told)
    if as_json:
        print_json(stats)
    else:
        for damage in stats["damage"]:
            out().print(f"damage, kept in the journal's quarantine: {damage}", markup=False)
        out().print(
            f"{amount(stats['stored'])} stored, {amount(stats['superseded'])} superseded, "
            f"{amount(stats['dead'])} dead, {amount(stats['pending'])} left of "
            f"{amount(stats['found'])} in {directory}",
            markup=False,
        )
    if stats["pending"]:
        why = f" ({progress.problem})" if progress.problem else ""
        raise LabelerError(
            f"{stats['pending']} of {stats['found']} labels are still in {directory}{why}; run the "
            "same command again"
        )


class Progress:
    """A line every few seconds: how many are left, and what is in the way."""

    def __init__(self, stream: TextIO) -> None:
        """The first line comes with the first reading."""
        self._stream, self._next_s = stream, 0.0
        self.problem = ""

    def told(self, stats: Mapping[str, Any], problem: Callable[[], str]) -> None:
        """A reading; most are not shown."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _PROGRESS_S
        self.problem = problem()
        why = f"; {self.problem}" if self.problem else ""
        found, left = amount(stats["found"]), amount(stats["pending"])
        print(f"labeler: {left} of {found} labels left{why}", file=self._stream, flush=True)


def _journal(directory: Path) -> Path:
    """The journal's folder: `journal` below a state directory, else the folder itself."""
    inner = directory / "journal"
    found = inner if inner.is_dir() else directory
    if not found.is_dir():
        raise DiskError(f"{directory} is no folder; give a journal or the state directory")
    return found
