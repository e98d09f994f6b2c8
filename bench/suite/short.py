"""The bench in three minutes: which cases, how often, and one page and one file of what they show.

Measures nothing, and claims nothing: runs so short and few are a quick look, which the page says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.suite.metrics import behind

__all__ = ["CASES", "PAIRS", "SECONDS", "latest", "summary"]

CASES = (
    "unary-2300-journaled",
    "stream-2300-journaled",
    "unary-saturated-buffered",
    "durability-sqlite",
    "models-at-once",
)
PAIRS = 3
SECONDS = 2.0

_CPU = "server_cpu_us_per_label"
_WIDTHS = (27, 11, 9, 15, 9, 9, 9)


def latest(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The file: each case's own document, whole, so that every figure has its runs beside it."""
    first = documents[0]
    return {
        "date": first["date"],
        "commit": first["commit"],
        "machine": first["machine"],
        "pairs": _pairs(documents),
        "seconds": first["seconds"],
        "measurement": False,
        "cases": {document["case"]: document for document in documents},
    }


def summary(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The page: a block a case, a line a side."""
    pairs = _pairs(documents)
    for document in documents:
        yield ""
        yield f"{document['case']}: {document['about']}"
        if document["pairs"] < pairs:
            valid = f"{document['pairs']} of {pairs} pairs are valid"
            yield f"  {valid}: the sender was late in the others"
        latency = ("-", "-", "-") if _closed(document) else ("p50 ms", "p99", "p99.9")
        yield _row("", "labels/s", "CPU µs", "of the first", *latency)
        for side, figures in document["sides"].items():
            yield _side(document, side, figures)
        shapes = {side: load["schedule"]["shape"] for side, load in document["loads"].items()}
        late = [behind(side, shapes[side], found) for side, found in document["sides"].items()]
        yield from (f"  {said}" for said in late if said)
        broken = [c for c in document["guards"] if c["holds"] is False]
        yield from (f"  BROKEN {c['guard']}: {c['side']} has {c['value']}" for c in broken)
    first = documents[0]
    yield ""
    where = f"{first['date']}, {first['commit']}, {first['machine']}, the sender beside it"
    yield f"{where}: a quick look of {pairs} pairs of {first['seconds']:g} s"
    yield "make bench CASE=NAME measures one, make bench-all all; make bench-list names them"


def _pairs(documents: Sequence[Mapping[str, Any]]) -> int:
    """How many were run of each case; those of a late sender are not in its own number."""
    return max(int(document["pairs"]) for document in documents)


def _closed(document: Mapping[str, Any]) -> bool:
    """A closed loop asks for throughput and CPU; its latencies are of its own making."""
    return any(load["schedule"]["shape"] == "saturate" for load in document["loads"].values())


def _side(document: Mapping[str, Any], side: str, figures: Mapping[str, float]) -> str:
    if not figures:
        return f"  {side:<27} NOT VALID: the sender was the bottleneck in every run"
    ratios = {found["side"]: found for found in document["compared"] if found["metric"] == _CPU}
    ratio = ratios.get(side, {}).get("ratio")
    names = ("p50", "p99", "p999")
    shown = [f"{figures[f'client_latency_us_{name}'] / 1e3:.2f}" for name in names]
    return _row(
        side,
        f"{figures['labels_per_s']:,.0f}",
        f"{figures[_CPU]:.1f}",
        f"{ratio['median']:.2f}×" if ratio else "",
        *(["-"] * 3 if _closed(document) else shown),
    )


def _row(side: str, *cells: str) -> str:
    pairs = zip(cells, _WIDTHS[1:], strict=True)
    return f"  {side:<{_WIDTHS[0]}}" + "".join(f"{cell:>{width}}" for cell, width in pairs)
