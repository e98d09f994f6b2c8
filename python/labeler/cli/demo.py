"""`labeler demo`: starts a service, sends it labels, shows what that costs."""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from rich.markup import escape

from labeler.cli.common import JsonOption, help_of, print_json
from labeler.cli.demo_service import DemoService
from labeler.cli.status import stage_table
from labeler.cli.tables import amount, duration, out, table
from labeler.errors import InvalidRequestError
from labeler.telemetry.reader import read_page

__all__ = ["register"]

_RATE = 500
_UNARY_RATE = 100
_STREAMS = 16
_STORED_WAIT_S = 15


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(help=help_of(demo))(demo)


def demo(
    lasts: Annotated[str, typer.Option("--for", help="How long to send, such as 5s.")] = "5s",
    rate: Annotated[int, typer.Option("--rate", help="Labels per second.")] = _RATE,
    keep: Annotated[bool, typer.Option("--serve", help="Keep serving afterwards.")] = False,
    state_dir: Annotated[
        str, typer.Option("--state-dir", help="Else a temporary one; with --serve ./labeler-state.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Start a service, send it labels from synthetic robots, show latencies and CPU.

    Random payloads, 500 a second by default: most over streams, some as single
    calls. Client and service share this machine's CPUs.

    Examples:
      labeler demo
      labeler demo --for 20s --rate 5000
      labeler demo --serve
      labeler demo --json | jq .server.cpu_us_per_label
    """
    seconds = _seconds(lasts)
    if rate <= _UNARY_RATE:
        raise InvalidRequestError(f"--rate {rate}, expected more than {_UNARY_RATE}")
    with ExitStack() as undo:
        # SIGTERM ends the demo as Ctrl-C does, so that its service is ended too.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        service = DemoService(_arguments(keep, state_dir, undo))
        undo.callback(service.stop)
        where = service.wait_ready()
        if not as_json:
            out().print(_opening(where, rate, seconds))
        report = _measure(where, rate, seconds)
        if as_json:
            print_json(report)
        else:
            _show(report)
        if keep:
            _keep_serving(service, where, as_json)


def _arguments(keep: bool, state_dir: str, undo: ExitStack) -> Sequence[str]:
    if keep:
        return ["--state-dir", state_dir or "./labeler-state"]
    folder = state_dir or undo.enter_context(tempfile.TemporaryDirectory(prefix="labeler-demo-"))
    ports = ["--grpc-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"]
    return ["--state-dir", folder, *ports]


def _measure(where: dict[str, Any], rate: int, seconds: float) -> dict[str, Any]:
    """Sends the load between two readings of the service; the report as JSON."""
    from labeler.cli.demo_load import Load, run

    address, admin = where["grpc_address"], where["admin_address"]
    before = read_page(admin, "/status")
    seed = random.SystemRandom().randrange(1, 1 << 31)
    load = Load(address, rate, _UNARY_RATE, _STREAMS, seconds, seed)
    outcome = asyncio.run(run(load))
    loaded = read_page(admin, "/status")
    after = _wait_stored(admin)
    labels = max(1, loaded["labels_total"] - before["labels_total"])
    cpu_us = (_cpu_us(loaded) - _cpu_us(before)) / labels
    return {
        "seed": seed,
        "model": next((q["model"] + " " + q["version"] for q in after["queues"]), ""),
        "rate_per_s": rate,
        "rate_reached_per_s": round(outcome.sent / max(outcome.took_s, 1e-3), 1),
        "client": {
            "measured": "here, from the planned time of each request to its reply",
            "sent": outcome.sent,
            "answered": outcome.answered,
            "errors": dict(outcome.errors),
            "stream": _client_row(outcome.stream_us),
            "unary": _client_row(outcome.unary_us),
        },
        "server": {
            "cpu_us_per_label": round(cpu_us, 1),
            "stages": after["stages_since_start"],
            "stored": after["journal"]["stored_total"] - before["journal"]["stored_total"],
            "pending": after["journal"]["pending"],
        },
    }


def _cpu_us(status: dict[str, Any]) -> int:
    return sum(status["process"][name] for name in ("cpu_user_us", "cpu_system_us"))


def _client_row(latencies_us: list[int]) -> dict[str, int]:
    import numpy as np

    if not latencies_us:
        return {"count": 0, "us_p50": 0, "us_p99": 0, "us_p999": 0}
    p50, p99, p999 = np.percentile(latencies_us, [50, 99, 99.9], method="higher")
    count = len(latencies_us)
    return {"count": count, "us_p50": int(p50), "us_p99": int(p99), "us_p999": int(p999)}


def _wait_stored(admin: str) -> dict[str, Any]:
    """The status once nothing is pending, or as it is after a time."""
    pause = threading.Event()
    status = read_page(admin, "/status")
    for _ in range(_STORED_WAIT_S * 10):
        if not status["journal"]["pending"]:
            break
        pause.wait(0.1)
        status = read_page(admin, "/status")
    return status


def _opening(where: dict[str, Any], rate: int, seconds: float) -> str:
    return (
        f"[bold]labeler[/] {where['version']} serves on {where['grpc_address']}, "
        f"state in {escape(where['state_dir'])}\n"
        f"sending {amount(rate)} labels/s for {seconds:g} s, as a fleet of {amount(rate)} robots "
        f"would: {_STREAMS} streams, and {_UNARY_RATE} single calls/s …"
    )


def _show(report: dict[str, Any]) -> None:
    console, client, server = out(), report["client"], report["server"]
    title = f"on the server, by stage · model {report['model']}"
    console.print()
    console.print(stage_table(server["stages"], title))
    rows = [
        [name, amount(row["count"])]
        + [duration(row[f"us_{share}"]) for share in ("p50", "p99", "p999")]
        for name, row in (("stream", client["stream"]), ("single call", client["unary"]))
    ]
    measured = "at the client, from the planned time of each request to its reply"
    console.print(table(measured, ["", "labels", "p50", "p99", "p99.9"], rows))
    console.print(f"server CPU       [bold]{server['cpu_us_per_label']:.0f} µs[/] a label")
    console.print(
        f"labels answered  [bold]{amount(client['answered'])}[/] of {amount(client['sent'])} sent, "
        f"{report['rate_reached_per_s']:,.0f}/s reached of {amount(report['rate_per_s'])}/s planned"
    )
    pending = f", {amount(server['pending'])} still pending" if server["pending"] else ""
    console.print(f"labels stored    [bold]{amount(server['stored'])}[/]{pending}")
    errors = ", ".join(f"{count} {name}" for name, count in client["errors"].items()) or "none"
    console.print(f"errors           {errors}")


def _keep_serving(service: DemoService, where: dict[str, Any], quiet: bool) -> None:
    if not quiet:
        grpc, admin = where["grpc_address"], where["admin_address"]
        payload = ",".join(["1"] * 24)
        values = f'{{"robot_id":"r1","sequence":1,"payload":{{"floats":[{payload}]}}}}'
        console = out()
        console.print("\n[bold]It keeps serving.[/] Ctrl-C ends it. From another terminal:\n")
        console.print(f"  echo {payload} | .venv/bin/labeler label", markup=False)
        console.print("  .venv/bin/labeler status")
        console.print(f"  curl http://{admin}/metrics")
        console.print(
            f"  grpcurl -plaintext -d '{values}' {grpc} labeler.v1.LabelService/Label",
            markup=False,
        )
    try:
        code = service.wait()
    except KeyboardInterrupt:
        code = service.stop()  # what Ctrl-C is meant for: a clean end is no failure
    raise typer.Exit(code)


def _seconds(text: str) -> float:
    """`5s`, `500ms` or `2m`. Errors: `InvalidRequestError`."""
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0)):
        number = text.removesuffix(unit)
        if number != text and number.replace(".", "", 1).isdigit():
            seconds = float(number) * factor
            if 0 < seconds <= 3600:
                return seconds
    raise InvalidRequestError(f"--for {text!r}, expected a time up to 60m, such as 5s")
