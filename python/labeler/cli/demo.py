"""`labeler demo`: starts a service, drives the simulated fleet against it, shows the cost."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from rich.markup import escape

from labeler.cli.common import JsonOption, help_of, seconds_of
from labeler.cli.demo_service import DemoService
from labeler.cli.load_options import (
    AuditOption,
    ForOption,
    RateOption,
    RobotsOption,
    SeedOption,
    WarmUpOption,
    exit_code,
    run_load,
)
from labeler.cli.tables import amount, out

__all__ = ["register"]

_FLOOR = 7
_MODEL = "kiva-floor"

KeepOption = Annotated[bool, typer.Option("--serve", help="Keep serving afterwards.")]
StateDirOption = Annotated[
    str, typer.Option("--state-dir", help="Else a temporary one; with --serve ./labeler-state.")
]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(help=help_of(demo))(demo)


def demo(
    robots: RobotsOption = 2300,
    rate: RateOption = 1.0,
    lasts: ForOption = "20s",
    warm_up: WarmUpOption = "3s",
    seed: SeedOption = 1,
    audit: AuditOption = False,
    keep: KeepOption = False,
    state_dir: StateDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Start a service, drive a fleet of robots against it, show latencies, accuracy and CPU.

    The service runs on a free port, its state in a temporary directory. 2,300 robots on a simulated
    warehouse floor ask for a label each second; every answer is compared with the truth, and every
    label is accounted for. Robots, simulation and service share this machine's CPUs.

    Examples:
      labeler demo
      labeler demo --for 20s --robots 5000
      labeler demo --serve
      labeler demo --json | jq .server_cpu_us_per_label

    Exit codes: 1 when an acknowledged label is lost or the accounts are not exact; the service's
    own where it did not start.
    """
    from labeler.fleet.drive import Target, Wanted
    from labeler.fleet.load import Load
    from labeler.fleet.rows import Crew, FloorRows

    lasts_s = seconds_of(lasts, "--for")
    warm_up_s = seconds_of(warm_up, "--warm-up") if warm_up else 0.0
    rows = FloorRows(Crew(robots, rate, _FLOOR, seed))
    shaped = {"shape": "constant", "rate_per_s": rate * robots}
    load = Load(robots, shaped, lasts_s, warm_up_s, model=_MODEL, seed=seed)
    with ExitStack() as undo:
        # SIGTERM ends the demo as Ctrl-C does, so that its service is ended too.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        service = DemoService(_arguments(keep, state_dir, undo))
        undo.callback(service.stop)
        where = service.wait_ready()
        if not as_json:
            out().print(_opening(where, load))
        target, wanted = Target(where["grpc_address"], where["admin_address"]), Wanted(audit=audit)
        code = exit_code(run_load(target, load, rows, wanted, as_json), wanted)
        if keep:
            code = _keep_serving(service, where, as_json)
    raise typer.Exit(code)


def _arguments(keep: bool, state_dir: str, undo: ExitStack) -> Sequence[str]:
    model = ["--set", f"models.load={_MODEL}", "--set", f"models.default={_MODEL}"]
    if keep:
        return ["--state-dir", state_dir or "./labeler-state", *model]
    folder = state_dir or undo.enter_context(tempfile.TemporaryDirectory(prefix="labeler-demo-"))
    ports = ["--grpc-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"]
    return ["--state-dir", folder, *ports, *model]


def _opening(where: Mapping[str, Any], load: Any) -> str:
    rate = load.schedule["rate_per_s"]
    warm_up = f", after {load.warmup_s:g} s of warm-up that do not count" if load.warmup_s else ""
    return (
        f"[bold]labeler[/] {where['version']} serves on {where['grpc_address']}, "
        f"state in {escape(where['state_dir'])}\n"
        f"{amount(load.robots)} robots on a simulated floor ask for {amount(rate)} labels/s, "
        f"for {load.duration_s:g} s{warm_up}\n"
    )


def _keep_serving(service: DemoService, where: Mapping[str, Any], quiet: bool) -> int:
    """Serves until Ctrl-C; the service's exit code."""
    if not quiet:
        grpc, admin = where["grpc_address"], where["admin_address"]
        payload = ",".join(["1"] * 24)
        values = f'{{"robot_id":"r1","sequence":1,"payload":{{"floats":[{payload}]}}}}'
        console = out()
        console.print("\n[bold]It keeps serving.[/] Ctrl-C ends it. From another terminal:\n")
        console.print("  .venv/bin/labeler fleet --for 30s")
        console.print(f"  echo {payload} | .venv/bin/labeler label", markup=False)
        console.print("  .venv/bin/labeler status")
        console.print(f"  curl http://{admin}/metrics")
        console.print(
            f"  grpcurl -plaintext -d '{values}' {grpc} labeler.v1.LabelService/Label",
            markup=False,
        )
    try:
        return service.wait()
    except KeyboardInterrupt:
        return service.stop()  # what Ctrl-C is meant for: a clean end is no failure
