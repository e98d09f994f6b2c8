"""`labeler fleet`: the simulated fleet against a running service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from labeler.cli.common import (
    AddressOption,
    AdminOption,
    JsonOption,
    help_of,
    seconds_of,
    target_addresses,
)
from labeler.cli.load_options import (
    AcksOption,
    AuditOption,
    CallsOption,
    ConnectionsOption,
    DurabilityOption,
    ForOption,
    HistogramsOption,
    ModelOption,
    RateOption,
    RobotsOption,
    SeedOption,
    WarmUpOption,
    exit_code,
    run_load,
)
from labeler.cli.tables import amount, out
from labeler.errors import DiskError, InvalidRequestError

if TYPE_CHECKING:
    from labeler.fleet import Faults
    from labeler.fleet.load import Shape
    from labeler.fleet.rows import Crew, FloorRows

__all__ = ["register"]

ShapeOption = Annotated[
    Literal["constant", "poisson", "step", "ramp", "flash-crowd"],
    typer.Option("--schedule", help="When labels are asked for."),
]
ToRateOption = Annotated[
    float | None, typer.Option("--to-rate", help="Of step and ramp; else twice --rate.")
]
FactorOption = Annotated[float | None, typer.Option("--factor", help="Of flash-crowd; else 10.")]
AtOption = Annotated[
    str, typer.Option("--at", help="When the step comes, else halfway; the flash-crowd, else 1/3.")
]
FaultOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="KIND[:SHARE]",
        help="bias, dust, dead-sensor, burst or flapping-link, else of a tenth of the robots; "
        "may be repeated.",
    ),
]
FloorOption = Annotated[int, typer.Option("--floor", min=0, help="Which floor: its seed.")]
MapOption = Annotated[
    Path | None,
    typer.Option("--map", metavar="FILE.svg", help="Draw the floor and leave; needs no service."),
]

_FAULTS = {
    "bias": "bias_share",
    "dust": "dust_share",
    "dead-sensor": "dead_share",
    "burst": "burst_share",
    "flapping-link": "flap_share",
}
_FAULT_SHARE = 0.1


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(help=help_of(fleet))(fleet)


def fleet(
    robots: RobotsOption = 2300,
    rate: RateOption = 1.0,
    lasts: ForOption = "30s",
    warm_up: WarmUpOption = "",
    calls: CallsOption = "stream",
    connections: ConnectionsOption = 0,
    durability: DurabilityOption = None,
    model: ModelOption = "",
    schedule: ShapeOption = "constant",
    to_rate: ToRateOption = None,
    factor: FactorOption = None,
    at: AtOption = "",
    fault: FaultOption = None,
    floor: FloorOption = 7,
    seed: SeedOption = 1,
    address: AddressOption = "",
    admin: AdminOption = "",
    histograms: HistogramsOption = None,
    acks: AcksOption = None,
    audit: AuditOption = False,
    draw: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send what a simulated fleet senses to a running service, and show what comes back.

    Robots on a warehouse floor ask for labels by a fixed schedule, whatever the service does: the
    latency counts from the planned time. Each answer is compared with the truth. A line a second,
    then the service's stages, the robots' percentiles, accuracy, and where every label is.

    Examples:
      labeler fleet
      labeler fleet --robots 2300 --rate 1 --for 30s --audit
      labeler fleet --schedule flash-crowd --factor 10 --durability BUFFERED
      labeler fleet --fault dust --fault dead-sensor:0.05
      labeler fleet --address 10.0.0.7:50051 --admin 10.0.0.7:9464 --json | jq .p99_ms
      labeler fleet --map floor.svg

    Exit codes: 0 also when requests failed or the run is invalid, which it says; 1 when nobody
    answers, when an acknowledged label is lost, or when the accounts are not exact.
    """
    from labeler.fleet.load import Load
    from labeler.fleet.rows import Crew, FloorRows

    crew = Crew(robots, rate, floor, seed, _faults(fault or []))
    rows = FloorRows(crew)
    if draw is not None:
        _draw(rows, draw)
        return
    lasts_s = seconds_of(lasts, "--for")
    warm_up_s = seconds_of(warm_up, "--warm-up") if warm_up else 0.0
    details = {"to_rate": to_rate, "factor": factor, "at": seconds_of(at, "--at") if at else None}
    shaped = _schedule(crew, rows, schedule, (warm_up_s, lasts_s), details)
    asked = durability or ""
    load = Load(robots, shaped, lasts_s, warm_up_s, calls, connections, asked, model, seed=seed)
    from labeler.fleet.drive import Target, Wanted

    wanted = Wanted(histograms, acks, audit)
    target = Target(*target_addresses(address, admin))
    raise typer.Exit(exit_code(run_load(target, load, rows, wanted, as_json), wanted))


def _draw(rows: FloorRows, file: Path) -> None:
    """The floor and its robots at the first tick, as SVG. Errors: `DiskError`."""
    from labeler.fleet.floor_map import draw_map

    text = draw_map(rows.fleet, rows.fleet.step())
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DiskError(f"write {file}: {error.strerror or error}") from error
    out().print(f"{file}: {amount(rows.fleet.robots)} robots on a floor", markup=False)


def _schedule(
    crew: Crew,
    rows: FloorRows,
    shape: Shape,
    parts_s: tuple[float, float],
    details: dict[str, float | None],
) -> dict[str, Any]:
    """When rows are sent. `parts_s`: warm-up and measured part; `details` with rates of a robot."""
    from labeler.fleet.load import make_schedule

    said = {name: value for name, value in details.items() if value is not None}
    if "to_rate" in said:
        said["to_rate"] *= crew.robots
    plain = make_schedule(shape, crew.rate_per_s * crew.robots, parts_s[1], said)
    if not crew.faults or not (crew.faults.burst_share or crew.faults.flap_share):
        return plain
    if shape != "constant":
        raise InvalidRequestError(
            f"--schedule {shape} with --fault burst or flapping-link, expected constant: "
            "these faults change themselves when robots send"
        )
    return {"shape": "times", "at_us": rows.arrivals_us(sum(parts_s))}


def _faults(texts: list[str]) -> Faults:
    """`dust` or `dust:0.3`, each once. Errors: `InvalidRequestError`."""
    from labeler.fleet import Faults

    shares: dict[str, Any] = {}
    for text in texts:
        kind, colon, share = text.partition(":")
        if kind not in _FAULTS:
            raise InvalidRequestError(f"--fault {text}, expected one of {', '.join(_FAULTS)}")
        try:
            shares[_FAULTS[kind]] = float(share) if colon else _FAULT_SHARE
        except ValueError:
            raise InvalidRequestError(
                f"--fault {text}, expected a share of the robots, such as {kind}:0.3"
            ) from None
    return Faults(**shares)
