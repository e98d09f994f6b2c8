"""`labeler store ensure|check`: makes the store that labels go to, or says how it differs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from labeler.cli.common import ConfigOption, JsonOption, SetOption, flags_of, help_of, print_json
from labeler.cli.tables import out
from labeler.config import Config, Facts, Sources, load, state_path, store_settings
from labeler.errors import LabelerError
from labeler.stores import registry

if TYPE_CHECKING:
    from labeler.stores.base import Difference, Store

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the group of commands."""
    group = typer.Typer(
        help="The store that labels go to: make it, compare it with the settings.",
        rich_markup_mode=None,
    )
    group.command(help=help_of(ensure))(ensure)
    group.command(help=help_of(check))(check)
    app.add_typer(group, name="store", no_args_is_help=True)


def ensure(
    config: ConfigOption = None, sets: SetOption = None, as_json: JsonOption = False
) -> None:
    """Create the store where it is missing, and wait until it takes labels.

    What exists is compared with the settings. The one thing that is set on an existing DynamoDB
    table is its time to live, where it has none; whatever else differs is told with the way to
    change it. Labels are never touched.

    Examples:
      labeler store ensure
      labeler store ensure --set writer.store=dynamodb --set dynamodb.region=eu-central-1
      labeler store ensure --config labeler.toml --json

    Exit codes: 0 as the settings ask for, 1 it differs or cannot be reached,
    64 configuration or no credentials, 65 written by a newer program, 74 disk.
    """
    checked = _load(config, sets)
    _show(checked, asyncio.run(_differences(checked, create=True)), as_json)


def check(config: ConfigOption = None, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Say what of the store is not as the settings ask for; change nothing.

    Examples:
      labeler store check
      labeler store check --config labeler.toml --json | jq '.differences[].name'

    Exit codes: 0 as the settings ask for, 1 it differs or cannot be reached,
    64 configuration or no credentials, 65 written by a newer program, 74 disk.
    """
    checked = _load(config, sets)
    _show(checked, asyncio.run(_differences(checked, create=False)), as_json)


def _load(config: Any, sets: Sequence[str] | None) -> Config:
    return load(Sources(config, None, flags_of(sets)), Facts(stores=registry.names()))


async def _differences(config: Config, *, create: bool) -> Sequence[Difference]:
    from labeler.stores import prepare
    from labeler.stores.base import StoreContext

    name, state = config.settings.writer.store, state_path(config)
    settings = store_settings(config.settings)
    if create:
        state.mkdir(parents=True, exist_ok=True)
    store: Store = registry.open_store(name, StoreContext(state, settings))
    try:
        if create:
            await prepare.create(store)
        return await prepare.check(store)
    finally:
        await store.close()


def _show(config: Config, found: Sequence[Difference], as_json: bool) -> None:
    name = config.settings.writer.store
    if as_json:
        print_json({"store": name, "differences": [item._asdict() for item in found]})
    elif not found:
        out().print(f"[bold]{escape(name)}[/]: as the settings ask for")
    for item in () if as_json else found:
        out().print(
            f"{item.name}: expected {item.expected}; found {item.found}\n  {item.change}",
            markup=False,
        )
    if found:
        raise typer.Exit(LabelerError.exit_code)
