"""A start with a long backlog: quick to be ready, bounded in memory, and all of it is delivered.

No time is asserted, since the machine is shared: what is counted is the work of the start (bytes
read, CPU, memory) against what the journal holds and what making it took. The seconds are printed;
the bound of 5 s for 1,000,000 labels is read from there. Full counts: about 120 s.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import labeler
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.database import write_locked
from tests.support.made_models import settings, write_identity
from tests.support.sending import ended, sender
from tests.support.service import Service, StartService
from tests.support.waiting import eventually

MIB = 1 << 20
READS_MAX = 5
"""How often a start may read a byte: where the log ends, its groups, twice the dedupe window."""
WINDOW_ROW_BYTES = 1024
"""What a remembered request may take in memory."""


def bytes_read(service: Service) -> int:
    """All bytes that the process has read from files so far."""
    lines = Path(f"/proc/{service.pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def cpu_us(service: Service) -> int:
    process = service.status()["process"]
    return int(process["cpu_user_us"] + process["cpu_system_us"])


def resident(service: Service) -> int:
    return int(service.status()["process"]["resident_bytes_max"])


def fill(service: Service, labels: int) -> int:
    """Makes at least so many labels, none of which the store takes; how many are in the journal."""
    made = sender(
        service.address, rpc="label_batch", batch_rows=250, robots=100, connections=2, width=4,
        durability="BUFFERED", schedule={"shape": "saturate", "in_flight": 16},
        duration_s=3_600, timeout_ms=60_000,
    )  # fmt: skip
    made.connect()
    made.fire()
    eventually(lambda: service.metrics().records().entered >= labels, timeout_s=600)
    made.stop()
    result = ended(made)

    def durable() -> dict[str, Any] | None:
        found: dict[str, Any] = service.status()["journal"]
        return None if found["uncommitted_bytes"] else found

    journal = eventually(durable)
    assert journal
    assert result["errors"] == {}
    assert journal["journaled_total"] == journal["pending"] == result["answered"]
    return int(result["answered"])


def rows(database: Path) -> int:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as connection:
        found: int = connection.execute("SELECT count(*) FROM labels").fetchone()[0]
    return found


@counts("labels", quick=20_000, full=1_000_000, full_timeout_s=900)
def test_a_start_with_a_long_backlog_is_ready_before_it_is_delivered(
    start_service: StartService, tmp_path: Path, labels: int
) -> None:
    """W54: the backlog costs disk, not memory and not the start."""
    write_identity(tmp_path / "models")
    served = settings(tmp_path / "models") | {
        "path__bulk_run_us_max": 100_000,  # whole batches: the backlog is made quickly
        "path__bulk_queue_rows_max": 100_000,
    }
    first = start_service(**served)
    fresh_read, fresh_cpu_us, fresh_bytes = bytes_read(first), cpu_us(first), resident(first)
    with write_locked(first.database):
        pending = fill(first, labels)
        making_us = cpu_us(first) - fresh_cpu_us
        disk_bytes = first.status()["journal"]["disk_bytes"]
        first.kill()
        began_s = time.monotonic()
        again = start_service(**served)
        ready_s = time.monotonic() - began_s
        read, spent_us = bytes_read(again) - fresh_read, cpu_us(again)
        taken = resident(again) - fresh_bytes
        print(f"{pending} labels, {disk_bytes} B on disk: ready after {ready_s:.2f} s;")
        print(f"read {read} B, {spent_us} µs CPU (fresh {fresh_cpu_us}), {taken} B more memory")
        [recovered] = again.logged("journal recovered")
        assert (recovered["pending"], recovered["cut_bytes"]) == (pending, 0)
        assert again.metrics().records().parts["pending"] == pending
        assert read <= READS_MAX * disk_bytes
        assert spent_us <= 2 * fresh_cpu_us + making_us
        with labeler.Client(again.address, timeout_ms=30_000) as client:
            assert client.label("newcomer", 1, [0.0, 0.0, 1.0, 0.0]).label == "at-2"
    balanced(again, timeout_s=600)
    assert rows(again.database) == pending + 1
    window = again.metrics().sum("labeler_dedupe_rows") * WINDOW_ROW_BYTES
    assert resident(again) - fresh_bytes <= 2 * 64 * MIB + window
    assert again.stop() == 0


@pytest.fixture(autouse=True)
def linux() -> None:
    if not Path("/proc/self/io").exists():
        pytest.skip("bytes read are counted in /proc, which is Linux's")
