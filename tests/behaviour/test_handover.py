"""What a removed pod left behind is delivered by a command, or by another service beside its own.

Cases W64 (rollout and scaling), W50 (two processes), W40 (a record that cannot be read back).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from labeler.telemetry import names
from labeler.writer.dead_letters import FILE_NAME, DeadLetters
from tests.support.accounting import balanced
from tests.support.database import (
    Key,
    acknowledged,
    lost_or_changed,
    refusing,
    stored,
    write_locked,
)
from tests.support.dynamodb import DynamoTable
from tests.support.journal_bytes import change, crc32c, flip, groups, records, segments
from tests.support.load import Fleet, Robot, robots
from tests.support.service import LABELER, Service, StartService, environment, run_labeler, serve
from tests.support.stores import aws_variables
from tests.support.waiting import eventually

LABELS = 120
IN_USE, NEWER, DISK = 69, 65, 74


def label(service: Service, fleet: list[Robot], seed: int, count: int) -> None:
    """`count` more labels for a fleet."""
    with Fleet(service.address, fleet, seed) as sending:
        goal = sending.acknowledged() + count
        eventually(lambda: sending.acknowledged() >= goal, timeout_s=60)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Robot]]:
    """A state directory with labels of which none was stored, and who was told them."""
    state_dir, fleet = tmp_path_factory.mktemp("killed") / "pod", robots(4)
    service = serve(state_dir, journal__segment_bytes="1MiB")
    try:
        service.wait_ready()
        with write_locked(service.database):
            label(service, fleet, 1, LABELS)
            service.kill()
    finally:
        service.close()
    service.database.unlink()
    return state_dir, fleet


@pytest.fixture
def pod(killed: tuple[Path, list[Robot]], tmp_path: Path) -> Path:
    """The test's own copy of it."""
    return shutil.copytree(killed[0], tmp_path / "pod")


@pytest.fixture
def told(killed: tuple[Path, list[Robot]]) -> list[Robot]:
    """Who was told the labels of `pod`."""
    return killed[1]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The store of those who deliver."""
    return tmp_path / "labels.sqlite3"


def deliver(
    directory: Path, database: Path, *words: str, **settings: object
) -> subprocess.CompletedProcess[str]:
    """Runs the command with a store that is not in the directory."""
    own = {"state_dir": str(database.parent / "own"), "sqlite__path": str(database)}
    command = ("journal", "deliver", str(directory), *words)
    return run_labeler(*command, **own, **settings)  # type: ignore[arg-type]


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What it said as JSON."""
    found: dict[str, Any] = json.loads(done.stdout)
    return {name: found[name] for name in ("found", "stored", "superseded", "dead", "pending")}


def pending(directory: Path) -> int:
    """Labels that the journal still holds."""
    stat = json.loads(run_labeler("journal", "stat", str(directory), "--json").stdout)
    return int(stat["pending"])


def listed(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Each file below a folder: its inode and its bytes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_ino, path.read_bytes()) for path in files}


@contextmanager
def in_use(directory: Path) -> Iterator[None]:
    """Holds a journal's lock, as a living service does."""
    with (directory / "journal" / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def test_scaled_from_three_to_one_all_acknowledged_labels_are_in_the_store(
    start_service: StartService, tmp_path: Path, database: Path, seed: int
) -> None:
    """W64: one stays, one is delivered by command, one is adopted at the next start."""
    shared = {"sqlite__path": str(database), "drain__budget_ms": 400}
    pods = [tmp_path / f"pod-{number}" for number in range(3)]
    fleets = [[Robot(f"pod-{number}-robot")] for number in range(3)]
    running = [start_service(state_dir=folder, **shared) for folder in pods]
    with write_locked(database):
        for service, fleet in zip(running, fleets, strict=True):
            label(service, fleet, seed, 40)
        for service in running[1:]:
            assert service.stop() == 0
            assert service.logged("stopped")[0]["pending"] >= 40
    balanced(running[0])
    done = deliver(pods[1], database, "--json")
    assert done.returncode == 0, done.stderr
    assert counts(done)["stored"] == counts(done)["found"] >= 40
    assert running[0].stop() == 0
    again = start_service(state_dir=pods[0], args=("--adopt", str(pods[2])), **shared)
    eventually(lambda: again.logged("an adopted journal is delivered"), timeout_s=30)
    balanced(again)
    everybody = [robot for fleet in fleets for robot in fleet]
    assert not lost_or_changed(everybody, database)
    # What was journaled and not acknowledged in time is the only thing that may be there beside.
    assert len(stored(database)) <= sum(robot.sent for robot in everybody)
    ids = {(folder / "instance_id").read_text().strip() for folder in pods}
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT DISTINCT instance_id, journal_id FROM labels").fetchall()
    assert {instance for instance, _ in found} == ids
    assert len({journal for _, journal in found}) == len(pods)
    assert [pending(folder) for folder in pods[1:]] == [0, 0]


def test_a_second_delivery_finds_nothing_and_the_directory_serves_again(
    pod: Path, told: list[Robot], database: Path, start_service: StartService
) -> None:
    first = deliver(pod, database, "--json")
    assert first.returncode == 0, first.stderr
    found = counts(first)["found"]
    assert counts(first) == {**dict.fromkeys(("superseded", "dead", "pending"), 0)} | {
        "found": found,
        "stored": found,
    }
    assert not lost_or_changed(told, database)
    rows = stored(database)
    second = deliver(pod / "journal", database, "--json")
    assert second.returncode == 0, second.stderr
    assert counts(second)["found"] == counts(second)["stored"] == 0
    assert stored(database) == rows
    service = start_service(state_dir=pod)
    assert service.logged("journal recovered")[0]["pending"] == 0
    label(service, [Robot("newcomer")], 1, 5)
    balanced(service)


def test_a_journal_in_use_or_of_a_newer_version_or_missing_is_not_touched(
    pod: Path, database: Path, tmp_path: Path
) -> None:
    with in_use(pod):
        before = listed(pod)
        done = deliver(pod, database)
        assert listed(pod) == before
    assert done.returncode == IN_USE
    assert str(pod / "journal") in done.stderr
    assert str(os.getpid()) in done.stderr
    segment = segments(pod / "journal")[0]
    page = bytearray(segment.read_bytes())
    for at in (0, 2048):
        page[at + 8] = 2
        page[at + 60 : at + 64] = crc32c(page[at : at + 60]).to_bytes(4, "little")
    segment.write_bytes(page)
    before = listed(pod / "journal")
    assert deliver(pod, database).returncode == NEWER
    after = listed(pod / "journal")
    lock = str(pod / "journal" / "lock")
    assert (before | {lock: after[lock]}) == after
    for missing in (tmp_path / "nowhere", tmp_path):
        done = deliver(missing, database)
        assert (done.returncode, str(missing) in done.stderr) == (DISK, True)
    assert not (tmp_path / "nowhere").exists()
    assert not database.exists()


def test_killed_in_the_middle_it_is_gone_on_with(
    pod: Path, told: list[Robot], database: Path
) -> None:
    settings = {
        "sqlite__path": str(database), "writer__rows_max": 1, "state_dir": str(pod.parent / "own")
    }  # fmt: skip
    process = subprocess.Popen(
        [LABELER, "journal", "deliver", str(pod)],
        env=environment(settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    eventually(lambda: len(stored(database)) > 3, timeout_s=30)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    done = deliver(pod, database, "--json")
    assert done.returncode == 0, done.stderr
    assert counts(done)["found"] > 0
    assert not lost_or_changed(told, database)
    assert pending(pod) == 0


def test_a_store_that_stays_away_and_a_signal_leave_the_rest_in_the_journal(
    pod: Path, told: list[Robot], database: Path
) -> None:
    run_labeler("store", "ensure", sqlite__path=str(database), state_dir=str(pod.parent))
    with write_locked(database):
        done = deliver(pod, database, "--timeout", "1s", "--json")
        assert done.returncode == 1
        assert counts(done)["pending"] == counts(done)["found"] > 0
        assert f"labels are still in {pod}" in done.stderr
        own = {"sqlite__path": str(database), "state_dir": str(pod.parent / "own")}
        process = subprocess.Popen(
            [LABELER, "journal", "deliver", str(pod)],
            env=environment(own | {"writer__write_timeout_ms": 500}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr
        assert "labels left" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 1, said
        assert "run the same command again" in said
    assert deliver(pod, database).returncode == 0
    assert not lost_or_changed(told, database)


def test_damage_is_said_and_undecodable_records_are_dead_and_all_else_arrives(
    pod: Path, told: list[Robot], database: Path
) -> None:
    """W40, on another's journal."""
    segment = segments(pod / "journal")[0]
    body = list(records(segment))[3]
    change(segment, body, lambda body: b"\xff" * len(body))
    damaged = [group for group in groups(pod / "journal") if group.numbers][9]
    flip(damaged.file, damaged.offset + 64 + 30)
    done = deliver(pod, database)
    assert done.returncode == 0, done.stderr
    assert "damage, kept in the journal's quarantine" in done.stdout
    assert "1 dead, 0 left" in done.stdout
    assert len(lost_or_changed(told, database)) <= 1 + len(damaged.numbers)
    assert (pod / "journal" / "quarantine" / f"record-{body.number:020}").exists()


def test_what_the_store_refuses_is_a_dead_letter_of_the_directory_that_was_left(
    pod: Path, told: list[Robot], database: Path
) -> None:
    refused = told[0].robot_id
    run_labeler("store", "ensure", sqlite__path=str(database), state_dir=str(database.parent))
    with refusing(database, refused):
        done = deliver(pod, database, "--json")
    assert done.returncode == 0, done.stderr
    missing = lost_or_changed(told, database)
    assert missing.keys() == {key for key in acknowledged(told) if key[0] == refused}
    letters = DeadLetters(pod)
    kept: dict[Key, str] = {
        letter.row.key: letter.row.label for letter in letters.list(limit=10_000)
    }
    letters.close()
    assert missing.items() <= kept.items()
    assert counts(done)["dead"] == len(kept)
    assert not list(database.parent.glob(f"own/**/{FILE_NAME}"))


def test_a_service_goes_on_whatever_it_was_told_to_adopt(
    pod: Path, told: list[Robot], database: Path, tmp_path: Path, start_service: StartService
) -> None:
    used = shutil.copytree(pod, tmp_path / "used")
    damaged = shutil.copytree(pod, tmp_path / "damaged")
    for segment in segments(damaged / "journal"):
        segment.write_bytes(bytes(8192))
    adopt = [str(folder) for folder in (used, damaged, tmp_path / "gone", pod)]
    with in_use(used):
        service = start_service(sqlite__path=str(database), writer__adopt=adopt)
        failed = "an adopted journal is not delivered"
        eventually(lambda: len(service.logged(failed)) == 3, timeout_s=30)
        eventually(lambda: service.logged("an adopted journal is delivered"), timeout_s=30)
    reasons = {line["directory"]: line["reason"] for line in service.logged(failed)}
    assert reasons.keys() == set(adopt[:3])
    assert str(os.getpid()) in reasons[adopt[0]]
    [line] = service.logged("an adopted journal is delivered")
    assert line["stored"] == line["found"] > 0
    assert not lost_or_changed(told, database)
    label(service, [Robot("newcomer")], 1, 5)
    scrape = balanced(service)
    for metric in (names.ADOPTED_JOURNALS, names.ADOPTED_PENDING):
        assert scrape.sum(metric.name) == 0
        assert metric.name in scrape.names()
    assert service.stop() == 0


def test_a_drain_ends_what_a_service_has_adopted_and_the_next_start_goes_on(
    pod: Path, told: list[Robot], database: Path, start_service: StartService
) -> None:
    settings = {"sqlite__path": str(database), "writer__adopt": [str(pod)]}
    run_labeler("store", "ensure", sqlite__path=str(database), state_dir=str(pod.parent))
    with write_locked(database):
        service = start_service(drain__budget_ms=2000, writer__write_timeout_ms=200, **settings)
        eventually(lambda: service.metrics().sum(names.ADOPTED_PENDING.name) >= LABELS, 30)
        assert service.metrics().sum(names.ADOPTED_JOURNALS.name) == 1
        assert service.stop() == 0
        [line] = service.logged("an adopted journal is delivered in part; it keeps the rest")
        assert line["pending"] == line["found"] == pending(pod)
    again = start_service(**settings)
    eventually(lambda: again.logged("an adopted journal is delivered"), timeout_s=30)
    assert not lost_or_changed(told, database)
    assert pending(pod) == 0


def test_what_was_left_is_delivered_to_dynamodb_with_the_ids_of_who_left_it(
    pod: Path,
    told: list[Robot],
    labels_table: DynamoTable,
    database: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aws_variables(monkeypatch, labels_table.server)
    done = deliver(
        pod, database, "--json",
        writer__store="dynamodb",
        dynamodb__table=labels_table.name,
        dynamodb__region=labels_table.server.region,
        dynamodb__endpoint_url=labels_table.server.url,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    items = labels_table.items()
    assert len(items) == counts(done)["stored"] == counts(done)["found"]
    held = {(item["robot_id"]["S"], int(item["sequence"]["N"])): item for item in items}
    labels = {key: item["label"]["S"] for key, item in held.items()}
    assert acknowledged(told).items() <= labels.items()
    instance = (pod / "instance_id").read_text().strip()
    assert {item["instance_id"]["S"] for item in items} == {instance}
    assert pending(pod) == 0
