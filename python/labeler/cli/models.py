"""`labeler models`: the models of a running service, and versions on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labeler.cli.common import (
    AddressOption,
    JsonOption,
    columns_of,
    grpc_address,
    help_of,
    model_roots,
    print_json,
)
from labeler.cli.tables import amount, out, table
from labeler.errors import ModelInvalidError
from labeler.models.errors import TrainingError

if TYPE_CHECKING:
    from labeler.client import ModelVersion
    from labeler.models.compare import Comparison
    from labeler.models.folders import VersionFolder

__all__ = ["register"]

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME[@VERSION]", help="A model, or one of its versions.")
]

VersionArgument = Annotated[
    str, typer.Argument(metavar="PATH|NAME[@VERSION]", help="A version's folder, or its name.")
]
ContenderArgument = Annotated[
    str,
    typer.Argument(
        metavar="VERSION", help="PATH or NAME[@VERSION], and :int8 or :fp32 to choose the file."
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the group of commands."""
    group = typer.Typer(
        help="Models of a service: list, load, unload. On disk: verify, compare.",
        rich_markup_mode=None,
    )
    group.command("list", help=help_of(list_models))(list_models)
    group.command(help=help_of(load))(load)
    group.command(help=help_of(unload))(unload)
    group.command(help=help_of(verify))(verify)
    group.command(help=help_of(compare))(compare)
    app.add_typer(group, name="models", no_args_is_help=True)


def list_models(address: AddressOption = "", as_json: JsonOption = False) -> None:
    """List the loaded versions and those available in the repositories.

    Examples:
      labeler models list
      labeler models list --address 10.0.0.7:50051 --json
    """
    from labeler.client import Client

    with Client(grpc_address(address)) as client:
        _print(client.models(), as_json)


def load(
    name: NameArgument,
    standby: Annotated[
        bool, typer.Option("--standby", help="Warm it, but do not switch to it yet.")
    ] = False,
    address: AddressOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check, warm and serve a version; without one the newest. Labels go on meanwhile.

    Examples:
      labeler models load wall-following
      labeler models load wall-following@2 --standby
    """
    from labeler.client import Client

    model, _, version = name.partition("@")
    with Client(grpc_address(address)) as client:
        _print([client.load_model(model, version, standby)], as_json)


def unload(name: NameArgument, address: AddressOption = "", as_json: JsonOption = False) -> None:
    """Stop a version; without one all of the model. What it has taken is answered.

    Examples:
      labeler models unload wall-following@1
    """
    from labeler.client import Client

    model, _, version = name.partition("@")
    with Client(grpc_address(address)) as client:
        _print(client.unload_model(model, version), as_json)


def verify(version: VersionArgument, as_json: JsonOption = False) -> None:
    """Check a version on disk as the service does before it serves it, on this CPU.

    Sizes and SHA-256 of all files, the golden rows of each precision, and that an
    int8 file's rows have the same scores in every batch.

    Examples:
      labeler models verify kiva-floor
      labeler models verify models/my-model/2 --json

    Exit codes:
      0 fit to serve · 64 not, and why
    """
    from labeler.models.verify import verify_version

    found = _on_disk(version)
    checked = verify_version(found)
    problems = [one.problem for one in checked if one.problem]
    if as_json:
        files = [asdict(one) for one in checked]
        print_json({"version": found.reference, "good": not problems, "files": files})
    else:
        rows = [[one.file, one.precision, one.result or "WRONG"] for one in checked]
        out().print(table(found.reference, ["file", "precision", "result"], rows))
    if problems:
        raise ModelInvalidError(f"{found.reference}: {'; '.join(problems)}")


def compare(
    a: ContenderArgument,
    b: ContenderArgument,
    rows: Annotated[
        str, typer.Option("--rows", metavar="FILE", help="A CSV table; else the golden rows.")
    ] = "",
    label: Annotated[str, typer.Option("--label", help="Its column of true labels.")] = "",
    drop: Annotated[
        str, typer.Option("--drop", metavar="COLUMNS", help="Left out, separated by commas.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Run two versions on the same rows: agreement, accuracy, CPU time, size.

    Examples:
      labeler models compare kiva-floor:int8 kiva-floor:fp32
      labeler models compare my-model@1 my-model@2 --rows new.csv --label state
    """
    from labeler.models.compare import compare as compared
    from labeler.models.compare import contender_of, golden_rows_of
    from labeler.models.data import read_rows

    sides = []
    for reference in (a, b):
        path, colon, precision = reference.rpartition(":")
        sides.append(contender_of(_on_disk(path if colon else reference), precision * bool(colon)))
    if rows:
        given, labels = read_rows(
            Path(rows), sides[0].version.width, label or None, columns_of(drop)
        )
    elif label or drop:
        raise TrainingError("--label and --drop are columns of --rows FILE, expected it too")
    else:
        given, labels = golden_rows_of(sides[0].version, sides[1].version), []
    found = compared(sides[0], sides[1], given, labels)
    if as_json:
        print_json(found.as_dict())
    else:
        _print_comparison(found)


def _on_disk(reference: str) -> VersionFolder:
    """A version in the configured repositories or the packaged ones, or at a path."""
    from labeler.models.folders import find_version

    return find_version(reference, model_roots())


def _print_comparison(found: Comparison) -> None:
    columns = ["", "accuracy", "µs, 1 row", "µs a row, 256", "bytes"]
    lines = [
        [
            side.reference,
            "—" if side.accuracy is None else f"{side.accuracy:.4f}",
            f"{side.run_cpu_us:.1f}",
            f"{side.row_cpu_us_in_256:.2f}",
            amount(side.bytes),
        ]
        for side in found.sides
    ]
    console = out()
    title = f"{amount(found.rows)} rows, same label in {found.agreement:.2%}"
    console.print(table(title, columns, lines))
    for one, other, count in found.disagreements:
        console.print(f"{amount(count)} rows: {one} against {other}", markup=False)


def _print(found: Sequence[ModelVersion], as_json: bool) -> None:
    if as_json:
        print_json({"models": [asdict(model) for model in found]})
        return
    rows = [
        [
            f"{model.name}@{model.version}",
            model.state.lower() + (", serving" if model.serving else ""),
            str(model.width),
            str(len(model.labels)),
            model.precision,
            model.sha256[:12],
        ]
        for model in found
    ]
    columns = ["model", "state", "width", "labels", "precision", "sha256"]
    console = out()
    console.print(table("models", columns, rows))
    for model in found:
        if model.problem:
            problem = f"{model.name}@{model.version}: {model.problem}"
            console.print(problem, markup=False)
