"""`labeler report`: how late a running service's labels are, and whose time it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

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
from labeler.cli.load_options import (
    CallsOption,
    ConnectionsOption,
    DurabilityOption,
    ForOption,
    ModelOption,
    RateOption,
    RobotsOption,
    SeedOption,
    WarmUpOption,
    exit_code,
)
from labeler.cli.status import stage_table
from labeler.cli.tables import amount, duration, out, table

if TYPE_CHECKING:
    from labeler.fleet.report import FleetReport

__all__ = ["register"]

_PLACES = {
    "client": "client, from the planned time",
    "client_from_send": "client, from the real send",
    "server": "server, as replies say",
    "network": "network: client minus server",
}
_SHARES = {
    "mean": "mean",
    "p50": "p50",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
    "max": "max",
}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(help=help_of(report))(report)


def report(
    robots: RobotsOption = 2300,
    rate: RateOption = 1.0,
    lasts: ForOption = "10s",
    warm_up: WarmUpOption = "2s",
    calls: CallsOption = "stream",
    connections: ConnectionsOption = 0,
    durability: DurabilityOption = None,
    model: ModelOption = "",
    seed: SeedOption = 1,
    address: AddressOption = "",
    admin: AdminOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask a running service for labels by a fixed schedule, and show the mean beside p99.

    Latencies at the client, in the service and between the two (client minus server, call by
    call), each with mean, p50, p95, p99 and p99.9. The values are made up, for any model; their
    labels are stored like all others, under robots called probe-0, probe-1, ….

    Examples:
      labeler report
      labeler report --robots 1150 --for 30s --calls unary
      labeler report --address 10.0.0.7:50051 --admin 10.0.0.7:9464 --model pallets
      labeler report --json | jq .latency_ms.network.p99

    Exit codes: 0 also when requests failed or the run is invalid, which it says; 1 when nobody
    answers, when an acknowledged label is lost, or when the accounts are not exact.
    """
    from labeler.fleet.drive import Target, Wanted, drive
    from labeler.fleet.load import Load
    from labeler.fleet.probe import PREFIX, one_model, serving
    from labeler.fleet.rows import PlainRows

    lasts_s = seconds_of(lasts, "--for")
    warm_up_s = seconds_of(warm_up, "--warm-up") if warm_up else 0.0
    target = Target(*target_addresses(address, admin))
    asked = one_model(serving(target.address), model)
    load = Load(
        robots,
        {"shape": "constant", "rate_per_s": rate * robots},
        lasts_s,
        warm_up_s,
        calls,
        connections,
        durability or "",
        asked.name,
        seed=seed,
        robot_prefix=PREFIX,
    )
    open_files.raise_limit()
    wanted = Wanted()
    found = drive(target, load, PlainRows(asked.width, robots, seed), wanted)
    if as_json:
        print_json(_json(found))
    else:
        _show(found)
    raise typer.Exit(exit_code(found, wanted))


def _json(found: FleetReport) -> dict[str, Any]:
    from labeler.fleet.probe import MEASURED, latencies_ms

    server = found.server
    return {
        "model": f"{found.model.name} {found.model.version}",
        "labels": found.result["answered"],
        "labels_per_s": found.labels_per_s,
        "rate_planned_per_s": found.result["rate_planned_per_s"],
        "errors_by_kind": found.errors,
        "latency_ms": latencies_ms(found.result),
        "stages": server.stages if server else [],
        "server_cpu_us_per_label": server.cpu_us_per_label if server else None,
        "durabilities": found.result["durabilities"],
        "valid": found.result["valid"],
        "invalid_because": list(found.result["invalid_because"]),
        "lost": found.lost,
        "unaccounted": list(found.unaccounted),
        "notes": _notes(found),
        "measured": MEASURED,
    }


def _show(found: FleetReport) -> None:
    from labeler.fleet.probe import latencies_ms

    console, result = out(), found.result
    latency = latencies_ms(result)
    rows = [
        [words, *(duration(latency[place][share] * 1000) for share in _SHARES)]
        for place, words in _PLACES.items()
    ]
    title = f"{amount(result['answered'])} labels of {found.model.name} {found.model.version}"
    console.print(table(title, ["", *_SHARES.values()], rows))
    if found.server and found.server.stages:
        console.print(stage_table(found.server.stages, "in the service, by stage"))
    errors = ", ".join(f"{amount(count)} {kind}" for kind, count in found.errors.items())
    planned = result["rate_planned_per_s"]
    lines = [
        ("mean", _mean(latency["client"])),
        ("labels", f"{found.labels_per_s:,.0f}/s answered of {planned:,.0f}/s planned"),
        ("errors", errors or "none"),
    ]
    if found.server and found.server.cpu_us_per_label is not None:
        lines.append(("server CPU", f"{found.server.cpu_us_per_label:.0f} µs a label"))
    lines += [("note", note) for note in _notes(found)]
    for name, text in lines:
        console.print(f"{name:<12} {escape(text)}")
    for reason in result["invalid_because"]:
        console.print(f"[bold red]INVALID[/]      {escape(reason)}")
    for problem in found.unaccounted:
        console.print(f"[bold red]UNACCOUNTED[/]  {escape(problem)}")
    if found.lost:
        console.print(f"[bold red]LOST[/]         {amount(found.lost)} acknowledged labels")


def _mean(client: dict[str, float]) -> str:
    """What it hides."""
    mean, p99 = (duration(client[share] * 1000) for share in ("mean", "p99"))
    times = client["p99"] / client["mean"] if client["mean"] else 0.0
    return f"{mean}, and one call in a hundred takes {p99} or more: {times:.1f} times the mean"


def _notes(found: FleetReport) -> list[str]:
    """All but that made-up values have no truth: nobody expects one."""
    return [note for note in found.notes if note != found.model.note]
