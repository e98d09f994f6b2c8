"""`labeler status`: the golden figures of a running service."""

from __future__ import annotations

from typing import Any

import typer

from labeler.cli.common import AdminOption, JsonOption, admin_address, help_of, print_json
from labeler.cli.tables import amount, bytes_text, duration, out, table
from labeler.telemetry.reader import read_page

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(help=help_of(status))(status)


def status(admin: AdminOption = "", as_json: JsonOption = False) -> None:
    """Show what a running service does: rate, latencies, accounting, journal, writer.

    Percentiles and rates are of the last ten seconds, totals since the start.

    Examples:
      labeler status
      labeler status --admin 127.0.0.1:9464
      labeler status --json | jq .journal.pending
    """
    found = read_page(admin_address(admin), "/status")
    if as_json:
        print_json(found)
    else:
        show(found)


def show(found: dict[str, Any]) -> None:
    """Prints a status for people."""
    console = out()
    up, rate = duration(found["uptime_us"]), found["labels_per_s"]
    console.print(f"[bold]{found['state']}[/] for {up}, version {found['version']}")
    console.print(f"{rate:,.1f} labels/s now, {amount(found['labels_total'])} since the start")
    console.print(stage_table(found["stages"], f"stages, last {duration(found['window_us'])}"))
    outcomes = ("received", "answered", "rejected", "expired", "cancelled", "failed", "in_flight")
    rows = [
        [method, *(amount(counts[name]) for name in outcomes)]
        for method, counts in found["methods"].items()
    ]
    console.print(
        table("requests", ["method", *(name.replace("_", " ") for name in outcomes)], rows)
    )
    for queue in found["queues"]:
        serving = "serving" if queue["serving"] else "standby"
        waiting = f"{amount(queue['robot_rows'])} robots' rows, {amount(queue['bulk_rows'])} bulk"
        model = f"{queue['model']} {queue['version']}"
        console.print(f"model    {model} ({serving}), waiting: {waiting}", markup=False)
    process = found["process"]
    cpu_us = process["cpu_user_us"] + process["cpu_system_us"]
    memory = f"{bytes_text(process['resident_bytes'])}, at most "
    memory += bytes_text(process["resident_bytes_max"])
    console.print(f"process  {process['pid']}, CPU {duration(cpu_us)}, memory {memory}")
    journal, writer = found["journal"], found["writer"]
    disk = f"{bytes_text(journal['disk_bytes'])} of {bytes_text(journal['disk_bytes_max'])}"
    oldest = duration(journal["oldest_pending_us"])
    console.print(f"journal  {amount(journal['pending'])} pending, oldest {oldest}; disk {disk}")
    state = f"failing for {duration(writer['failing_us'])}" if writer["failing_us"] else "working"
    console.print(
        f"writer   {state}, lag {duration(writer['lag_us'])}, "
        f"{amount(journal['stored_total'])} stored, {amount(writer['failures_total'])} failures"
    )


def stage_table(stages: list[dict[str, Any]], title: str) -> Any:
    """Percentiles a stage, in the order of the path."""
    rows = [
        [
            stage["stage"],
            amount(stage["count"]),
            *(duration(stage[f"us_{share}"]) for share in ("p50", "p99", "p999")),
        ]
        for stage in stages
    ]
    return table(title, ["stage", "labels", "p50", "p99", "p99.9"], rows)
