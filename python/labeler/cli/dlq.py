"""`labeler dlq list|show|redrive|purge|export`: the labels that the store refused for good.

Works beside a running service and without one. Only `redrive` and `purge` change anything.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from labeler.cli.common import ConfigOption, JsonOption, SetOption, help_of
from labeler.cli.dlq_rewrite import Tally, rewrite
from labeler.cli.dlq_select import Found, Selection, checked, counts, open_all
from labeler.cli.dlq_view import as_dict, reasons_line, show_letter, show_table
from labeler.cli.tables import amount
from labeler.errors import DiskError, InvalidRequestError
from labeler.stores.base import StoreUnavailableError

__all__ = ["register"]

StateOption = Annotated[
    str | None, typer.Option("--state-dir", metavar="DIR", help="Else `state_dir`.")
]
IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="As `labeler dlq list` shows them.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All of them.")]
RobotOption = Annotated[
    str | None, typer.Option("--robot", metavar="ROBOT", help="Only of this robot.")
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only with it in the reason.")
]


def register(app: typer.Typer) -> None:
    """Adds the group of commands."""
    group = typer.Typer(
        help="Labels that the store refused for good: look, write again, keep, drop.",
        rich_markup_mode=None,
    )
    for command in (list_letters, show, redrive, purge, export):
        name = "list" if command is list_letters else command.__name__
        group.command(name, help=help_of(command))(command)
    app.add_typer(group, name="dlq", no_args_is_help=True)


def list_letters(
    robot: RobotOption = None,
    reason: ReasonOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many.")] = (
        100
    ),
    after: Annotated[str, typer.Option("--after", metavar="ID", help="Go on behind it.")] = "",
    state_dir: StateOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters, oldest first, and how many there are by reason.

    Examples:
      labeler dlq list
      labeler dlq list --robot robot-17 --limit 20
      labeler dlq list --json | jq '.dead_letters[].reason'
    """
    with open_all(checked(config, sets, state_dir)) as found:
        chosen = list(found.matching(Selection(robot=robot, reason=reason), after, limit + 1))
        total, reasons = counts(found)
        shown, more = chosen[:limit], len(chosen) > limit
        if as_json:
            letters = [as_dict(item) for item in shown]
            _print({"dead_letters": letters, "more": more, "count": total, "reasons": reasons})
            return
        if shown:
            show_table(shown)
        if more:
            print(f"there are more: --after {shown[-1].id}")
        print(reasons_line(total, reasons))


def show(
    number: Annotated[str, typer.Argument(metavar="ID", help="As `labeler dlq list` shows it.")],
    state_dir: StateOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter with all its fields.

    Examples:
      labeler dlq show 7
      labeler dlq show u12 --json | jq -r .body_hex | xxd -r -p
    """
    with open_all(checked(config, sets, state_dir)) as found:
        [item] = found.matching(Selection([number]))
        if as_json:
            _print(as_dict(item))
        else:
            show_letter(item)


def redrive(
    ids: IdsArgument = None,
    every: AllOption = False,
    robot: RobotOption = None,
    reason: ReasonOption = None,
    state_dir: StateOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write dead letters to the configured store again.

    What is stored leaves the dead letters, and so does what a later label of the same journal and
    key has superseded. What is refused again stays, with the new reason.

    Examples:
      labeler dlq redrive --all
      labeler dlq redrive 7 8 9
      labeler dlq redrive --reason 'too large' --config labeler.toml

    Exit codes: 0 all were tried, 1 some are left since the store takes none now,
    64 configuration, 74 disk.
    """
    selection = Selection(ids, every, robot, reason)
    settings = checked(config, sets, state_dir)
    with open_all(settings) as found:
        letters = found.redrivable(selection)
        tally, problem = rewrite(settings, found, letters)
        _told_redrive(tally, as_json)
        if problem:
            raise StoreUnavailableError(
                f"{problem}; {amount(tally.left)} are left: try again later"
            )


def _told_redrive(tally: Tally, as_json: bool) -> None:
    if as_json:
        _print(vars(tally))
    else:
        print(
            f"{amount(tally.stored)} stored, {amount(tally.superseded)} superseded by later labels,"
            f" {amount(tally.refused)} refused again, {amount(tally.left)} left"
        )


def purge(
    ids: IdsArgument = None,
    every: AllOption = False,
    robot: RobotOption = None,
    reason: ReasonOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    state_dir: StateOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop dead letters for good: these labels are lost then. Asks first.

    Examples:
      labeler dlq purge 7
      labeler dlq purge --all --yes
    """
    selection = Selection(ids, every, robot, reason)
    selection.must_choose()
    with open_all(checked(config, sets, state_dir)) as found:
        chosen = list(found.matching(selection))
        question = f"drop {amount(len(chosen))} dead letters for good?"
        if chosen and not yes and not typer.confirm(question, err=True):
            raise InvalidRequestError("nothing was dropped")
        dropped = found.drop(chosen)
        if as_json:
            _print({"dropped": dropped})
        else:
            print(f"{amount(dropped)} dropped")


def export(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Written whole or not; - is stdout.")],
    robot: RobotOption = None,
    reason: ReasonOption = None,
    state_dir: StateOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write dead letters as JSON, one a line, with every field exact; none is removed.

    With --json the count is printed as JSON, too.

    Examples:
      labeler dlq export dead.jsonl
      labeler dlq export - --robot robot-17 | jq .row.label
    """
    with open_all(checked(config, sets, state_dir)) as found:
        selection = Selection(robot=robot, reason=reason)
        if file == "-":
            count = _write_lines(sys.stdout, found, selection)
        else:
            count = _write_file(Path(file), found, selection)
        told = json.dumps({"exported": count}) if as_json else f"{amount(count)} exported"
        print(told, file=sys.stderr if file == "-" else sys.stdout)


def _write_file(path: Path, found: Found, selection: Selection) -> int:
    """Under another name first, and on disk when this returns: who exports may purge next."""
    written = path.with_name(f"{path.name}.new")
    try:
        try:
            with written.open("w", encoding="ascii") as out:
                count = _write_lines(out, found, selection)
                out.flush()
                os.fsync(out.fileno())
            written.replace(path)
        except BaseException:
            with suppress(OSError):
                written.unlink()
            raise
    except OSError as error:
        raise DiskError(f"{path} cannot be written: {error.strerror}; nothing was left") from error
    return count


def _write_lines(out: Any, found: Found, selection: Selection) -> int:
    count = 0
    for item in found.matching(selection):
        print(json.dumps(as_dict(item)), file=out)
        count += 1
    return count


def _print(value: dict[str, Any] | Sequence[Any]) -> None:
    # ASCII: a robot's id may hold what a terminal's encoding has not.
    print(json.dumps(value, indent=2))
