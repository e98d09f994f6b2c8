"""Compares two commits in one run: both built, their runs in turns, exact figures beside them.

`python -m bench.compare BASE HEAD [--case NAME …] [--pairs N]`, from `make bench-compare`. Exit
codes: 0 no regression, or none that can be told here; 1 a regression; 2 it could not be measured.
Builds the services itself; the sender is this tree's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.gate import figures, judge, trees
from bench.gate.intervals import CONFIDENCE, Changed, changed, line, metrics_of
from bench.suite.case import Case, CaseError, read_case
from bench.suite.compare import PAIRS_MIN, Pair
from bench.suite.measure import MeasureError, Options, measure
from bench.suite.servers import ServerError
from bench.suite.show import machine, progress_line
from labeler import open_files

__all__ = ["main", "more_errors", "sides_of"]

CASES = ("unary-2300-buffered", "unary-2300-journaled", "unary-saturated-buffered")
_BUILD_S = 1800.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code, see above."""
    options = _options(arguments)
    try:
        base, head = trees.full_name(options.base), trees.full_name(options.head)
        cases = [read_case(name) for name in options.cases]
        open_files.raise_limit()
        with ExitStack() as stack:
            folder = figures.target_folder() / "compare"
            found = {
                name: stack.enter_context(trees.checked_out(commit, folder / name))
                for name, commit in (("base", base), ("head", head))
            }
            exact = _exact(trees.accepted(base, head=head), found)
            for tree in found.values():
                _build(tree)
            measured = {case.name: _measured(case, found, options) for case in cases}
    except (
        trees.TreeError,
        figures.FiguresError,
        CaseError,
        ServerError,
        MeasureError,
    ) as error:
        print(error, file=sys.stderr)
        return 2
    _keep(options, {"base": base, "head": head}, exact, measured)
    regressions = [c.name for c in exact if c.verdict == "regression"]
    for name, (changes, pairs) in measured.items():
        regressions += [f"{name} {c.metric}" for c in changes if c.verdict.startswith("REGR")]
        regressions += [f"{name} {said}" for said in [more_errors(pairs)] if said]
    for regression in regressions:
        print(f"REGRESSION {regression}", file=sys.stderr)
    return 1 if regressions else 0


def sides_of(case: Case, found: Mapping[str, Path]) -> Case:
    """The case with its labeler's load on each tree's service. Errors: `CaseError`."""
    side = next((side for side in case.sides.values() if side.server == "labeler"), None)
    if side is None:
        raise CaseError(f"{case.name} has no side whose server is labeler")
    sides = {name: side.model_copy(update={"tree": tree}) for name, tree in found.items()}
    return replace(case, sides=sides, goals=(), guards=())


def more_errors(pairs: Sequence[Pair]) -> str:
    """What is said where head answered more calls with an error than base; else nothing.

    One in a run that is left out is an error too.
    """
    base, head = (
        sum(pair.runs[side].figures["errors_total"] for pair in pairs) for side in ("base", "head")
    )
    return f"errors_total: base {base:,.0f}, head {head:,.0f}" if head > base else ""


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-compare", description="Compares two commits.")
    parser.add_argument("base")
    parser.add_argument("head")
    parser.add_argument("--case", dest="cases", action="append", metavar="NAME")
    parser.add_argument("--pairs", type=int, default=PAIRS_MIN, help="default %(default)s")
    parser.add_argument("--seconds", type=float, help="of each run; default: as the case says")
    options = parser.parse_args(arguments)
    options.cases = options.cases or list(CASES)
    return options


def _exact(accepted: Mapping[str, str], found: Mapping[str, Path]) -> list[judge.Compared]:
    """The gate's figures; nothing where a tree has none."""
    if not all(figures.has_micro(tree) for tree in found.values()):
        print("a tree has no micro-benchmarks, so exact figures are not compared")
        return []
    before, after = figures.measure(found["base"]), figures.measure(found["head"])
    compared = judge.compare(before, after, accepted)
    print("\n".join(judge.lines(compared, accepted)), flush=True)
    return compared


def _build(tree: Path) -> None:
    """The tree's service: its extension lies where its Python looks for it."""
    command = ["cargo", "build", "--locked", "--release", "-p", "labeler-bridge"]
    figures.output(command, tree, _BUILD_S)
    shutil.copy(
        figures.target_folder() / "release" / "lib_core.so", tree / "python/labeler/_core.abi3.so"
    )
    figures.clean(tree)


def _measured(
    case: Case, found: Mapping[str, Path], options: argparse.Namespace
) -> tuple[list[Changed], list[Pair]]:
    print(f"{case.name}: {case.about}", flush=True)
    with tempfile.TemporaryDirectory(prefix="labeler-compare-") as folder:
        pairs = measure(
            sides_of(case, found),
            Options(options.pairs, options.seconds),
            Path(folder),
            lambda number, pair: print(progress_line(number, pair), file=sys.stderr, flush=True),
        ).pairs
    closed = any(s.load.schedule.shape == "saturate" for s in case.sides.values())
    changes = [changed(metric, pairs) for metric in metrics_of(closed)]
    for change in changes:
        print(f"  {line(change)}", flush=True)
    return changes, pairs


def _keep(
    options: argparse.Namespace,
    commits: Mapping[str, str],
    exact: Sequence[judge.Compared],
    measured: Mapping[str, tuple[list[Changed], list[Pair]]],
) -> None:
    cases: dict[str, Any] = {
        name: {
            "changed": [asdict(change) for change in changes],
            "runs": [
                {
                    side: {**run.figures, "invalid_because": list(run.invalid_because)}
                    for side, run in pair.runs.items()
                }
                for pair in pairs
            ],
        }
        for name, (changes, pairs) in measured.items()
    }
    head = {**commits, "machine": machine(), "confidence": CONFIDENCE, "pairs": options.pairs}
    figures.LOCAL.mkdir(parents=True, exist_ok=True)
    document = {
        **head,
        "exact": [{"name": c.name, "base": c.base, "head": c.head} for c in exact],
        "cases": cases,
    }
    (figures.LOCAL / "compare.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
