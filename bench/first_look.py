"""A first look at speed: a bare tonic echo against `labeler`, unary, BUFFERED and JOURNALED.

Run by `make bench`. Interleaved pairs (A B B A), the median of the per-pair ratios, an A/A ratio
from the same run beside it. Where A/A spreads wider than the demand, the result is "not measurable
here".
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / "target" / "release"
THREADS = "2"


@dataclass(frozen=True)
class Side:
    """One of the compared servers under one load."""

    name: str
    address: str
    pid: int
    durability: str


@dataclass(frozen=True)
class Question:
    """What is compared, and the demand on the ratio of server CPU per label."""

    name: str
    a: Side
    b: Side
    load: str
    demand: float | None


def free_port() -> int:
    """A port that is free now; the server that takes it is started at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], ready: str) -> Iterator[subprocess.Popen[str]]:
    """A server process, from its ready line to its end."""
    process = subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if ready in line:
                break
        else:
            sys.exit(f"{command[0]} ended before it was ready")
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def measure(side: Side, load: str, seconds: float) -> dict[str, float]:
    """One run of the sender."""
    command = [RELEASE / "load", side.address, str(side.pid), str(seconds), side.durability, load]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(out)
    if result["errors"]:
        sys.exit(f"{side.name} {load}: {result['errors']:.0f} errors")
    return result


def fdatasync_us_p99(directory: str, count: int = 300) -> float:
    """The disk's floor in this run: fdatasync of a 4 KiB append."""
    times = []
    with open(Path(directory) / "floor", "wb", buffering=0) as file:
        for _ in range(count):
            file.write(b"x" * 4096)
            begin = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - begin) * 1e6)
    return sorted(times)[int(count * 0.99)]


def compare(question: Question, pairs: int, seconds: float) -> dict[str, object]:
    """Interleaved runs of both sides, and A against itself."""
    runs: dict[str, list[dict[str, float]]] = {"a": [], "b": []}
    for pair in range(pairs):
        for which in "ab" if pair % 2 == 0 else "ba":
            side = question.a if which == "a" else question.b
            runs[which].append(measure(side, question.load, seconds))
    cpu = {w: [r["server_cpu_us_per_label"] for r in runs[w]] for w in runs}
    ratios = [b / a for a, b in zip(cpu["a"], cpu["b"], strict=True)]
    same = [second / first for first, second in zip(cpu["a"][::2], cpu["a"][1::2], strict=False)]
    spread = max(same) / min(same) if same else float("nan")
    median = {
        f"{w}_{key}": statistics.median(r[key] for r in runs[w]) for w in runs for key in runs[w][0]
    }
    return {
        "question": question.name,
        "load": question.load,
        "pairs": pairs,
        "cpu_ratio": statistics.median(ratios),
        "cpu_ratio_min": min(ratios),
        "cpu_ratio_max": max(ratios),
        "aa_ratio": statistics.median(same) if same else None,
        "aa_spread": spread,
        "demand": question.demand,
        **median,
    }


def verdict(result: dict[str, object]) -> str:
    """One word on the demand."""
    demand, ratio, spread = result["demand"], result["cpu_ratio"], result["aa_spread"]
    if demand is None:
        return ""
    assert isinstance(demand, float)
    assert isinstance(ratio, float)
    assert isinstance(spread, float)
    if spread > demand:
        return "not measurable here"
    return f"{'within' if ratio <= demand else 'over'} {demand:g}x"


def show(result: dict[str, object]) -> None:
    """One line for people."""
    print(
        f"{result['question']:<22} {result['load']:<15}"
        f" cpu/label {result['a_server_cpu_us_per_label']:6.1f} -> "
        f"{result['b_server_cpu_us_per_label']:6.1f} us"
        f" (label path {result['b_path_cpu_us_per_label']:.1f}, the rest is the store's writer)"
        f"  ratio {result['cpu_ratio']:.2f} [{result['cpu_ratio_min']:.2f}.."
        f"{result['cpu_ratio_max']:.2f}]  A/A {result['aa_ratio']:.2f}"
        f"  {result['b_calls_per_s']:7.0f}/s"
        f"  client p50 {result['b_client_latency_us_p50'] / 1e3:.2f} ms"
        f" p99 {result['b_client_latency_us_p99'] / 1e3:.2f} ms"
        f" (echo {result['a_client_latency_us_p99'] / 1e3:.2f})  {verdict(result)}",
        flush=True,
    )


def main() -> None:
    """Builds nothing: `make bench` has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    with ExitStack() as stack:
        state = stack.enter_context(tempfile.TemporaryDirectory())
        ports = free_port(), free_port()
        echo_at, labeler_at = (f"127.0.0.1:{port}" for port in ports)
        echo = stack.enter_context(running([str(RELEASE / "echo"), echo_at, THREADS], "serving"))
        serve = [sys.executable, "-m", "labeler.cli", "serve", "--state-dir", state]
        serve += ["--grpc-address", labeler_at, "--admin-address", "127.0.0.1:0"]
        serve += ["--set", f"transport.threads={THREADS}", "--set", "log.format=json"]
        labeler = stack.enter_context(running(serve, '"serving"'))
        floor = Side("echo", echo_at, echo.pid, "BUFFERED")
        buffered = Side("labeler BUFFERED", labeler_at, labeler.pid, "BUFFERED")
        journaled = Side("labeler JOURNALED", labeler_at, labeler.pid, "JOURNALED")
        questions = [
            Question("BUFFERED at 2,300/s", floor, buffered, "rate=2300", None),
            Question("JOURNALED at 2,300/s", floor, journaled, "rate=2300", None),
            Question("BUFFERED, saturated", floor, buffered, "concurrency=64", 2.0),
            Question("JOURNALED, saturated", floor, journaled, "concurrency=64", 2.5),
        ]
        results = []
        for question in questions:
            results.append(compare(question, options.pairs, options.seconds))
            show(results[-1])
        disk = fdatasync_us_p99(state)
        print(f"floor of this run: fdatasync p99 {disk / 1e3:.2f} ms, bare echo p99 above")
    if options.out:
        machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"
        date = time.strftime("%Y-%m-%d")
        document = {"machine": machine, "date": date, "fdatasync_us_p99": disk, "results": results}
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
