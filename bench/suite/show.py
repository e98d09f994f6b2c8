"""Writes down what was found: a few lines for people, a JSON document for everything later.

Decides nothing. Every figure of the lines is in the document, and every figure of the document
comes from the runs that stand at its end.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bench.suite.case import Case
from bench.suite.compare import PAIRS_MIN, SECONDS_MIN, Checked, Judged, Pair, Ratio, Report
from bench.suite.measure import Measured
from bench.suite.metrics import behind, over_runs

__all__ = [
    "commit",
    "compared",
    "document",
    "guard_line",
    "judged_line",
    "lines",
    "machine",
    "progress_line",
]


def lines(case: Case, report: Report, measured: Measured, seconds: float) -> Iterator[str]:
    """The summary of one case."""
    yield f"{case.name}: {case.about}"
    yield f"  {_method(case, report, seconds)}"
    yield _row("", "labels/s", "CPU µs/label", "user + sys", "p50 ms", "p99", "p99.9", "RSS MB")
    for side, figures in report.sides.items():
        # Where no run is valid, what was seen is shown as what it is: an impression.
        seen = over_runs([pair.runs[side].figures for pair in measured.pairs])
        yield _side(side, figures) if figures else f"{_side(side, seen)}   NOT VALID"
        if "stored_per_s" in seen and _writes(case):
            yield _writer(figures or seen)
    for side, figures in report.sides.items():
        if late := behind(side, case.sides[side].load.schedule.shape, figures):
            yield f"  {late}"
    for judged in report.judged:
        yield f"  {judged_line(judged)}"
    for checked in report.guards:
        yield f"  {guard_line(checked)}"
    yield f"  floor of this run: {_floor(measured)}"
    for side, why in measured.could_not_run.items():
        yield f"  {side} could not run: {why}"
    if measured.drained:
        yield f"  in the end: {measured.drained.text}"
    if report.left_out:
        yield f"  left out: {len(report.left_out)} runs, such as {report.left_out[0]}"


def progress_line(number: int, pair: Pair) -> str:
    """One pair, while the case runs."""
    cpu = ", ".join(
        f"{side} {run.figures['server_cpu_us_per_label']:.1f} µs/label"
        f" p99 {run.figures['client_latency_us_p99'] / 1e3:.2f} ms"
        for side, run in pair.runs.items()
    )
    invalid = "; ".join(pair.invalid_because)
    return f"  pair {number}: {cpu}" + (f"  left out: {invalid}" if invalid else "")


def document(case: Case, report: Report, measured: Measured, seconds: float) -> dict[str, Any]:
    """The result file."""
    return {
        "case": case.name,
        "about": case.about,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine(),
        "measurement": report.measurement,
        "pairs": report.pairs,
        "seconds": seconds,
        "seed": case.seed,
        "erratic": case.erratic,
        "server": case.server.model_dump(),
        "servers": {
            name: side.model_dump(exclude={"load"}, exclude_defaults=True)
            for name, side in case.sides.items()
        },
        "loads": {name: side.load.model_dump() for name, side in case.sides.items()},
        "floor": {"echo": dict(measured.echo), "fdatasync_us_p99": measured.fdatasync_us_p99}
        | ({"ort_us_per_row": dict(measured.ort_us_per_row)} if measured.ort_us_per_row else {}),
        "could_not_run": dict(measured.could_not_run),
        "drained": asdict(measured.drained) if measured.drained else None,
        "sides": {name: dict(figures) for name, figures in report.sides.items()},
        "compared": [compared(judged) for judged in report.judged],
        "guards": [
            {"guard": c.guard.text, "side": c.side, "value": c.value, "holds": c.holds}
            for c in report.guards
        ],
        "runs": [
            {side: _run_figures(pair, side) for side in case.sides} for pair in measured.pairs
        ],
    }


def _run_figures(pair: Pair, side: str) -> dict[str, Any]:
    run = pair.runs[side]
    figures: dict[str, Any] = {name: round(value, 3) for name, value in run.figures.items()}
    return figures | ({"invalid_because": run.invalid_because} if run.invalid_because else {})


def compared(judged: Judged) -> dict[str, Any]:
    """The same for the result file."""
    goal = judged.goal
    return {
        "metric": judged.metric,
        "side": judged.side,
        "against": judged.against,
        "ratio": asdict(judged.ratio) if judged.ratio else None,
        "aa": asdict(judged.aa) if judged.aa else None,
        "ratio_max": goal.ratio_max if goal else None,
        "ratio_min": goal.ratio_min if goal else None,
        "verdict": judged.verdict,
    }


def _method(case: Case, report: Report, seconds: float) -> str:
    pairs = "1 pair" if report.pairs == 1 else f"{report.pairs} pairs"
    text = f"{pairs} of {seconds:g} s, {machine()}, the sender beside it"
    shapes = {side.load.schedule.shape for side in case.sides.values()}
    text += "; closed loop" if "saturate" in shapes else ""
    if report.measurement:
        return text
    needed = f"a measurement takes {PAIRS_MIN} pairs of {SECONDS_MIN:g} s"
    return f"{text} · quick look, not a measurement ({needed})"


def _side(side: str, figures: Mapping[str, float]) -> str:
    user, system = (figures[f"server_cpu_{k}_us_per_label"] for k in ("user", "system"))
    latency = (figures[f"client_latency_us_{share}"] / 1e3 for share in ("p50", "p99", "p999"))
    row = _row(
        side,
        f"{figures['labels_per_s']:,.0f}",
        f"{figures['server_cpu_us_per_label']:.1f}",
        f"{user:.1f} + {system:.1f}",
        *(f"{ms:.2f}" for ms in latency),
        f"{figures['server_rss_bytes_max'] / 1e6:.0f}",
    )
    if "path_cpu_us_per_label" not in figures:
        return row
    path, after = figures["path_cpu_us_per_label"], figures["server_cpu_after_us_per_label"]
    stages = f"decode and encode p50 {figures['decode_encode_us_p50']:.0f} µs"
    return f"{row}   label path {path:.1f} µs, after the last reply {after:.1f} µs; {stages}"


def _writes(case: Case) -> bool:
    """Whether the case asks about the writer."""
    return any(side.writer == "off" or side.backlog_rows for side in case.sides.values())


def _writer(figures: Mapping[str, float]) -> str:
    parts = [f"stored {figures['stored_per_s']:,.0f}/s"]
    if "writer_cpu_us_per_stored" in figures:
        parts.append(f"{figures['writer_cpu_us_per_stored']:.0f} µs CPU each, above the writer off")
    if "loop_lag_us_p99" in figures:
        lag = [figures[f"loop_lag_us_{name}"] / 1e3 for name in ("p99", "max")]
        parts.append(f"event loop late by {lag[0]:.1f} ms p99, {lag[1]:.1f} ms at most")
    if "store_cpu_cores" in figures:
        parts.append(f"the store's server took {figures['store_cpu_cores']:.2f} cores")
    return f"  {'':<14}  {'; '.join(parts)}; {figures['backlog_rows']:,.0f} rows left"


def _row(side: str, *cells: str) -> str:
    widths = (9, 13, 16, 9, 9, 9, 8)
    return f"  {side:<14}" + "".join(
        f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)
    )


def judged_line(judged: Judged) -> str:
    """A ratio, its A/A, and the word on the demand."""
    goal = judged.goal
    demand = ""
    if goal:
        sign, bound = ("<=", goal.ratio_max) if goal.ratio_max else (">=", goal.ratio_min)
        demand = f"   demanded {sign} {bound:g}: {judged.verdict}"
    aa = f"{judged.against}/{judged.against}"
    return (
        f"{judged.metric} {judged.side}/{judged.against} {_ratio(judged.ratio)}"
        f"   {aa} {_ratio(judged.aa)}{demand}"
    )


def _ratio(ratio: Ratio | None) -> str:
    return f"{ratio.median:.2f} [{ratio.min:.2f}..{ratio.max:.2f}]" if ratio else "-"


def guard_line(checked: Checked) -> str:
    """A guard, and whether it holds."""
    value = "no figure" if checked.value is None else f"{checked.value:,.0f}"
    word = {True: "holds", False: "BROKEN", None: "not measured"}[checked.holds]
    return f"guard {checked.guard.text}: {word}, {checked.side} has {value}"


def _floor(measured: Measured) -> str:
    disk = f"fdatasync p99 {measured.fdatasync_us_p99 / 1e3:.2f} ms"
    loop = [f"{us:.1f} µs/row {rows} at once" for rows, us in measured.ort_us_per_row.items()]
    disk += f"; bare ONNX Runtime {', '.join(loop)}" if loop else ""
    if not measured.echo:
        return disk
    cpu = measured.echo["server_cpu_us_per_label"]
    p99 = measured.echo["client_latency_us_p99"] / 1e3
    return f"bare echo {cpu:.1f} µs/label, p99 {p99:.2f} ms; {disk}"


def machine() -> str:
    """What the figures were measured on."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"


def commit() -> str:
    """Which tree was measured; one that was changed says so, results of earlier cases aside."""
    name = _git("describe", "--always", "--exclude=*").stdout.strip()
    changed = _git("diff", "--quiet", "HEAD", "--", ":(top)", ":(top,exclude)bench/results")
    return name + ("-dirty" if changed.returncode else "") if name else "unknown"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
