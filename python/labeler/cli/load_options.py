"""What `fleet`, `replay` and `demo` share: options, and a run with its live lines and its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labeler import open_files
from labeler.cli.common import print_json
from labeler.cli.load_view import LiveLines, show_report

if TYPE_CHECKING:
    from labeler.fleet.drive import Target, Wanted
    from labeler.fleet.load import Load
    from labeler.fleet.report import FleetReport
    from labeler.fleet.rows import Rows

__all__ = [
    "AcksOption",
    "AuditOption",
    "CallsOption",
    "ConnectionsOption",
    "DurabilityOption",
    "ForOption",
    "HistogramsOption",
    "ModelOption",
    "RateOption",
    "RobotsOption",
    "SeedOption",
    "WarmUpOption",
    "exit_code",
    "run_load",
]

RobotsOption = Annotated[int, typer.Option("--robots", min=1, help="How many robots.")]
RateOption = Annotated[float, typer.Option("--rate", help="Labels per second and robot.")]
ForOption = Annotated[str, typer.Option("--for", help="How long to send, such as 30s.")]
WarmUpOption = Annotated[
    str, typer.Option("--warm-up", help="Sent before, and left out of the figures, such as 3s.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of the robots and the schedule.")]
CallsOption = Annotated[
    Literal["stream", "unary"],
    typer.Option("--calls", help="A stream for each robot, or a call for each label."),
]
ConnectionsOption = Annotated[
    int,
    typer.Option("--connections", min=0, help="0: a sensible few; as many as robots: one each."),
]
DurabilityOption = Annotated[
    Literal["BUFFERED", "JOURNALED", "STORED"] | None,
    typer.Option("--durability", help="Else the service's default."),
]
ModelOption = Annotated[
    str, typer.Option("--model", help="Else the one that is served, or that knows these labels.")
]
HistogramsOption = Annotated[
    Path | None, typer.Option("--histograms", metavar="DIR", help="Write HdrHistogram logs there.")
]
AcksOption = Annotated[
    Path | None,
    typer.Option("--acks", metavar="FILE", help="Write each acknowledged label there, as CSV."),
]
AuditOption = Annotated[
    bool, typer.Option("--audit", help="Read every acknowledged label back, and account for it.")
]


def run_load(target: Target, load: Load, rows: Rows, wanted: Wanted, as_json: bool) -> FleetReport:
    """Drives the load and prints: lines and tables, or one JSON object and nothing else."""
    from labeler.fleet.drive import drive

    open_files.raise_limit()  # each connection is one
    report = drive(target, load, rows, wanted, None if as_json else LiveLines())
    if as_json:
        print_json(report.to_json())
    else:
        show_report(report)
    return report


def exit_code(report: FleetReport, wanted: Wanted) -> int:
    """1 where the accounts are not exact, labels were lost, nobody answered, or no audit ended."""
    audited = report.audit is not None or not wanted.audit
    accounted = not report.lost and not report.unaccounted
    return 0 if report.result["answered"] and audited and accounted else 1
