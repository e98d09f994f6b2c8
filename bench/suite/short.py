"""The bench in three minutes: which cases, how often, and one page and one file of what they show.

Measures nothing, and claims nothing: runs so short and few are a quick look, which the page says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.suite.metrics import behind

__all__ = ["CASES", "PAIRS", "SECONDS", "SPARE", "latest", "summary"]

CASES = (
    "unary-2300-journaled",
    "stream-2300-journaled",
    "unary-saturated-buffered",
    "durability-sqlite",
    "models-at-once",
)
PAIRS = 3
SECONDS = 2.0
SPARE = 3
"""So many pairs of all cases together are run again, since three minutes are not to become six."""

_CPU = "server_cpu_us_per_label"
_WIDTHS = (27, 11, 9, 15, 9, 9, 9)


def latest(documents: Sequence[Mapping[str, Any]], pairs: int) -> dict[str, Any]:
    """The file: each case's own document, whole, so that every figure has its runs beside it.

    `pairs`: as many as were asked for of each case.
    """
    first = documents[0]
    return {
        "date": first["date"],
        "commit": first["commit"],
        "machine": first["machine"],
        "pairs": pairs,
        "seconds": first["seconds"],
        "measurement": False,
        "cases": {document["case"]: document for document in documents},
    }


def summary(documents: Sequence[Mapping[str, Any]], pairs: int) -> Iterator[str]:
    """The page: a block a case, a line a side; what is missing of the `pairs` asked for."""
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
