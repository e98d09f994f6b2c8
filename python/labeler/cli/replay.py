"""`labeler replay`: payloads of a file against a running service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from labeler.cli.common import (
    AddressOption,
    AdminOption,
    JsonOption,
    help_of,
    target_addresses,
)
from labeler.cli.load_options import (
    AcksOption,
    AuditOption,
    CallsOption,
    ConnectionsOption,
    DurabilityOption,
    HistogramsOption,
    ModelOption,
    exit_code,
    run_load,
)
from labeler.cli.tables import amount, out
from labeler.errors import InvalidRequestError

if TYPE_CHECKING:
    from labeler.fleet.table import Table

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(help=help_of(replay))(replay)


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .csv or .csv.gz with a header.")],
    rate: Annotated[
        float | None, typer.Option("--rate", help="Rows per second; else the file's own times.")
    ] = None,
    speed: Annotated[
        float, typer.Option("--speed", help="How many times faster than the file's own times.")
    ] = 1.0,
    time: Annotated[
        str, typer.Option("--time", metavar="COLUMN", help="Seconds; else t_s, where it exists.")
    ] = "",
    label: Annotated[
        str, typer.Option("--label", metavar="COLUMN", help="The truth: gives the accuracy.")
    ] = "",
    sku: Annotated[str, typer.Option("--sku", metavar="COLUMN", help="The item at hand.")] = "",
    leave_out: Annotated[
        list[str] | None,
        typer.Option("--leave-out", metavar="COLUMN", help="No value; may be repeated."),
    ] = None,
    robots: Annotated[int, typer.Option("--robots", min=1, help="Who ask in turn.")] = 1,
    calls: CallsOption = "stream",
    connections: ConnectionsOption = 0,
    durability: DurabilityOption = None,
    model: ModelOption = "",
    address: AddressOption = "",
    admin: AdminOption = "",
    histograms: HistogramsOption = None,
    acks: AcksOption = None,
    audit: AuditOption = False,
    as_json: JsonOption = False,
) -> None:
    """Send the rows of a CSV file to a running service, and show what comes back.

    Values are all columns of numbers but those that are named. Each row is sent at its own time,
    or at a given rate; latency counts from that time. Reports as `labeler fleet` does.

    Examples:
      labeler replay readings.csv --rate 200 --label label
      labeler replay day.csv.gz --time t --speed 10 --robots 40
      labeler replay readings.csv --rate 50 --leave-out id --model wall-following --json

    Exit codes: 0 also when requests failed or the run is invalid, which it says; 1 when nobody
    answers, when an acknowledged label is lost, or when the accounts are not exact.
    """
    from labeler.fleet.load import Load
    from labeler.fleet.table import Columns, TableRows, read_table

    table = read_table(file, Columns(label, time, sku, tuple(leave_out or ())))
    load = Load(
        robots=robots,
        schedule=_schedule(table, rate, speed),
        duration_s=0.0,
        calls=calls,
        connections=connections,
        durability=durability or "",
        model=model,
    )
    from labeler.fleet.drive import Target, Wanted

    if not as_json:
        _show_table(table)
    wanted = Wanted(histograms, acks, audit)
    target = Target(*target_addresses(address, admin))
    report = run_load(target, load, TableRows(table), wanted, as_json)
    raise typer.Exit(exit_code(report, wanted))


def _schedule(table: Table, rate: float | None, speed: float) -> dict[str, Any]:
    if speed <= 0:
        raise InvalidRequestError(f"--speed {speed}, expected more than 0")
    if rate is not None:
        if rate <= 0:
            raise InvalidRequestError(f"--rate {rate}, expected rows per second, above 0")
        return {"shape": "times", "at_us": [round(k * 1e6 / rate) for k in range(len(table))]}
    if table.times_us is None:
        raise InvalidRequestError(
            f"{table.name} has no column t_s: say --time COLUMN, or --rate ROWS_PER_SECOND"
        )
    return {"shape": "times", "at_us": [round(at / speed) for at in table.times_us]}


def _show_table(table: Table) -> None:
    skipped = f"; left out, no numbers: {', '.join(table.skipped)}" if table.skipped else ""
    text = f"{table.name}: {amount(len(table))} rows of {len(table.columns)} values{skipped}"
    out().print(escape(text))
