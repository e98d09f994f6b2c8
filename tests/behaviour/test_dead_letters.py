"""What a store refuses is kept with its reason, once, exactly, until somebody takes it out.

Cases W12, W36, W40, W46, W62.
"""

from __future__ import annotations

import math
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labeler.errors import DiskError
from labeler.stores.base import StoredRow, StoreVersionError
from labeler.writer.dead_letters import FILE_NAME, REASON_CHARS_MAX, DeadLetter, DeadLetters
from tests.support.counts import counts
from tests.support.faulty_disk import fill, small_disk

TEXT = st.text(st.characters(), max_size=40)
NUMBER = st.integers(0, 2**64 - 1)
STAMP = st.integers(-(2**63), 2**63 - 1)
ROWS = st.builds(
    StoredRow,
    robot_id=TEXT,
    sequence=NUMBER,
    label=TEXT,
    index=st.integers(-1, 2**31 - 1),
    confidence=st.floats(width=32),
    model=TEXT,
    version=TEXT,
    source=st.integers(0, 5),
    labeled_at_unix_us=STAMP,
    captured_at_unix_us=STAMP,
    sku=TEXT,
    instance_id=TEXT,
    journal_id=st.sampled_from(["a", "b", "\ud800"]),
    journal_number=st.one_of(st.integers(1, 4), NUMBER),
)


def letter(number: int, reason: str = "too large", **changes: object) -> DeadLetter:
    """A dead letter that differs from others only where a test says so."""
    row = StoredRow(
        robot_id=f"robot-{number % 3}",
        sequence=number,
        label="Move-Forward",
        index=0,
        confidence=0.75,
        model="wall-following",
        version="1",
        source=1,
        labeled_at_unix_us=1_000_000 * number,
        captured_at_unix_us=5,
        sku="SKU-1",
        instance_id="instance",
        journal_id="journal",
        journal_number=number,
    )
    return DeadLetter(row._replace(**changes), reason, "sqlite", 77)  # type: ignore[arg-type]


def same(one: StoredRow, other: StoredRow) -> bool:
    """Equal in every bit that has a meaning: -0.0 is not 0.0, and NaN is NaN."""
    return repr(one) == repr(other)


Open = Callable[[Path], DeadLetters]


@pytest.fixture
def open_at() -> Iterator[Open]:
    """Opens the letters of a directory; whatever was opened is closed at the end."""
    with ExitStack() as stack:
        yield lambda state_dir: stack.enter_context(closing(DeadLetters(state_dir)))


def test_a_directory_without_dead_letters_stays_as_it_is(open_at: Open, tmp_path: Path) -> None:
    letters = open_at(tmp_path)
    assert letters.count() == 0
    assert letters.list() == []
    assert letters.get(1) is None
    assert letters.counts_by_reason() == {}
    assert letters.remove([1]) == 0
    letters.add([])
    letters.close()
    assert list(tmp_path.iterdir()) == []


def test_a_letter_comes_back_with_its_reason_after_a_restart(open_at: Open, tmp_path: Path) -> None:
    first = open_at(tmp_path)
    first.add([letter(1), letter(2, "wrong type")])
    first.close()
    found = open_at(tmp_path).list()
    assert [(item.row, item.reason, item.store, item.at_unix_us) for item in found] == [
        (letter(1).row, "too large", "sqlite", 77),
        (letter(2).row, "wrong type", "sqlite", 77),
    ]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(ROWS, max_size=12), data=st.data())
def test_any_row_is_kept_once_exactly_until_it_is_removed(
    open_at: Open,
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[StoredRow],
    data: st.DataObject,
) -> None:
    letters = open_at(tmp_path_factory.mktemp("letters"))
    expected: dict[tuple[str, int], StoredRow] = {}
    for row in rows:
        letters.add([DeadLetter(row, "why \udfff", "store", 1)])
        expected.setdefault((row.journal_id, row.journal_number), row)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(letters.list()))
            assert letters.remove([gone.id, gone.id, 2**70, -1]) == 1
            del expected[gone.row.journal_id, gone.row.journal_number]
        found = letters.list(100)
        assert list(map(repr, (item.row for item in found))) == list(map(repr, expected.values()))
        assert letters.count() == len(expected)
        assert all(letters.get(item.id) is not None for item in found)
        for robot_id in {row.robot_id for row in rows}:
            of_robot = [item.row for item in letters.list(100, robot_id=robot_id)]
            assert all(row.robot_id == robot_id for row in of_robot)
            assert len(of_robot) == sum(r.robot_id == robot_id for r in expected.values())
    letters.close()


def test_a_confidence_of_every_kind_is_kept(open_at: Open, tmp_path: Path) -> None:
    kinds = [math.nan, math.inf, -math.inf, -0.0, 1.401298464324817e-45, 0.10000000149011612]
    letters = open_at(tmp_path)
    letters.add([letter(number, confidence=kind) for number, kind in enumerate(kinds, 1)])
    assert [repr(item.row.confidence) for item in letters.list()] == list(map(repr, kinds))


def test_the_same_record_added_again_is_one_letter(open_at: Open, tmp_path: Path) -> None:
    letters = open_at(tmp_path)
    letters.add([letter(1), letter(1)])
    [kept] = letters.list()
    open_at(tmp_path).add([letter(1, "another reason"), letter(2)])
    assert letters.list(1) == [kept]
    assert letters.count() == 2
    rows = [letter(number).row for number in (1, 2)]
    assert letters.records() == {(row.journal_id, row.journal_number) for row in rows}


def test_pages_of_letters_follow_each_other(open_at: Open, tmp_path: Path) -> None:
    letters = open_at(tmp_path)
    letters.add([letter(number) for number in range(1, 11)])
    seen: list[int] = []
    while page := letters.list(3, after_id=seen[-1] if seen else 0):
        seen += [item.id for item in page]
    assert seen == list(range(1, 11))
    assert letters.list(after_id=2**80) == []


def test_an_id_is_never_given_twice(open_at: Open, tmp_path: Path) -> None:
    letters = open_at(tmp_path)
    letters.add([letter(1), letter(2)])
    [_, last] = letters.list()
    letters.remove([1, 2])
    letters.close()
    again = open_at(tmp_path)
    again.add([letter(3)])
    assert again.list()[0].id > last.id


def test_a_letter_refused_again_has_the_new_reason_and_one_more_try(
    open_at: Open, tmp_path: Path
) -> None:
    letters = open_at(tmp_path)
    letters.add([letter(1), letter(2)])
    first, second = letters.list()
    letters.refused([DeadLetter(first.row, "still too large", "dynamodb", 0, first.id)])
    changed = letters.get(first.id)
    assert changed is not None
    assert (changed.reason, changed.store, changed.tries) == ("still too large", "dynamodb", 2)
    assert changed.at_unix_us == first.at_unix_us
    assert letters.get(second.id) == second


def test_counts_are_told_by_reason_the_most_frequent_first(open_at: Open, tmp_path: Path) -> None:
    letters = open_at(tmp_path)
    letters.add([letter(n, "few" if n < 3 else "many") for n in range(1, 8)])
    assert list(letters.counts_by_reason().items()) == [("many", 5), ("few", 2)]


def test_a_reason_of_any_length_is_kept_up_to_its_bound(open_at: Open, tmp_path: Path) -> None:
    letters = open_at(tmp_path)
    letters.add([letter(1, "x" * 1_000_000)])
    [kept] = letters.list()
    assert len(kept.reason) == REASON_CHARS_MAX
    assert kept.reason.endswith("…")


def test_another_process_reads_and_removes_while_the_file_is_open(
    open_at: Open, tmp_path: Path
) -> None:
    service, command = open_at(tmp_path), open_at(tmp_path)
    service.add([letter(1), letter(2)])
    assert command.remove([1]) == 1
    service.add([letter(3)])
    assert [item.row.sequence for item in command.list()] == [2, 3]
    assert service.count() == 2


def test_what_is_added_after_the_file_was_moved_away_is_in_a_new_one(
    open_at: Open, tmp_path: Path
) -> None:
    letters = open_at(tmp_path)
    letters.add([letter(1)])
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in tmp_path.glob(f"{FILE_NAME}*"):
        path.rename(moved / path.name)
    letters.add([letter(2)])
    letters.close()
    assert [item.row.sequence for item in open_at(tmp_path).list()] == [2]
    assert [item.row.sequence for item in open_at(moved).list()] == [1]


def test_a_locked_file_is_told_and_nothing_of_the_call_counts(
    open_at: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labeler.writer.dead_letters._BUSY_MS", 10)
    letters = open_at(tmp_path)
    letters.add([letter(1)])
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DiskError, match=r"dead_letters\.sqlite3.*locked"):
            letters.add([letter(2)])
        assert letters.count() == 1
        other.execute("ROLLBACK")
    letters.add([letter(2)])
    assert letters.count() == 2


def test_a_file_of_a_newer_program_is_refused_untouched(open_at: Open, tmp_path: Path) -> None:
    letters = open_at(tmp_path)
    letters.add([letter(1)])
    letters.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        database.execute("PRAGMA user_version = 9")
    before = (tmp_path / FILE_NAME).read_bytes()
    for call in (letters.count, lambda: letters.add([letter(2)]), lambda: letters.remove([1])):
        with pytest.raises(StoreVersionError, match="schema version 9"):
            call()
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_file_that_is_no_database_is_told_and_left_alone(open_at: Open, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database, but somebody's bytes" * 40)
    before = (tmp_path / FILE_NAME).read_bytes()
    letters = open_at(tmp_path)
    with pytest.raises(DiskError, match="never delete it"):
        letters.add([letter(1)])
    with pytest.raises(DiskError, match="not a database"):
        letters.count()
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_an_empty_file_left_by_a_crash_becomes_one(open_at: Open, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    letters = open_at(tmp_path)
    assert letters.list() == []
    assert (tmp_path / FILE_NAME).stat().st_size == 0
    letters.add([letter(1)])
    assert letters.count() == 1


def test_a_full_disk_is_told_and_letters_are_kept_again_when_there_is_room(
    open_at: Open, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        letters = open_at(disk)
        letters.add([letter(1)])
        ballast = fill(disk)
        large = [letter(number, label="x" * 10_000) for number in range(2, 40)]
        with pytest.raises(DiskError, match="full"):
            letters.add(large)
        assert [item.row for item in letters.list()] == [letter(1).row]
        ballast.unlink()
        letters.add(large)
        assert letters.count() == 39
        letters.close()


def test_a_full_disk_at_the_first_letter_is_told_too(open_at: Open, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        ballast = fill(disk)
        letters = open_at(disk)
        with pytest.raises(DiskError):
            letters.add([letter(1)])
        assert letters.list() == []
        ballast.unlink()
        letters.add([letter(1)])
        assert letters.count() == 1
        letters.close()


_ADDS_UNTIL_KILLED = """
import sys
from pathlib import Path
from labeler.stores.base import StoredRow
from labeler.writer.dead_letters import DeadLetter, DeadLetters
def letter(number):
    row = StoredRow("r", number, "l", 0, 0.5, "m", "1", 1, 5, 5, "", "i", "j", number)
    return DeadLetter(row, "too large", "sqlite", 77)
letters = DeadLetters(Path(sys.argv[1]))
for number in range(int(sys.argv[2]), 100_000, 2):
    letters.add([letter(number), letter(number + 1)])
    print(number, flush=True)
"""


@counts("kills", quick=3, full=60, full_timeout_s=600)
def test_letters_are_there_once_after_a_kill_before_they_were_confirmed(
    kills: int, open_at: Open, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    begin = 1
    for _ in range(kills):
        command = [sys.executable, "-c", _ADDS_UNTIL_KILLED, str(tmp_path), str(begin)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            told = [int(process.stdout.readline()) for _ in range(rng.randint(1, 30))]
            process.kill()
            told += [int(line) for line in process.stdout.read().splitlines()]
        # What was added last was not confirmed: the next life is given it again.
        begin = told[-1]
        kept = [item.row.sequence for item in open_at(tmp_path).list(100_000)]
        assert kept[: begin + 1] == list(range(1, begin + 2))
        assert len(kept) in (begin + 1, begin + 3)
