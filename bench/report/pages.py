"""Writes the report: the same page as Markdown beside its charts, and as one HTML file.

Takes figures from result files and rounds them; each table says from which file and side. Measures
and judges nothing.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.report.charts import Chart
from bench.report.quoted import QUOTED
from bench.report.results import Result, SideOf
from bench.suite.metrics import behind

__all__ = ["html_page", "markdown_page"]

_TITLE = "The bench, as it was measured"
_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:62em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;font-size:13px;margin:1em 0}"
    "td,th{border-bottom:1px solid #ccc;padding:.2em .7em;text-align:right}"
    "td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}"
    "details{font-size:12px}code{background:#f2f2f2}"
)
_LATENCIES = {"mean": "mean", "p50": "p50", "p95": "p95", "p99": "p99", "p999": "p99.9"}


def markdown_page(results: Sequence[Result], charts: Sequence[Chart]) -> str:
    """The page; its charts are files beside it, `NAME.svg`."""
    pictures = {chart.name: f"![{chart.title}]({chart.name}.svg)" for chart in charts}
    parts = []
    for block in _blocks(results, charts):
        chart = re.fullmatch(r"\{chart (.+)\}", block)
        parts.append(pictures[chart[1]] if chart else block)
    return "\n\n".join(parts) + "\n"


def html_page(results: Sequence[Result], charts: Sequence[Chart]) -> str:
    """The same in one file that needs no other."""
    pictures = {chart.name: chart.svg for chart in charts}
    parts = []
    for block in _blocks(results, charts):
        chart = re.fullmatch(r"\{chart (.+)\}", block)
        parts.append(pictures[chart[1]] if chart else _html(block))
    head = f'<meta charset="utf-8"><title>{_TITLE}</title><style>{_STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _blocks(results: Sequence[Result], charts: Sequence[Chart]) -> Iterator[str]:
    """Headings, paragraphs, lists and tables, each in a few forms of Markdown."""
    yield f"# {_TITLE}"
    yield _about(results)
    for chart in charts:
        yield f"## {chart.title}"
        yield chart.caption
        yield f"{{chart {chart.name}}}"
        yield _list(f"from {source}" for source in dict.fromkeys(chart.sources))
        if chart.name == "mean-beside-p99":
            yield from _mean_page(results)
    yield "## Known from elsewhere"
    yield "Quoted, not measured here: other machines, models and loads. No ratio is made with them."
    yield _table(["whose", "figure, as quoted"], [[known.of, known.figure] for known in QUOTED])
    yield "## Every case"
    for result in results:
        yield from _case(result)


def _about(results: Sequence[Result]) -> str:
    machines = sorted({str(result.document["machine"]) for result in results})
    dates = sorted({str(result.document["date"]) for result in results})
    commits = list(dict.fromkeys(str(result.document["commit"]) for result in results))
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return (
        f"{len(results)} cases, {span}, on {' and on '.join(machines)}, the sender beside the "
        f"server; commits {', '.join(commits)}. Made by `make bench-report` from the files in "
        "`bench/results/`; how they come about: `docs/benchmarks.md`."
    )


def _mean_page(results: Sequence[Result]) -> Iterator[str]:
    yield "### Mean and p99, on one page"
    yield (
        "A mean adds the late calls to the many that are not: it moves little when one call in a "
        "hundred is ten times as late, and a robot waits for its own call, not for the mean. So a "
        "mean is shown here beside the percentiles, and demands are on p99."
    )
    sides = [side for result in results for side in result.sides if "mean" in _latencies(side)]
    rows = []
    for side in sides:
        if side.shape == "saturate":
            continue
        found = _latencies(side)
        times = found["p99"] / found["mean"]
        cells = [f"{found[name]:.2f}" if name in found else "—" for name in _LATENCIES]
        rows.append([_place(side), *cells, f"{times:.1f}×"])
    yield _table(["ms at the client", *_LATENCIES.values(), "p99 over mean"], rows)
    without = sorted({r.file for r in results for s in r.sides if "mean" not in _latencies(s)})
    if without:
        yield f"No mean was kept in {', '.join(without)}."


def _case(result: Result) -> Iterator[str]:
    document = result.document
    yield f"### {result.name}"
    yield str(document["about"])
    kind = "measured" if document["measurement"] else "a quick look, not a measurement"
    seconds = f" of {document['seconds']:g} s" if "seconds" in document else ""
    count = document.get("pairs", len(document["runs"]))
    pairs = "1 pair" if count == 1 else f"{count} pairs"
    late = f", {result.left_out} more left out, whose sender was late" if result.left_out else ""
    yield (
        f"{kind}: {pairs}{seconds}{late}, {document['date']}, "
        f"commit {document['commit']}; `{result.file}`"
    )
    rows = [[_place(side), *_cells(side)] for side in result.sides]
    if rows:
        yield _table(
            ["side", "labels/s", "CPU µs a label", "p50 ms", "p99 ms", "p99.9 ms", "runs"], rows
        )
    found = [
        *filter(None, (behind(s.name, s.shape, s.figures) for s in result.sides if s.shape)),
        *map(_judged, document["compared"]),
        *map(_guard, document["guards"]),
        *_limits(document.get("floor", {})),
        *(f"{name} could not run: {why}" for name, why in _absent(document)),
    ]
    if found:
        yield _list(found)


def _absent(document: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    found: Mapping[str, str] = document.get("could_not_run", {})
    return found.items()


def _limits(floor: Mapping[str, Any]) -> Iterator[str]:
    """What no server goes below in that run, on one line; nothing where the file has none."""
    parts = []
    if echo := floor.get("echo"):
        us, p99_us = echo["server_cpu_us_per_label"], echo["client_latency_us_p99"]
        parts.append(f"a bare echo {us:.1f} µs CPU a label, p99 {p99_us / 1e3:.2f} ms")
    if us := floor.get("fdatasync_us_p99"):
        parts.append(f"fdatasync p99 {us / 1e3:.2f} ms")
    for rows, us in floor.get("ort_us_per_row", {}).items():
        parts.append(f"a bare loop of ONNX Runtime {us:.1f} µs a row, {rows} at once")
    if parts:
        yield f"limits of this run: {'; '.join(parts)}"


def _cells(side: SideOf) -> list[str]:
    figures, found = side.figures, _latencies(side)
    cpu = figures.get("server_cpu_us_per_label")
    shown = [f"{found[name]:.2f}" if name in found else "—" for name in ("p50", "p99", "p999")]
    if side.shape == "saturate":
        shown = ["closed loop"] * 3
    rate = figures.get("labels_per_s")
    return [
        "—" if rate is None else f"{rate:,.0f}",
        "—" if cpu is None else f"{cpu:.1f}",
        *shown,
        str(len(side.valid_runs)),
    ]


def _place(side: SideOf) -> str:
    return f"{side.result.name}: {side.name}"


def _latencies(side: SideOf) -> dict[str, float]:
    """Those that the file has, ms."""
    names = {name: f"client_latency_us_{name}" for name in _LATENCIES}
    return {name: side.figures[key] / 1e3 for name, key in names.items() if key in side.figures}


def _judged(judged: dict[str, object]) -> str:
    text = f"{judged['metric']} {judged['side']}/{judged['against']} {_ratio(judged['ratio'])}"
    text += f", equal sides {_ratio(judged['aa'])}"
    if judged["verdict"]:
        bound = judged["ratio_max"] or judged["ratio_min"]
        sign = "at most" if judged["ratio_max"] else "at least"
        text += f"; demanded {sign} {bound}: {judged['verdict']}"
    return text


def _ratio(ratio: object) -> str:
    if not isinstance(ratio, dict):
        return "—"
    return f"{ratio['median']:.2f} [{ratio['min']:.2f}–{ratio['max']:.2f}]"


def _guard(guard: dict[str, object]) -> str:
    said = guard["holds"]
    word = "not measured" if said is None else "holds" if said else "BROKEN"
    value = guard["value"]
    shown = f"{value:,.0f}" if isinstance(value, int | float) else "no figure"
    return f"guard `{guard['guard']}`: {word}, {guard['side']} has {shown}"


def _list(items: Iterator[str] | Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _html(block: str) -> str:
    """One block of the forms that `_blocks` makes."""
    lines = block.splitlines()
    if heading := re.fullmatch(r"(#+) (.+)", block):
        level = len(heading[1])
        return f"<h{level}>{_inline(heading[2])}</h{level}>"
    if lines[0].startswith("| "):
        rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
        return (
            "<table>"
            + "".join(_row(row, at == 0) for at, row in enumerate(rows) if at != 1)
            + ("</table>")
        )
    if lines[0].startswith("- "):
        items = "".join(f"<li>{_inline(line[2:])}</li>" for line in lines)
        if lines[0].startswith("- from "):
            return f"<details><summary>sources</summary><ul>{items}</ul></details>"
        return f"<ul>{items}</ul>"
    return f"<p>{_inline(block)}</p>"


def _row(cells: Sequence[str], head: bool) -> str:
    kind = "th" if head else "td"
    return "<tr>" + "".join(f"<{kind}>{_inline(cell)}</{kind}>" for cell in cells) + "</tr>"


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
