"""`labeler models list|load|unload`: the models of a running service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from labeler.cli.common import AddressOption, JsonOption, grpc_address, help_of, print_json
from labeler.cli.tables import out, table

if TYPE_CHECKING:
    from labeler.client import ModelVersion

__all__ = ["register"]

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME[@VERSION]", help="A model, or one of its versions.")
]


def register(app: typer.Typer) -> None:
    """Adds the group of commands."""
    group = typer.Typer(help="List, load and unload models of a service.", rich_markup_mode=None)
    group.command("list", help=help_of(list_models))(list_models)
    group.command(help=help_of(load))(load)
    group.command(help=help_of(unload))(unload)
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
