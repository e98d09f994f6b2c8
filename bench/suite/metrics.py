"""What one run gives: each figure's name, unit and meaning, once.

Case files, goals, guards and result files use these names. Takes figures out of the sender's
result; judges nothing, and never makes up a figure that a run does not have.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "METRICS",
    "STAGES",
    "Figures",
    "Metric",
    "behind",
    "figures_of",
    "over_runs",
    "writer_cpu_us_per_stored",
]

Figures = Mapping[str, float]
"""Figures of one run, or of a side over its runs, by the names in `METRICS`."""

BEHIND_US = 1_000_000
"""A p99 from which on a side of an open loop is said to fall behind."""

STAGES = ("decode", "admit", "cache", "queue", "infer", "journal", "encode", "total")


@dataclass(frozen=True)
class Metric:
    """`over`: how a side's runs become one figure. `only`: the one kind of server that has it."""

    over: Literal["median", "sum", "max"]
    meaning: str
    only: str = ""


def _stages() -> dict[str, Metric]:
    shares = {"p50": "half of", "p99": "99 % of"}
    return {
        f"stage_{stage}_us_{share}": Metric("median", f"{text} `{stage}` took at most", "labeler")
        for stage in STAGES
        for share, text in shares.items()
    }


METRICS: Mapping[str, Metric] = {
    "labels_total": Metric("sum", "labels answered in the measured part"),
    "labels_per_s": Metric("median", "labels answered a second"),
    "errors_total": Metric("sum", "calls or rows not answered with a label"),
    "client_latency_us_mean": Metric("median", "from the intended send time to the reply"),
    "client_latency_us_p50": Metric("median", "from the intended send time to the reply"),
    "client_latency_us_p95": Metric("median", "from the intended send time to the reply"),
    "client_latency_us_p99": Metric("median", "from the intended send time to the reply"),
    "client_latency_us_p999": Metric("median", "from the intended send time to the reply"),
    "client_latency_uncorrected_us_p99": Metric("median", "from the actual send to the reply"),
    "server_latency_us_p50": Metric("median", "what replies say: arrival to reply", "labeler"),
    "server_latency_us_p99": Metric("median", "what replies say: arrival to reply", "labeler"),
    "server_cpu_us_per_label": Metric("median", "user and system, until the work is done"),
    "server_cpu_user_us_per_label": Metric("median", "of it user, in the measured part"),
    "server_cpu_system_us_per_label": Metric("median", "of it system, in the measured part"),
    "server_cpu_after_us_per_label": Metric("median", "of it after the last reply"),
    "server_rss_bytes_max": Metric("max", "the process's largest resident size"),
    "start_ms": Metric("max", "from the command to the line that says that it serves", "labeler"),
    "rss_growth_bytes": Metric("max", "the largest resident size above that then", "labeler"),
    "path_cpu_us_per_label": Metric("median", "of server CPU: the label path's threads", "labeler"),
    "backlog_rows": Metric(
        "median", "labels still on their way to the store at the end", "labeler"
    ),
    "stored_per_s": Metric("median", "labels stored a second, warm-up included", "labeler"),
    "stored_per_arrived": Metric("median", "of it to labels answered a second", "labeler"),
    "writer_cpu_us_per_stored": Metric(
        "median", "user and system, above that with the writer off, a label stored", "labeler"
    ),
    "write_calls_per_label": Metric("median", "calls of the process that write, a label stored"),
    "write_bytes_per_label": Metric("median", "bytes that they write, a label stored"),
    "loop_lag_us_p99": Metric("median", "99 % of the event loop's timers were late by", "labeler"),
    "loop_lag_us_max": Metric("max", "the latest of the event loop's timers", "labeler"),
    "store_cpu_cores": Metric("median", "cores that the store's own process took", "labeler"),
    "bulk_rows_per_s": Metric("median", "bulk rows answered a second, beside the load", "labeler"),
    "swaps_total": Metric("median", "models loaded and unloaded in a run", "labeler"),
    "decode_encode_us_p50": Metric("median", "p50 of decode and of encode, summed", "labeler"),
    "decode_encode_us_p99": Metric("median", "p99 of decode and of encode, summed", "labeler"),
    "schedule_lag_us_p99": Metric("median", "how late the sender sent"),
    "sender_cpu_share": Metric("median", "of the cores that the sender may use"),
    **_stages(),
}


_WAYS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "sum": sum,
    "max": max,
}


def figures_of(result: Mapping[str, Any], seen: Figures) -> dict[str, float]:
    """Figures of one run: the sender's result, and what was `seen` of the server beside it.

    `seen` holds metrics as they are, and of these two the parts: `server_cpu_after_us` (µs in all)
    and `path_cpu_share` (0 to 1). A label here is an answered row.
    """
    labels = max(1, int(result["answered"]))
    latency, server = result["latency_us"], result["server"]
    user, system = (server[f"cpu_{kind}_us"] / labels for kind in ("user", "system"))
    # What is left over is of the warm-up's labels too: of each label its share.
    after = seen.get("server_cpu_after_us", 0.0) / max(1, int(result["acknowledged_total"]))
    found = {
        "labels_total": result["answered"],
        "labels_per_s": result["answered"] / result["elapsed_s"],
        "errors_total": sum(result["errors"].values()),
        "client_latency_us_mean": latency["mean"],
        "client_latency_us_p50": latency["p50"],
        "client_latency_us_p95": latency["p95"],
        "client_latency_us_p99": latency["p99"],
        "client_latency_us_p999": latency["p999"],
        "client_latency_uncorrected_us_p99": result["latency_uncorrected_us"]["p99"],
        "server_latency_us_p50": result["server_us"]["p50"],
        "server_latency_us_p99": result["server_us"]["p99"],
        "server_cpu_us_per_label": user + system + after,
        "server_cpu_user_us_per_label": user,
        "server_cpu_system_us_per_label": system,
        "server_cpu_after_us_per_label": after,
        "server_rss_bytes_max": server["rss_bytes_max"],
        "schedule_lag_us_p99": result["schedule_lag_us"]["p99"],
        "sender_cpu_share": result["sender_cpu_share"],
        **{name: value for name, value in seen.items() if name in METRICS},
    }
    if "stored_per_s" in seen:
        found["stored_per_arrived"] = seen["stored_per_s"] / max(1.0, found["labels_per_s"])
    if "path_cpu_share" in seen:
        found["path_cpu_us_per_label"] = (user + system) * seen["path_cpu_share"]
    return {name: float(value) for name, value in found.items() if value is not None}


def behind(side: str, shape: str, figures: Figures) -> str:
    """What is said of a side that falls behind its schedule; else nothing.

    Labels a second are those of the schedule there: answers after its end count over its time.
    """
    p99_us = figures.get("client_latency_us_p99", 0.0)
    if shape == "saturate" or p99_us <= BEHIND_US:
        return ""
    return (
        f"{side} fell behind: p99 {p99_us / 1e6:.1f} s; "
        "its labels/s are the schedule's, with answers after its end"
    )


def writer_cpu_us_per_stored(on: Figures, off: Figures) -> float | None:
    """What a label stored costs the process: a run of a pair less the one with its writer off.

    None where nothing was stored. CPU counts in the measured part, so does what is stored.
    """
    if not on.get("stored_per_s"):
        return None
    kinds = ("server_cpu_user_us_per_label", "server_cpu_system_us_per_label")
    on_us, off_us = (sum(run[k] for k in kinds) * run["labels_per_s"] for run in (on, off))
    return (on_us - off_us) / on["stored_per_s"]


def over_runs(runs: Sequence[Figures]) -> dict[str, float]:
    """One figure of each metric that all runs have, in the order of `METRICS`."""
    return {
        name: float(_WAYS[metric.over]([run[name] for run in runs]))
        for name, metric in METRICS.items()
        if runs and all(name in run for run in runs)
    }
