"""The bench: runs cases by name, all of them, or a few as a quick look; or lists their questions.

`python -m bench.run CASE … [--pairs N] [--seconds S]`, or with `--short`, `--all`, `--peers` or
`--list` in the place of the names, from `make bench`, `bench-all`, `bench-peers`, `bench-list`.
Exit codes: 0 measured; 1 a guard is broken or a goal missed in a measurement that is not erratic; 2
a case cannot be read, or a run could not be done. It builds nothing: `make bench` has.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.suite import short
from bench.suite.case import CASES, Case, CaseError, case_names, read_case
from bench.suite.compare import PAIRS_MIN, Report, judge
from bench.suite.measure import MeasureError, Options, measure
from bench.suite.servers import ServerError
from bench.suite.show import document, lines, progress_line
from bench.writer import cases as writer_cases
from bench.writer.cases import WriterCase
from labeler import open_files

__all__ = ["main"]

RESULTS = CASES.parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code, see above."""
    options = _options(arguments)
    try:
        asked = options.cases or [*case_names(), *([] if options.peers else writer_cases.CASES)]
        cases = [writer_cases.CASES.get(name) or read_case(name) for name in asked]
    except CaseError as error:
        print(error, file=sys.stderr)
        return 2
    if options.peers:
        cases = [case for case in cases if isinstance(case, Case) and case.has_peers]
    if options.list:
        _list(cases)
        return 0
    open_files.raise_limit()  # for servers and sender too: 2,300 connections are files
    failures: list[str] = []
    not_run: list[str] = []
    documents = []
    spare = short.SPARE if options.short else None
    for case in cases:
        try:
            report, found = _run(case, options, spare)
        except (ServerError, MeasureError) as error:  # the other cases are still worth their time
            not_run.append(f"{case.name}: {error}")
            print(not_run[-1], file=sys.stderr)
            continue
        documents.append(found)
        if spare is not None:
            spare -= max(0, len(found["runs"]) - options.pairs)
        failures += _keep(options, report, found)
    if options.short and documents:
        _keep_latest(options, documents)
    for failure in [*failures, *(not_run if len(cases) > 1 else [])]:
        print(failure, file=sys.stderr)
    return 2 if not_run else 1 if failures else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Runs cases, or lists them.")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--list", action="store_true", help="all cases with their questions")
    parser.add_argument(
        "--short", action="store_true", help="a quick look at a few, with a summary"
    )
    parser.add_argument("--peers", action="store_true", help="measure the cases with peers")
    parser.add_argument("--all", action="store_true", help="measure all cases: hours")
    parser.add_argument("--pairs", type=_pairs, help=f"default {PAIRS_MIN}")
    parser.add_argument("--seconds", type=_seconds, help="of each run; default: as the case says")
    parser.add_argument("--out", type=Path, help="folder for results; default bench/results")
    options = parser.parse_args(arguments)
    ways = (options.list, options.short, options.peers, options.all)
    if sum((bool(options.cases), *ways)) != 1:
        parser.error("expected names of cases, or one of --list, --short, --peers and --all")
    if options.short:
        options.cases = list(short.CASES)
        options.pairs = options.pairs or short.PAIRS
        options.seconds = options.seconds or short.SECONDS
    options.pairs = options.pairs or PAIRS_MIN
    return options


def _pairs(text: str) -> int:
    pairs = int(text)
    if not 1 <= pairs <= 1000:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to 1000")
    return pairs


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: expected 0.1 to 3600")
    return seconds


def _list(cases: Sequence[Case | WriterCase]) -> None:
    width = max(len(case.name) for case in cases)
    for case in cases:
        print(f"{case.name:<{width}}  {case.about}")
    print("\nmake bench CASE=NAME measures one; ARGS='--pairs 2 --seconds 2' takes a quick look")


def _run(
    case: Case | WriterCase, options: argparse.Namespace, spare: int | None
) -> tuple[Report, dict[str, Any]]:
    """Measures a case and prints it; the document is its result file. `spare`: see `Options`."""
    print(f"{case.name}: measuring …", file=sys.stderr, flush=True)
    if isinstance(case, WriterCase):
        return _run_writers(case, options)
    with tempfile.TemporaryDirectory(prefix="labeler-bench-") as folder:
        asked = Options(options.pairs, options.seconds, spare)
        measured = measure(
            case,
            asked,
            Path(folder),
            lambda number, pair: print(progress_line(number, pair), file=sys.stderr, flush=True),
        )
    seconds = options.seconds or min(side.load.duration_s for side in case.sides.values())
    case = case.without(measured.could_not_run)
    report = judge(case, measured.pairs, options.pairs, seconds)
    for line in lines(case, report, measured, seconds):
        print(line, flush=True)
    return report, document(case, report, measured, seconds)


def _run_writers(case: WriterCase, options: argparse.Namespace) -> tuple[Report, dict[str, Any]]:
    """The same for a case whose sides write to a store."""
    # By name: it needs a server of the tests, which no other case does.
    runner = importlib.import_module(case.runner)
    seconds = options.seconds or runner.SECONDS
    pairs = runner.measure(
        case, options.pairs, seconds, lambda line: print(line, file=sys.stderr, flush=True)
    )
    report = judge(case, pairs, options.pairs, seconds)
    for line in runner.lines(case, report, seconds):
        print(line, flush=True)
    return report, runner.document(case, report, pairs, seconds)


def _keep(options: argparse.Namespace, report: Report, found: Mapping[str, Any]) -> list[str]:
    """Writes the result file; what a caller has to be told of."""
    # A quick look is nobody's reference: it stays out of what is committed.
    results = options.out or (RESULTS if report.measurement else RESULTS / "local")
    _write(results / f"{found['case']}.json", found)
    return [f"{found['case']}: {failure}" for failure in report.failures()]


def _keep_latest(options: argparse.Namespace, documents: Sequence[Mapping[str, Any]]) -> None:
    """The short form is one file, which says of itself that it is a quick look."""
    _write((options.out or RESULTS) / "latest.json", short.latest(documents, options.pairs))
    for line in short.summary(documents, options.pairs):
        print(line, flush=True)


def _write(file: Path, found: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
