"""`labeler journal verify|stat|dump`: looks at a journal's files and touches nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from labeler.cli.common import JsonOption, help_of, print_json
from labeler.cli.tables import amount, bytes_text, out, table
from labeler.errors import DiskError

__all__ = ["register"]

_DUMP_ROWS = 1000
_NUMBER_MAX = (1 << 63) - 1

DirArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A journal, or the state directory that holds it.")
]


def register(app: typer.Typer) -> None:
    """Adds the group of commands."""
    group = typer.Typer(
        help="Look at a journal's files; nothing is changed.", rich_markup_mode=None
    )
    group.command(help=help_of(verify))(verify)
    group.command(help=help_of(stat))(stat)
    group.command(help=help_of(dump))(dump)
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
    from labeler import service

    path, left, number = str(_journal(directory)), rows_max, from_number
    while rows_max == 0 or left > 0:
        wanted = min(left, _DUMP_ROWS) if rows_max else _DUMP_ROWS
        group = service.journal_dump(path, number, wanted)
        for record in group:
            if as_json:
                print(json.dumps(record, ensure_ascii=False, default=str))
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


def _journal(directory: Path) -> Path:
    """The journal's folder: `journal` below a state directory, else the folder itself."""
    inner = directory / "journal"
    found = inner if inner.is_dir() else directory
    if not found.is_dir():
        raise DiskError(f"{directory} is no folder; give a journal or the state directory")
    return found
