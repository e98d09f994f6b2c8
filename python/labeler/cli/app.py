"""The commands, one file each; a run loads only the file of the command that it names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import NoReturn

import typer

from labeler.cli.ending import run_to_end

__all__ = ["COMMANDS", "app_for", "app_of", "run"]

COMMANDS = (
    "labeler.cli.serve",
    "labeler.cli.label",
    "labeler.cli.status",
    "labeler.cli.fleet",
    "labeler.cli.replay",
    "labeler.cli.report",
    "labeler.cli.matrix",
    "labeler.cli.demo",
    "labeler.cli.train",
    "labeler.cli.version",
    # groups of commands
    "labeler.cli.journal",
    "labeler.cli.dlq",
    "labeler.cli.models",
    "labeler.cli.store",
    "labeler.cli.config",
)
"""The files of the commands, in the order of the help."""


def app_of(files: Iterable[str]) -> typer.Typer:
    """The command line with these of its commands. Errors: `ModuleNotFoundError`."""
    app = typer.Typer(
        name="labeler",
        help="Labels for robots: serves a model, keeps every label, shows what it does.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(lambda: None)  # a command line with one command still has its name
    for file in files:
        import_module(file).register(app)
    return app


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The command line with the command that these arguments name; with all where they name none.

    Errors: `ModuleNotFoundError`.
    """
    named = [file for file in COMMANDS if file.split(".")[-1:] == list(arguments[:1])]
    return app_of(named or COMMANDS)


def run(app: typer.Typer) -> NoReturn:
    """Runs the command of `sys.argv` and exits with its code."""

    def command() -> int:
        app()
        return 0

    run_to_end(command)
