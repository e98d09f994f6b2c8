"""How a run of load is shown to people: a line a second while it lasts, tables at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from labeler.cli.status import stage_table
from labeler.cli.tables import amount, bytes_text, counts_text, duration, out, table

if TYPE_CHECKING:
    from labeler.fleet.audit import Audit
    from labeler.fleet.drive import Progress
    from labeler.fleet.report import FleetReport
    from labeler.fleet.server import ServerFigures

__all__ = ["LiveLines", "show_report"]

_LIVE_STAGES = ("queue", "infer", "journal", "total")
_HEADER_EACH = 20


class LiveLines:
    """Prints a line for each second; the columns' names at first, and again after some lines."""

    def __init__(self) -> None:
        """Before the run."""
        self._lines = 0
        self._console = out()

    def __call__(self, now: Progress) -> None:
        """The line of one second."""
        if self._lines % _HEADER_EACH == 0:
            self._console.print(_header(), markup=False, style="dim")
        self._lines += 1
        self._console.print(_line(now), markup=False)


def _header() -> str:
    names = ("labels/s", "p50", "p99", "p99.9", "accuracy", "errors")
    stages = "".join(f"{name:>9}" for name in _LIVE_STAGES)
    return f"{'s':>5}" + "".join(f"{name:>10}" for name in names) + f"  | server p99:{stages}"


def _line(now: Progress) -> str:
    interval = now.interval
    figures = [f"{now.rate_per_s:,.0f}"]
    figures += [
        duration(interval[f"latency_us_{name}"]) if interval["answered"] else "-"
        for name in ("p50", "p99", "p999")
    ]
    figures.append("-" if now.accuracy is None else f"{now.accuracy:.2%}")
    figures.append(amount(sum(now.errors.values())))
    p99 = {stage["stage"]: stage["us_p99"] for stage in now.stages if stage["count"]}
    stages = [duration(p99[name]) if name in p99 else "-" for name in _LIVE_STAGES]
    kinds = f"  {counts_text(now.errors)}" if any(now.errors.values()) else ""
    shown = "".join(f"{figure:>10}" for figure in figures)
    return f"{now.elapsed_s:>5.0f}{shown}  |            {''.join(f'{s:>9}' for s in stages)}{kinds}"


def show_report(report: FleetReport) -> None:
    """The tables and the accounting."""
    console, result, model = out(), report.result, report.model
    console.print()
    if report.server and report.server.stages:
        title = f"in the service, by stage · model {model.name} {model.version}"
        console.print(stage_table(report.server.stages, title))
    console.print(_latency_table(result))
    lines = [
        ("labels", _labels(report)),
        ("accuracy", _accuracy(report)),
        ("errors", counts_text(report.errors)),
        ("sources", counts_text(result["sources"])),
        ("durability", counts_text(result["durabilities"])),
    ]
    if report.server:
        lines += _server_lines(report.server)
    lines += _named("accounting", _accounting(report))
    if report.audit:
        lines += _named("audit", _audit_lines(report.audit))
    lines.append(("sender", _sender(result)))
    lines += _named("note", [note for note in report.notes if note != model.note])
    lines += _named("written", report.files)
    for name, text in lines:
        console.print(f"{name:<12} {escape(text)}")
    _show_verdict(report)


def _named(name: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Lines of which the first has the name."""
    return [("" if number else name, text) for number, text in enumerate(texts)]


def _show_verdict(report: FleetReport) -> None:
    console = out()
    for reason in report.result["invalid_because"]:
        console.print(f"[bold red]INVALID[/]      {escape(reason)}")
    for problem in report.unaccounted:
        console.print(f"[bold red]UNACCOUNTED[/]  {escape(problem)}")
    if report.lost:
        console.print(f"[bold red]LOST[/]         {amount(report.lost)} acknowledged labels")
    if report.result["valid"]:
        console.print("valid        the sender kept its schedule: the latencies are the service's")


def _latency_table(result: Mapping[str, Any]) -> Any:
    named = (
        ("from the planned time", result["latency_us"]),
        ("from the real send (hides stalls)", result["latency_uncorrected_us"]),
        ("the service's share, as replies say", result["server_us"]),
    )
    rows = [
        [name, amount(row["count"])] + [duration(row[key]) for key in ("p50", "p99", "p999", "max")]
        for name, row in named
    ]
    title = "at the robots, to the reply"
    return table(title, ["", "labels", "p50", "p99", "p99.9", "max"], rows)


def _labels(report: FleetReport) -> str:
    result = report.result
    sent, planned = result["rate_reached_per_s"], result["rate_planned_per_s"]
    rates = f"{report.labels_per_s:,.0f}/s; {sent:,.0f}/s sent of {planned:,.0f}/s planned"
    return f"{amount(result['answered'])} answered, {rates}"


def _accuracy(report: FleetReport) -> str:
    result = report.result
    if result["accuracy"] is None:
        return f"unknown: {report.model.note or 'no label was judged'}"
    judged, correct = result["judged"], result["correct"]
    return f"{result['accuracy']:.2%}: {amount(correct)} of {amount(judged)} as the truth has it"


def _server_lines(server: ServerFigures) -> list[tuple[str, str]]:
    memory = f"{bytes_text(server.memory_bytes)}, at most {bytes_text(server.memory_bytes_max)}"
    per_label = server.cpu_us_per_label
    if per_label is None or server.cpu_user_us is None or server.cpu_system_us is None:
        return [("memory", memory)]
    user, system = (us / server.measured for us in (server.cpu_user_us, server.cpu_system_us))
    shares = f"{user:.0f} user, {system:.0f} system"
    return [("server CPU", f"{per_label:.0f} µs a label ({shares})"), ("memory", memory)]


def _accounting(report: FleetReport) -> list[str]:
    result, server = report.result, report.server
    errors, unlinked = sum(report.errors.values()), report.unlinked
    sent = {"sent": result["sent"], "without a connection": unlinked}
    sent |= {"too late to be sent": result["unsent"], "without a row": report.unfed}
    answers = {"answered": result["answered"], "errors": errors - unlinked}
    lines = [
        f"{amount(result['planned'])} planned = {_sum(sent)}",
        f"{amount(result['sent'])} sent = {_sum(answers)}",
    ]
    if server:
        since = ", since its restart" if server.restarted else ""
        warm_up = result["acknowledged_total"] - result["answered"]
        counted = f" ({amount(warm_up)} of them in the warm-up)" if warm_up else ""
        lines.append(
            f"the service{since}: {amount(server.answered)} answered{counted}; "
            f"{amount(server.journaled)} journaled = {_sum(server.records)}"
        )
        for method, counts in server.requests.items():
            parts = {name: n for name, n in counts.items() if name != "received"}
            lines.append(f"by {method}: {amount(counts['received'])} received = {_sum(parts)}")
    return lines


def _sum(parts: Mapping[str, int]) -> str:
    """The parts of a sum; of those but the first only what is not 0."""
    shown = [(n, name) for number, (name, n) in enumerate(parts.items()) if n or not number]
    text = "".join(f" {'-' if n < 0 else '+'} {amount(abs(n))} {name}" for n, name in shown)
    return text.removeprefix(" + ")


def _audit_lines(found: Audit) -> list[str]:
    as_told = found.found - found.changed
    parts = {"read back as acknowledged": as_told, "changed": found.changed}
    parts |= {"missing": found.missing, "missing, BUFFERED only": found.missing_buffered}
    return [f"{amount(found.acknowledged)} acknowledged = {_sum(parts)}", *found.examples]


def _sender(result: Mapping[str, Any]) -> str:
    lag, share = result["schedule_lag_us"], result["sender_cpu_share"]
    text = f"{duration(lag['p99'])} behind its schedule at p99, {duration(lag['max'])} at most"
    per_label = result["sender_cpu_us_per_label"]
    if share is None or per_label is None:
        return text
    return f"{text}; {share:.0%} of its CPU, {per_label:.0f} µs a label"
