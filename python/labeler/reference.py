"""The pages docs/configuration.md and docs/metrics.md, made from the schema and the registry.

`python -m labeler.reference docs` writes them; a test compares. Nobody edits them by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labeler.config import all_sections, all_settings
from labeler.config.units import format_bytes
from labeler.telemetry import names

__all__ = ["pages"]

_CONFIGURATION = """# Configuration

Made from the schema by `python -m labeler.reference docs`; do not edit.

Settings come from four sources; the later wins:

1. defaults, as below,
2. a TOML file: `labeler serve --config labeler.toml`,
3. the environment: `path.deadline_ms` is `LABELER_PATH__DEADLINE_MS`, `state_dir` is
   `LABELER_STATE_DIR`; lists are JSON, or separated by commas,
4. flags: `--set path.deadline_ms=100`, and a command's own.

Bytes are whole numbers with an optional `KiB`, `MiB`, `GiB` or `TiB`. Times have their unit in the
name. `labeler config show` prints every value in force with its origin.

Whatever is wrong stops the start with exit code 64, all of it at once: a value, a name that is not
known, a `LABELER_` variable that is misspelt, two settings that do not fit together.

```text
configuration: 3 errors, nothing was started
  path.batch_rows_max = 0  labeler.toml:12            expected 1 to 4096
  path.deadline_ms = "5s"  LABELER_PATH__DEADLINE_MS  expected 1 to 600000
  writer.rows_mx           --set                      unknown; did you mean `writer.rows_max`?
```

## What an operator meets

| what | default |
|---|---|
| gRPC port · admin port | `{grpc}` · `{admin}`: on loopback, until you say otherwise |
| state directory | `{state_dir}` (`--state-dir`), one a process: journal, SQLite, `instance_id` |
| deadline · durability | {deadline} ms · `{durability}` |
| queues | {queue} robots' rows, {bulk} bulk rows; beyond: `RESOURCE_EXHAUSTED` |
| dedupe window | {dedupe_rows} rows and {dedupe_s} s, whichever ends first |
| journal | {disk} on disk, {memory} in memory; beyond: `RESOURCE_EXHAUSTED` |
| threads | `auto`: cgroup quota (v1, v2) ∩ affinity, printed at the start with its origin |
| open files | limit raised, and checked against `transport.connections_max` |
| exit codes | 0 · 64 configuration · 65 newer format · 69 port or lock taken · 74 disk |
| health | `labeler.live` never fails from load; `""`, `labeler.v1.LabelService`: ready |
| its store | health `labeler.store` fails `path.store_stalled_ms` after a last confirmation |
| SIGTERM | handled in the core; {budget_s} s to drain, a second one leaves at once |

## What memory is for

At rest about 65 MB. Measured at most, on a busy machine (x86-64, glibc):

| one | costs | bounded by |
|---|---|---|
| connection | 32,000 bytes | `transport.connections_max` |
| connection with an open stream | 44,000 bytes | the same |
| remembered label, once stored | 180 bytes | `path.dedupe_rows_max` |
| remembered label until then | 550 bytes | the same |
| loaded version of `kiva-floor` | 2,300,000 bytes | what is loaded |

2,300 connections and a full window: 155 MB, and 176 once all of them have come again with a stream
each. Of a connection 28 KiB are HTTP/2's own buffers, of which a busy one uses 20.
A label under way costs about 5,000 bytes more. Memory is given back to the system late: after a
peak, such as a stall of the machine, it stays where it was and is used again.
"""

_METRICS = """# Metrics

Made from the registry by `python -m labeler.reference docs`; do not edit.

`http://ADMIN/metrics` has them as Prometheus text, `/status` the golden figures as JSON, and
`labeler status` shows those; `/stages` has the histograms of the stages and of the event loop's
lag, so that the difference of two readings gives the percentiles of any span. A scrape reads merged
snapshots and never touches a thread of the label path.

Two sums hold, exactly when nothing moves, and every term but the gauges only grows:

- `labeler_requests_received_total` = `labeler_requests_total` over all outcomes
  + `labeler_requests_in_flight`, for each method;
- `labeler_records_journaled_total` = `labeler_records_stored_total`
  + `labeler_records_superseded_total` + `labeler_records_dead_total` + `labeler_records_pending`.

No label holds a robot, a SKU or a name that a client made up: the number of series is bounded by
stages, methods, error codes and the model versions that were loaded.

| name | kind | unit | labels | meaning |
|---|---|---|---|---|
"""


def pages() -> Mapping[str, str]:
    """Each page's file name with its text."""
    return {"configuration.md": _configuration(), "metrics.md": _metrics()}


def _configuration() -> str:
    settings = all_settings()
    default = {name: setting.default for name, setting in settings.items()}
    text = _CONFIGURATION.format(
        grpc=default["transport.grpc_address"],
        admin=default["admin.address"],
        state_dir=default["state_dir"],
        deadline=default["path.deadline_ms"],
        durability=default["path.durability"],
        queue=f"{default['path.queue_rows_max']:,}",
        bulk=f"{default['path.bulk_queue_rows_max']:,}",
        dedupe_rows=f"{default['path.dedupe_rows_max']:,}",
        dedupe_s=default["path.dedupe_window_ms"] // 1000,
        disk=format_bytes(default["journal.disk_bytes_max"]),
        memory=format_bytes(default["journal.memory_bytes_max"]),
        budget_s=default["drain.budget_ms"] // 1000,
    )
    header = "\n| setting | default | expected | meaning |\n|---|---|---|---|\n"
    parts = [text, "\n## All settings\n", header, _row("state_dir")]
    for section, meaning in all_sections().items():
        rows = "".join(_row(name) for name in settings if name.startswith(f"{section}."))
        parts.append(f"\n### `[{section}]`\n\n{meaning}\n{header}{rows}")
    return "".join(parts)


def _row(name: str) -> str:
    setting = all_settings()[name]
    shown = _shown(setting.kind, setting.default)
    inner = name.rpartition(".")[2]
    return f"| `{inner}` | `{shown}` | {setting.expected} | {setting.meaning} |\n"


def _shown(kind: str, value: Any) -> str:
    if kind == "bytes":
        return format_bytes(value)
    if kind == "flag":
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return str(value) if value != "" else '""'


def _metrics() -> str:
    rows = [
        f"| `{_scraped(metric)}` | {metric.kind} | {metric.unit or '-'} "
        f"| {', '.join(metric.labels) or '-'} | {metric.meaning} |\n"
        for metric in names.ALL
    ]
    return _METRICS + "".join(rows)


def _scraped(metric: names.Metric) -> str:
    """An info metric is scraped under its name with `_info`."""
    return f"{metric.name}_info" if metric.kind == "info" else metric.name


def main() -> None:
    """Writes the pages into the folder given as the only argument."""
    folder = Path(sys.argv[1])
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
