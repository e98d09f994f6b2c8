"""`labeler config show`: every setting in force, and where it comes from."""

from __future__ import annotations

import typer
from rich.markup import escape

from labeler.cli.common import ConfigOption, JsonOption, SetOption, flags_of, help_of, print_json
from labeler.cli.tables import out
from labeler.config import Facts, Sources, effective, load
from labeler.stores import registry

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the group of commands."""
    group = typer.Typer(help="Look at the configuration.", rich_markup_mode=None)
    # A callback keeps `show` a word of its own while it is the only command.
    group.callback()(lambda: None)
    group.command(help=help_of(show))(show)
    app.add_typer(group, name="config", no_args_is_help=True)


def show(config: ConfigOption = None, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Print every setting with its value and its origin.

    Whatever is wrong is reported at once, with exit code 64.

    Examples:
      labeler config show
      labeler config show --config labeler.toml --set path.deadline_ms=100
      labeler config show --json | jq '."path.deadline_ms".value'
    """
    facts = Facts(stores=registry.names())
    items = effective(load(Sources(config, None, flags_of(sets)), facts))
    if as_json:
        print_json({item.setting: {"value": item.value, "origin": item.origin} for item in items})
        return
    console = out()
    name = max(len(item.setting) for item in items)
    width = min(40, max(len(item.text) for item in items))
    for item in items:
        origin = escape(item.origin)
        shown = origin if item.origin.startswith("default") else f"[bold]{origin}[/]"
        console.print(f"{item.setting:{name}}  {escape(f'{item.text:{width}}')}  {shown}")
