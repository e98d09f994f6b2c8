"""Draws the report's charts as SVG text; each is told which sides it shows, and says no more.

A chart without anything to show is None. Measures and judges nothing.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from bench.report.quoted import CONTRACT_MS
from bench.report.results import SideOf
from bench.suite.peers import PEER

__all__ = ["Chart", "by_load", "by_percentile", "cpu", "cpu_of_peers", "mean_beside"]

_SHARES: Mapping[str, str] = {"p50": "p50", "p95": "p95", "p99": "p99", "p999": "p99.9"}
_CPU = "server_cpu_us_per_label"
_COLOURS = ("#1b6ca8", "#d1495b", "#4c956c", "#edae49", "#6a4c93", "#2e4057", "#8d5b4c", "#00798c")
_MARKS = "osD^vPX*"
_PANELS = 3
"""Side by side."""
_CONNECTIONS_MAX = 256
"""More of them are a question of their own, which no line of loads answers."""


@dataclass(frozen=True)
class Chart:
    """`name`: of its file; `sources`: what each line or bar was taken from, in their order."""

    name: str
    title: str
    caption: str
    svg: str
    sources: Sequence[str]


def by_percentile(sides: Sequence[SideOf]) -> Chart | None:
    """Latency at the client by percentile, a panel a case: sides that were sent by schedule."""
    cases: dict[str, list[SideOf]] = {}
    for side in sides:
        if _open(side) and _ms(side, "p99"):
            cases.setdefault(side.result.name, []).append(side)
    if not cases:
        return None
    rows = math.ceil(len(cases) / _PANELS)
    with _style():
        figure = Figure(figsize=(9.0, 0.4 + 2.1 * rows), layout="constrained")
        panels = figure.subplots(rows, _PANELS, sharey=True, squeeze=False).flatten()
    for axes, (case, members) in zip(panels, cases.items(), strict=False):
        axes.set_title(case, fontsize=8)
        for number, side in enumerate(members):
            points = [(at, ms) for at, share in enumerate(_SHARES) if (ms := _ms(side, share))]
            axes.plot(*zip(*points, strict=True), label=side.name, **_look(number))
        axes.set_xticks(range(len(_SHARES)), list(_SHARES.values()), fontsize=7)
        _latency_axis(axes)
        axes.legend(fontsize=6, frameon=False)
    for axes in panels[len(cases) :]:
        axes.set_axis_off()
    return Chart(
        "latency-by-percentile",
        "Latency by percentile",
        "At the client, from the planned time of each call to its reply; median over the runs. The "
        f"dotted line is the contract's {CONTRACT_MS:.0f} ms, quoted.",
        _svg(figure),
        [side.source for members in cases.values() for side in members],
    )


def by_load(sides: Sequence[SideOf]) -> Chart | None:
    """p99 at the client against labels planned a second, a line for each kind of side."""
    lines: dict[str, list[SideOf]] = {}
    for side in sides:
        if (kind := _kind(side)) and side.runs(_latency("p99")):
            lines.setdefault(kind, []).append(side)
    lines = {kind: found for kind, found in lines.items() if len(set(map(_rate, found))) > 1}
    if not lines:
        return None
    figure, axes = _figure(4.6)
    for number, (kind, members) in enumerate(sorted(lines.items())):
        members.sort(key=_rate)
        middle = [_ms(side, "p99") for side in members]
        spans = [[us / 1e3 for us in side.runs(_latency("p99"))] for side in members]
        low = [max(0.0, ms - min(span)) for ms, span in zip(middle, spans, strict=True)]
        high = [max(0.0, max(span) - ms) for ms, span in zip(middle, spans, strict=True)]
        axes.errorbar(
            [_rate(side) for side in members],
            middle,
            yerr=[low, high],
            label=kind,
            capsize=3,
            **_look(number),
        )
    axes.set_xlabel("labels a second, planned")
    axes.set_xlim(left=0)
    _latency_axis(axes)
    _legend(axes, figure)
    return Chart(
        "latency-against-load",
        "Latency against load",
        "p99 at the client, from the planned time; median over the runs, bars from the least to "
        f"the largest run. The dotted line is the contract's {CONTRACT_MS:.0f} ms, quoted.",
        _svg(figure),
        [side.source for kind in sorted(lines) for side in lines[kind]],
    )


def cpu(sides: Sequence[SideOf]) -> Chart | None:
    """CPU a label of each side of the cases without peers, with the spread of its runs."""
    return _cpu(
        [side for side in sides if not side.result.has_peers], "cpu-per-label", "CPU a label"
    )


def cpu_of_peers(sides: Sequence[SideOf]) -> Chart | None:
    """The same of the cases with peers."""
    beside = [side for side in sides if side.result.has_peers]
    return _cpu(beside, "cpu-per-label-by-peer", "CPU a label by peer")


def _cpu(sides: Sequence[SideOf], name: str, title: str) -> Chart | None:
    shown = [side for side in sides if side.runs(_CPU)]
    if not shown:
        return None
    figure, axes = _figure(0.8 + 0.24 * len(shown))
    names = list(dict.fromkeys(side.name for side in shown))
    for place, side in enumerate(shown):
        us, runs = side.figures[_CPU], side.runs(_CPU)
        colour = _COLOURS[names.index(side.name) % len(_COLOURS)]
        around = [[max(0.0, us - min(runs))], [max(0.0, max(runs) - us)]]
        axes.errorbar(us, place, xerr=around, fmt="o", color=colour, capsize=2, markersize=4)
        axes.annotate(
            f"{us:,.0f}" if us >= 100 else f"{us:.1f}",
            (max(us, *runs), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=6,
        )
    # From the echo to Ray it is a factor of hundreds.
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.08)
    axes.set_yticks(
        range(len(shown)), [f"{side.result.name}: {side.name}" for side in shown], fontsize=7
    )
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel("CPU µs a label, user and system, of the whole server; log scale")
    axes.grid(axis="x", alpha=0.3)
    return Chart(
        name,
        title,
        "Of the whole server, all of its processes, until its work is done; median over the runs, "
        "bars from the least to the largest run.",
        _svg(figure),
        [side.source for side in shown],
    )


def mean_beside(sides: Sequence[SideOf]) -> Chart | None:
    """The mean beside p50, p99 and p99.9, of sides that were sent by schedule."""
    shown = [side for side in sides if _open(side) and _ms(side, "mean")]
    if not shown:
        return None
    figure, axes = _figure(0.9 + 0.5 * len(shown))
    names = {"mean": "mean", "p50": "p50", "p99": "p99", "p999": "p99.9"}
    for number, (share, word) in enumerate(names.items()):
        places = [at + (number - 1.5) * 0.2 for at in range(len(shown))]
        values = [_ms(side, share) for side in shown]
        axes.barh(places, values, height=0.18, label=word, color=_COLOURS[number])
    axes.set_yticks(range(len(shown)), [f"{s.result.name}: {s.name}" for s in shown], fontsize=7)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel("ms at the client, from the planned time")
    axes.grid(axis="x", alpha=0.3)
    _legend(axes, figure)
    return Chart(
        "mean-beside-p99",
        "The mean beside p99",
        "At the client, from the planned time of each call to its reply; median over the runs.",
        _svg(figure),
        [side.source for side in shown],
    )


def _open(side: SideOf) -> bool:
    """Sent by schedule: of a closed loop, latency says nothing of other loads."""
    return side.shape not in ("", "saturate")


def _latency(share: str) -> str:
    return f"client_latency_us_{share}"


def _ms(side: SideOf, share: str) -> float:
    """0 where the file has no such figure."""
    return side.figures.get(_latency(share), 0.0) / 1e3


def _rate(side: SideOf) -> float:
    rows = side.load["batch_rows"] if side.load["rpc"] == "label_batch" else 1
    return float(side.load["schedule"]["rate_per_s"] * rows)


def _kind(side: SideOf) -> str:
    """Sides that differ in their rate alone; empty where a side is no part of such a line."""
    load, server = side.load, side.plain_server
    if side.shape != "constant" or not server or load["connections"] > _CONNECTIONS_MAX:
        return ""
    if server.startswith(PEER):  # it takes one kind of payload
        return f"{server.removeprefix(PEER)}, {load['rpc']}"
    if load["payload"] != "float" or load.get("models"):
        return ""
    return f"{server}, {load['rpc']}" + (f", {_level(side)}" if server == "labeler" else "")


def _level(side: SideOf) -> str:
    """Durability, and the store where it is not the default."""
    store = side.result.document.get("server", {}).get("store", "sqlite")
    level = str(side.load["durability"])
    return level if store == "sqlite" else f"{level}, {store}"


def _look(number: int) -> dict[str, Any]:
    mark = _MARKS[number // len(_COLOURS) % len(_MARKS)]
    return {"color": _COLOURS[number % len(_COLOURS)], "marker": mark, "markersize": 3}


def _style() -> AbstractContextManager[None]:
    """The same runs give the same bytes, and letters stay letters."""
    return matplotlib.rc_context(
        {"svg.hashsalt": "labeler", "svg.fonttype": "none", "font.size": 9.0}
    )


def _figure(height: float) -> tuple[Figure, Axes]:
    with _style():
        figure = Figure(figsize=(9.0, height), layout="constrained")
        return figure, figure.add_subplot()


def _latency_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.set_ylabel("ms at the client", fontsize=7)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axhline(CONTRACT_MS, color="black", linestyle=":", linewidth=1)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", alpha=0.3)


def _legend(axes: Axes, figure: Figure) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", fontsize=7, ncols=2, frameon=False)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    with _style():
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    whole = text.getvalue()
    # Without the head that only a file of its own needs, and without a tenth of indentation.
    return "\n".join(line.strip() for line in whole[whole.index("<svg") :].splitlines()) + "\n"
