"""Builds the report: `python -m bench.report [--results DIR] [--out DIR]`, `make bench-report`.

Writes `report.md` with its charts beside it, and `report.html`, which needs no other file. Exit
codes: 0 written, 2 where a file is no result or there is none. Measures nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.report.charts import by_load, by_percentile, cpu, cpu_of_peers, mean_beside
from bench.report.pages import html_page, markdown_page
from bench.report.results import ReportError, read_results
from bench.suite.case import CASES

__all__ = ["main"]

_RESULTS = CASES.parent / "results"
_DRAWN = (by_percentile, by_load, cpu_of_peers, cpu, mean_beside)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code, see above."""
    parser = argparse.ArgumentParser(prog="bench.report", description="Builds the report.")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where result files are")
    parser.add_argument("--out", type=Path, help="where to; default RESULTS/report")
    options = parser.parse_args(arguments)
    try:
        results = read_results(options.results)
    except ReportError as error:
        print(error, file=sys.stderr)
        return 2
    sides = [side for result in results for side in result.sides]
    charts = [chart for draw in _DRAWN if (chart := draw(sides))]
    out: Path = options.out or options.results / "report"
    out.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        (out / f"{chart.name}.svg").write_text(chart.svg, encoding="utf-8")
    (out / "report.md").write_text(markdown_page(results, charts), encoding="utf-8")
    (out / "report.html").write_text(html_page(results, charts), encoding="utf-8")
    print(f"{out / 'report.md'} and {out / 'report.html'}: {len(results)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
