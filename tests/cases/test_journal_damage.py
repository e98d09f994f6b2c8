"""Flipped bytes in an undelivered journal, through the real service: each costs its group, loudly.

Cases W40, NATS #7549 (one flipped bit lost a range in silence), OpenTelemetry Collector #31200 and
#35899 (a corrupt file is a crash loop), Fluent Bit #11847 (alive but deaf). Each byte of a journal
is flipped at unit level: `rust_core/src/journal/tests/damage.rs`.
"""

import json
import shutil
from pathlib import Path

import pytest

from labeler.telemetry import names
from labeler.v1 import label_pb2
from tests.support.accounting import balanced
from tests.support.database import Key, stored, write_locked
from tests.support.journal_bytes import Group, flip, groups
from tests.support.service import StartService, run_labeler, serve
from tests.support.wire import WIDTH, floats, request, wire

LABELS = 40
QUARANTINED = "a damaged part of the journal was quarantined"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Key, str]]:
    """A state directory with labels acknowledged one by one, of which none was stored; they."""
    state_dir = tmp_path_factory.mktemp("killed") / "state"
    told: dict[Key, str] = {}
    service = serve(state_dir)
    try:
        service.wait_ready()
        with write_locked(service.database), wire(service.address) as labels:
            for sequence in range(1, LABELS + 1):
                told["robot", sequence] = labels.labels.Label(asked(sequence)).label
            service.kill()
    finally:
        service.close()
    return state_dir, told


@pytest.fixture
def told(killed: tuple[Path, dict[Key, str]], tmp_path: Path) -> dict[Key, str]:
    """The test's own copy of it, where `start_service` starts; what was acknowledged."""
    state_dir, told = killed
    shutil.copytree(state_dir, tmp_path / "state")
    return told


def asked(sequence: int) -> label_pb2.LabelRequest:
    """The robot's request of this sequence."""
    return request("robot", sequence, floats([sequence / 10] * WIDTH))


def by_number(state_dir: Path) -> dict[int, Key]:
    """The key of each record."""
    text = run_labeler("journal", "dump", str(state_dir), "--json").stdout
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["number"]: (row["robot_id"], row["sequence"]) for row in rows}


def damage(state_dir: Path) -> tuple[list[Group], set[Key]]:
    """Flips a byte in three groups that stand apart, and one in a segment's header."""
    keys = by_number(state_dir)
    found = [group for group in groups(state_dir / "journal") if group.numbers]
    header, first, last = found[5], found[15], found[25]
    flip(header.file, header.offset + 20)
    flip(first.file, first.offset + 64 + 30)
    flip(last.file, last.offset + last.length - 9)
    flip(first.file, 2048 + 33)
    hit = [header, first, last]
    return hit, {keys[number] for group in hit for number in group.numbers}


def test_flipped_bytes_cost_their_groups_only_and_each_is_said(
    told: dict[Key, str], start_service: StartService, tmp_path: Path
) -> None:
    hit, lost = damage(tmp_path / "state")
    verified = run_labeler("journal", "verify", str(tmp_path / "state"), "--json")
    assert verified.returncode == 74
    found = json.loads(verified.stdout)["damage"]
    numbers = [tuple(damage["numbers"]) for damage in found if damage["numbers"]]
    assert numbers == [(group.numbers[0], group.numbers[-1]) for group in hit]
    assert len(found) == len(hit) + 1

    service = start_service()
    lines = service.logged(QUARANTINED)
    assert len(lines) == len(hit) + 1
    said = "\n".join(str(line["damage"]) for line in lines)
    assert all(f"offset: {group.offset}" in said for group in hit)
    assert all(group.file.name in said for group in hit)
    kept = list((service.state_dir / "journal" / "quarantine").iterdir())
    assert len(kept) == len(hit) + 1
    scrape = balanced(service)
    assert scrape.sum(names.JOURNAL_QUARANTINED.name) == len(hit) + 1
    assert stored(service.database) == {key: told[key] for key in told if key not in lost}

    # Who asks again gets the label that the damage has cost.
    with wire(service.address) as labels:
        for _, sequence in sorted(lost):
            labels.labels.Label(asked(sequence))
    balanced(service)
    assert stored(service.database) == told
    assert service.stop() == 0


@pytest.mark.usefixtures("told")
def test_a_journal_without_one_readable_header_is_named_and_left_alone(
    start_service: StartService, tmp_path: Path
) -> None:
    journal = tmp_path / "state" / "journal"
    for file in journal.glob("segment-*.log"):
        for copy in (0, 2048):
            flip(file, copy + 16)
    before = {path.name: path.read_bytes() for path in journal.glob("segment-*")}
    service = start_service(ready=False)
    assert service.wait() == 74
    assert "move the files away" in "\n".join(service.stderr)
    assert {path.name: path.read_bytes() for path in journal.glob("segment-*")} == before


def test_a_segment_that_is_cut_short_does_not_stop_the_start(
    told: dict[Key, str], start_service: StartService, tmp_path: Path
) -> None:
    newest = groups(tmp_path / "state" / "journal")[-1].file
    newest.write_bytes(newest.read_bytes()[:5000])
    service = start_service()
    with wire(service.address) as labels:
        label = labels.labels.Label(request("later", 1, floats([1.0] * WIDTH))).label
    balanced(service)
    held = stored(service.database)
    assert held.pop(("later", 1)) == label
    assert held.items() <= told.items()
    assert service.stop() == 0
