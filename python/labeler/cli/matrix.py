"""`labeler matrix`: p99 of a running service by models asked and calls on their way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from labeler import open_files
from labeler.cli.common import (
    AddressOption,
    AdminOption,
    JsonOption,
    help_of,
    print_json,
    seconds_of,
    target_addresses,
)
from labeler.cli.load_options import DurabilityOption, SeedOption
from labeler.cli.tables import counts_text, duration, out, table
from labeler.errors import InvalidRequestError

if TYPE_CHECKING:
    from labeler.client import ModelVersion
    from labeler.fleet.probe import Cell

__all__ = ["register"]

ModelsOption = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME", help="Else all that are served; may be repeated."),
]
CallsAtOnceOption = Annotated[
    str, typer.Option("--calls", metavar="N,N,…", help="Calls on their way at once.")
]
CellOption = Annotated[str, typer.Option("--for", help="How long each cell takes, such as 5s.")]
WarmUpOption = Annotated[
    str, typer.Option("--warm-up", help="Sent before each, and left out of the figures.")
]
RedOption = Annotated[
    float, typer.Option("--red", min=0.001, metavar="MS", help="A p99 above it is marked, in red.")
]

_CALLS_MAX = 10_000
_CELLS_MAX = 200


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(help=help_of(matrix))(matrix)


def matrix(
    model: ModelsOption = None,
    calls: CallsAtOnceOption = "1,4,16,64",
    lasts: CellOption = "2s",
    warm_up: WarmUpOption = "500ms",
    red: RedOption = 140.0,
    durability: DurabilityOption = None,
    seed: SeedOption = 1,
    address: AddressOption = "",
    admin: AdminOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show p99 by how many models are asked and how many calls are on their way.

    Asks 1, 2, 4, … and then all models of the service in turn, each cell for a while: a closed
    loop, in which so many calls are always on their way. A p99 above --red is red and has a "!".
    The values are made up; their labels are stored like all others, under robots called probe-0,
    probe-1, …. Models are loaded with `labeler models load`.

    Examples:
      labeler matrix
      labeler matrix --calls 1,8,64,256 --for 5s --durability BUFFERED
      labeler matrix --model pallets --model doors --red 50
      labeler matrix --address 10.0.0.7:50051 --json | jq '.cells[] | [.models, .calls, .p99_ms]'

    Exit codes: 0 also where a cell is red, has errors or is invalid, which it says; 1 when nobody
    answers, or no call at all is answered with a label.
    """
    from labeler.fleet.drive import Target
    from labeler.fleet.probe import Grid, cells, model_counts, serving, together

    grid = Grid(
        _numbers(calls),
        seconds_of(lasts, "--for"),
        seconds_of(warm_up, "--warm-up") if warm_up else 0.0,
        durability or "",
        seed,
    )
    target = Target(*target_addresses(address, admin))
    models, left_out = together(serving(target.address), model or [])
    if (count := len(model_counts(len(models))) * len(grid.calls)) > _CELLS_MAX:
        raise InvalidRequestError(
            f"{count} cells, expected at most {_CELLS_MAX}: give fewer --calls"
        )
    open_files.raise_limit()
    found = list(cells(target, models, grid))
    notes = _notes(models, left_out)
    if as_json:
        print_json(_json(found, models, red, notes))
    else:
        _show(found, red, notes)
    raise typer.Exit(0 if any(cell.labels for cell in found) else 1)


def _numbers(text: str) -> tuple[int, ...]:
    """`1,4,16`. Errors: `InvalidRequestError`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= _CALLS_MAX for part in parts):
        expected = f"numbers from 1 to {_CALLS_MAX:,}, such as 1,4,16"
        raise InvalidRequestError(f"--calls {text!r}, expected {expected}")
    return tuple(dict.fromkeys(map(int, parts)))


def _notes(models: Sequence[ModelVersion], left_out: Sequence[str]) -> list[str]:
    notes = []
    if left_out:
        width = models[0].width
        notes.append(f"{', '.join(left_out)}: left out, they do not take {width} values")
    if len(models) == 1:
        notes.append(
            f"one model is asked, {models[0].name}; load more to see what several cost: "
            "labeler models load NAME"
        )
    return notes


def _json(
    found: Sequence[Cell], models: Sequence[ModelVersion], red_ms: float, notes: Sequence[str]
) -> dict[str, Any]:
    from labeler.fleet.probe import MEASURED

    return {
        "models": [f"{model.name} {model.version}" for model in models],
        "red_ms": red_ms,
        "cells": [
            asdict(cell) | {"p99_ms": cell.p99_ms, "red": _is_red(cell, red_ms)} for cell in found
        ],
        "closed_loop": True,
        "notes": list(notes),
        "measured": MEASURED,
    }


def _show(found: Sequence[Cell], red_ms: float, notes: Sequence[str]) -> None:
    console = out()
    calls = list(dict.fromkeys(cell.calls for cell in found))
    rows: dict[int, list[Cell]] = {}
    for cell in found:
        rows.setdefault(cell.models, []).append(cell)
    head = ["models asked", *(f"{count:,} calls" for count in calls)]
    shown = table("p99 at the client, by models asked and calls on their way", head, [])
    for count, row in rows.items():
        shown.add_row(Text(f"{count:,}"), *(_text(cell, red_ms) for cell in row))
    console.print(shown)
    limit = duration(red_ms * 1000)
    if any(_is_red(cell, red_ms) for cell in found):
        console.print(f"!            above {limit}")
    else:
        console.print(f"every cell   at most {limit}")
    levels: Counter[str] = sum((Counter(cell.durabilities) for cell in found), Counter())
    console.print(f"durability   {counts_text(levels)}")
    for cell in found:
        place = f"{cell.models} models, {cell.calls} calls"
        if cell.errors:
            console.print(f"[bold red]errors[/]       {place}: {escape(counts_text(cell.errors))}")
        for reason in cell.invalid_because:
            console.print(f"[bold red]INVALID[/]      {place}: {escape(reason)}")
    for note in notes:
        console.print(f"note         {escape(note)}")


def _is_red(cell: Cell, red_ms: float) -> bool:
    """A cell without a label is none that is fine."""
    return cell.p99_ms is None or cell.p99_ms > red_ms


def _text(cell: Cell, red_ms: float) -> Text:
    shown = "no label" if cell.p99_ms is None else duration(cell.p99_ms * 1000)
    return Text(f"{shown} !", "red") if _is_red(cell, red_ms) else Text(shown)
