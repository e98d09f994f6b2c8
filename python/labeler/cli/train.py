"""`labeler train`: a packaged model again, or a model of somebody's own table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labeler.cli.common import JsonOption, columns_of, help_of, print_json
from labeler.cli.tables import amount, out, table
from labeler.models.errors import TrainingError

if TYPE_CHECKING:
    from labeler.models.data import Columns
    from labeler.models.training import Task

__all__ = ["register"]

_OWN = "labeler train --data FILE --label COLUMN --split time|run:COLUMN"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(help=help_of(train))(train)


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="[RECIPE]", help="kiva-floor or wall-following.")
    ] = "",
    data: Annotated[
        str, typer.Option("--data", metavar="PATH", help="A CSV table; a recipe's folder.")
    ] = "",
    label: Annotated[str, typer.Option("--label", help="The column to learn.")] = "",
    split: Annotated[str, typer.Option("--split", help="time, time:COLUMN or run:COLUMN.")] = "",
    drop: Annotated[
        str, typer.Option("--drop", metavar="COLUMNS", help="Left out, separated by commas.")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Else the table's.")] = "",
    version: Annotated[str, typer.Option("--version", help="The version to write.")] = "1",
    into: Annotated[Path, typer.Option("--out", metavar="DIR", help="A model repository.")] = Path(
        "models"
    ),
    family: Annotated[str, typer.Option("--family", help="auto, network or trees.")] = "auto",
    blocks: Annotated[int, typer.Option("--blocks", help="How many held-out blocks.")] = 5,
    missing: Annotated[
        str, typer.Option("--missing", help="Rows with a missing value: drop or refuse.")
    ] = "drop",
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same model.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Train a model, judge it on rows it has not seen, package it with its report.

    A table is split by time or by run, never shuffled. The model is packaged as
    int8 and fp32 if int8 keeps 99.9 % of fp32's accuracy, else as fp32.

    Examples:
      labeler train --data rides.csv --label stopped --split run:ride
      labeler train --data log.csv.gz --label state --split time --drop id,note
      labeler train kiva-floor --out models
      labeler train wall-following --data wall-following/ --version 2
    """
    with _needs_the_extra():
        from labeler.models.training import package_best

        if recipe:
            _refuse_own(recipe, label=label, split=split, drop=drop, name=name)
            task = _recipe(recipe, data, version, seed)
        else:
            columns = _columns(data, label, split, drop, missing)
            task = _own_task(Path(data), columns, (blocks, family), (name, version, seed))
        trained = package_best(task, into, lambda text: print(text, file=sys.stderr))
    if as_json:
        print_json({"folder": str(trained.folder), "report": trained.report})
    else:
        _show(trained.folder, trained.report)


@contextmanager
def _needs_the_extra() -> Iterator[None]:
    """What is not installed is said in one line, with the remedy."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "labeler").partition(".")[0]
        if missing == "labeler":
            raise
        raise TrainingError(
            f"{missing} is not installed; training needs more than the service: "
            "pip install 'labeler[serve,train]'"
        ) from error


def _refuse_own(recipe: str, **given: str) -> None:
    for option, value in given.items():
        if value:
            raise TrainingError(
                f"--{option} {value!r} is for a table of your own, expected {recipe} without it"
            )


def _recipe(recipe: str, data: str, version: str, seed: int) -> Task:
    from labeler.models.recipes import RECIPES

    if recipe not in RECIPES:
        known = " or ".join(RECIPES)
        raise TrainingError(f"no recipe {recipe!r}, expected {known}; for a table of yours: {_OWN}")
    return RECIPES[recipe](Path(data) if data else None, version, seed)


def _columns(data: str, label: str, split: str, drop: str, missing: str) -> Columns:
    from labeler.models.data import Columns
    from labeler.models.recipes import split_columns

    for option, value in (("--data", data), ("--label", label), ("--split", split)):
        if not value:
            raise TrainingError(f"{option} is missing, expected a recipe or {_OWN}")
    if missing not in ("drop", "refuse"):
        raise TrainingError(f"--missing {missing!r}, expected drop or refuse")
    run, time = split_columns(split)
    return Columns(label, columns_of(drop), run, time, missing == "refuse")


def _own_task(
    data: Path, columns: Columns, how: tuple[int, str], called: tuple[str, str, int]
) -> Task:
    """`how`: blocks and family. `called`: name, version and seed."""
    from labeler.models.recipes import OwnTable, own_table

    name, version, seed = called
    name = name or data.name.partition(".")[0].lower()
    return own_table(OwnTable(data, columns, *how), name, version, seed)


def _show(folder: Path, report: dict[str, Any]) -> None:
    console = out()
    console.print(table(*_figures(report)))
    data, int8 = report["data"], report["int8"]
    dropped = data["rows_dropped_for_missing_values"]
    left_out = f", {amount(dropped)} left out for missing values" if dropped else ""
    lines = [
        f"data       {data['source']}, {amount(data['rows'])} rows{left_out}",
        f"split      {report['split']['kind']}, {len(report['split']['folds'])} folds",
        f"int8       {int8['reason']}",
        f"package    {folder}: {', '.join(report['model']['precisions'])}, with report.json",
    ]
    console.print("\n".join(lines), markup=False)


def _figures(report: dict[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Title, columns and rows: each precision that was judged, then the baseline's forest."""
    judged = [(report["model"]["family"] + f" {p}", f) for p, f in report["evaluation"].items()]
    for other in report["candidates"][1:]:
        judged.append((f"{other['family']} fp32, not chosen", other["fp32"]))
    forest = report["baseline"].get("forest")
    if isinstance(forest, dict):
        judged.append(("baseline forest", forest))
    rare = any("rare" in found for _, found in judged)
    columns = ["on held-out rows", "accuracy", "macro F1"]
    columns += ["average precision", "F1 at 0.5"] if rare else []
    rows = []
    for name, found in judged:
        shown = [found["accuracy"], found["f1_macro"]]
        if rare:
            shown += [found["rare"]["average_precision"], found["rare"]["f1_at_half"]]
        rows.append([name, *("—" if value is None else f"{value:.4f}" for value in shown)])
    model = report["model"]
    return f"{model['name']}@{model['version']}", columns, rows
