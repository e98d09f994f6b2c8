"""The exact figures of a tree: instructions, allocations, calls and stages of a label.

`python -m bench.gate.figures [--out FILE]` shows them (`make bench-micro`); `sites` shows where the
label path allocates. Builds the tree's own micro-benchmarks; times nothing and judges nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.gate.judge import Figures
from bench.gate.trees import ROOT
from bench.suite.metrics import STAGES
from bench.suite.show import commit, machine
from labeler import runtime_library

__all__ = [
    "FiguresError",
    "built",
    "clean",
    "figures_of",
    "has_micro",
    "measure",
    "output",
    "table",
    "target_folder",
]

CRATE = "labeler-bench-micro"
OWN_CRATES = (CRATE, "labeler-core", "labeler-loadgen", "labeler-bridge")
LOCAL = ROOT / "bench" / "results" / "local"
_BUILD_S = 1800.0
_COUNT_S = 600.0


class FiguresError(Exception):
    """The figures cannot be taken; the message says what is missing or what the build said."""


def has_micro(tree: Path) -> bool:
    """Whether a tree has micro-benchmarks."""
    return (tree / "bench" / "micro" / "Cargo.toml").is_file()


def target_folder() -> Path:
    """Where cargo builds, for both trees, so that what they share is built once."""
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()


def measure(tree: Path) -> dict[str, float]:
    """Builds a tree's micro-benchmarks and takes its figures. Errors: `FiguresError`."""
    with built(tree) as count:
        return count()


@contextmanager
def built(tree: Path) -> Iterator[Callable[[], dict[str, float]]]:
    """Builds a tree's micro-benchmarks; what is yielded takes its figures. Errors: `FiguresError`.

    Both trees are built in one folder, and cargo tells what is fresh by the age of files: what was
    built of this tree goes in the end, so that it is never taken for another's.
    """
    try:
        program = [str(_built(tree)), str(runtime_library.find()), str(tree)]

        def count() -> dict[str, float]:
            return figures_of(_instructions(tree), json.loads(output(program, tree, _COUNT_S)))

        yield count
    finally:
        if tree != ROOT:
            clean(tree)


def clean(tree: Path) -> None:
    """Deletes what was built in release of a tree's own crates. Errors: `FiguresError`."""
    crates = [f"--package={crate}" for crate in OWN_CRATES]
    output(["cargo", "clean", "--locked", "--release", *crates], tree, _COUNT_S)


def sites(tree: Path) -> str:
    """Where the label path allocates, for people. Errors: `FiguresError`."""
    return output(
        [str(_built(tree)), str(runtime_library.find()), str(tree), "sites"], tree, _COUNT_S
    )


def figures_of(instructions: Figures, counted: Mapping[str, Any]) -> dict[str, float]:
    """One flat table of what was counted. Errors: `FiguresError` for a debug build."""
    if counted["profile"] != "release":
        raise FiguresError(f"this is a {counted['profile']} build, whose figures say nothing")
    found = {f"instructions/{name}": value for name, value in instructions.items()}
    for load, parts in counted["loads"].items():
        for thread, counts in parts["threads"].items():
            found |= {f"{load}/{thread}/{name}": value for name, value in counts.items()}
        for stage, seen in parts["stages"].items():
            found |= {f"{load}/stage/{stage}/{name}": value for name, value in seen.items()}
    return {name: float(value) for name, value in found.items()}


def table(figures: Figures) -> Iterator[str]:
    """The figures as a person reads them."""
    yield "instructions"
    for name, value in figures.items():
        if name.startswith("instructions/"):
            yield f"  {name.removeprefix('instructions/'):<24}{value:>12,.0f}"
    loads = list(dict.fromkeys(name.split("/")[0] for name in figures if "/stage/" in name))
    for load in loads:
        yield f"{load}, of a label"
        yield from _threads(load, figures)
        yield f"  {_stages(load, figures)}"


def _threads(load: str, figures: Figures) -> Iterator[str]:
    for thread in ("transport", "infer", "committer"):
        prefix = f"{load}/{thread}/"
        counts = {n.removeprefix(prefix): v for n, v in figures.items() if n.startswith(prefix)}
        allocations, bytes_ = counts.pop("allocations", 0.0), counts.pop("allocated_bytes", 0.0)
        calls = ", ".join(f"{value:g} {name}" for name, value in counts.items() if value)
        yield f"  {thread:<10}{allocations:>8.2f} allocations {bytes_:>8.0f} bytes  {calls}"


def _stages(load: str, figures: Figures) -> str:
    parts = []
    for stage in STAGES:
        prefix = f"{load}/stage/{stage}"
        passed, us = figures[f"{prefix}/per_label"], figures[f"{prefix}/us_p50"]
        parts.append(f"{stage} {passed:g}× {us:.0f}")
    return f"stages passed and µs p50: {', '.join(parts)}"


def _built(tree: Path) -> Path:
    """The program that counts, built."""
    # Both at once: what a benchmark needs beside the program changes what is built for that.
    command = ["cargo", "build", "--locked", "--release", "-p", CRATE]
    command += ["--bin", "micro", "--bench", "instructions"]
    said = output([*command, "--message-format=json-render-diagnostics"], tree, _BUILD_S)
    for made in map(json.loads, said.splitlines()):
        if made.get("executable") and made["target"]["name"] == "micro":
            return Path(made["executable"])
    raise FiguresError(f"cargo built no program of {CRATE} in {tree}")


def _instructions(tree: Path) -> dict[str, float]:
    command = ["cargo", "bench", "--locked", "-p", CRATE, "--bench", "instructions"]
    said = output([*command, "--", "--output-format=json"], tree, _BUILD_S)
    found = {}
    for line in said.splitlines():
        if line.startswith("{"):
            benchmark = json.loads(line)
            name = f"{benchmark['function_name']}/{benchmark['id']}"
            found[name] = _count(benchmark)
    if not found:
        raise FiguresError("gungraun counted nothing")
    return found


def _count(benchmark: Mapping[str, Any]) -> float:
    profile = next(p for p in benchmark["profiles"] if p["tool"] == "Callgrind")
    return float(profile["data"]["total"]["metrics"]["Ir"]["values"]["new"])


def output(command: Sequence[str], tree: Path, timeout_s: float) -> str:
    """What a command in a tree prints, with our tools and target. Errors: `FiguresError`."""
    tools = target_folder() / "tools" / "bin"
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(target_folder()),
        "PYO3_PYTHON": sys.executable,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
    }
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise FiguresError(f"{error.filename} is not there") from error
    except subprocess.TimeoutExpired as error:
        raise FiguresError(f"not done within {timeout_s:.0f} s: {' '.join(command)}") from error
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-30:])
        raise FiguresError(f"{' '.join(command)} exits with {done.returncode}:\n{said}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0, or 2 where the figures cannot be taken."""
    parser = argparse.ArgumentParser(prog="bench-micro", description="Shows the exact figures.")
    parser.add_argument("what", nargs="?", choices=["figures", "sites"], default="figures")
    parser.add_argument("--out", type=Path, default=LOCAL / "micro.json")
    options = parser.parse_args(arguments)
    try:
        if options.what == "sites":
            print(sites(ROOT))
            return 0
        figures = measure(ROOT)
    except FiguresError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(table(figures)))
    head = {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "machine": machine()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**head, "figures": figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
