"""`labeler dlq`: what was refused is found, written again without harm, kept, dropped by command.

SQLite refuses what a trigger refuses: a real service makes the dead letters. Cases W06, W12, W40.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import labeler
from labeler.cli.app import app_for, run
from labeler.stores.base import StoredRow
from labeler.stores.sqlite import SqliteStore
from labeler.writer.dead_letters import FILE_NAME, DeadLetter, DeadLetters
from tests.support.accounting import balanced
from tests.support.database import REFUSAL as REASON
from tests.support.database import refusing, stored, write_locked
from tests.support.service import StartService, environment, run_labeler
from tests.support.waiting import eventually

READINGS = [0.5] * 24
ROW = StoredRow("bad", 1, "stop", 0, 0.5, "m", "1", 1, 10, 5, "", "instance", "journal", 7)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def dlq(state_dir: Path, *words: str, text: str = "") -> Done:
    """Runs a command from its words to its exit code, in this process: fifty of them are run."""
    out, err = StringIO(), StringIO()
    argv = ["labeler", "dlq", *words, "--state-dir", str(state_dir)]
    with (
        patch.dict(os.environ, environment({}), clear=True),
        patch.object(sys, "argv", argv),
        patch.object(sys, "stdin", StringIO(text)),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ending,
    ):
        run(app_for(argv[1:]))
    return Done(int(ending.value.code or 0), out.getvalue(), err.getvalue())


def listed(state_dir: Path, *words: str) -> dict[str, Any]:
    done = dlq(state_dir, "list", "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """A state directory without a service: a store, and letters 1 to 3 of the robot `bad`."""
    with closing(SqliteStore(tmp_path / "labels.sqlite3")) as store:
        store.ensure()
    put(tmp_path, *(ROW._replace(sequence=n, journal_number=n) for n in (1, 2, 3)))
    return tmp_path


def put(state_dir: Path, *rows: StoredRow, reason: str = REASON) -> None:
    with closing(DeadLetters(state_dir)) as letters:
        letters.add([DeadLetter(row, reason, "sqlite", 1_700_000_000_000_000) for row in rows])


def write(state_dir: Path, *rows: StoredRow) -> None:
    with closing(SqliteStore(state_dir / "labels.sqlite3")) as store:
        store.ensure()
        store.write(rows)


def read(state_dir: Path, sequence: int) -> StoredRow | None:
    with closing(SqliteStore(state_dir / "labels.sqlite3")) as store:
        store.ensure()
        return store.get("bad", sequence)


def break_record(state_dir: Path, number: int, body: bytes) -> Path:
    """Bytes as the core keeps them."""
    folder = state_dir / "journal" / "quarantine"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"record-{number:020}"
    kept.write_bytes(body)
    return kept


def test_refused_labels_are_found_and_stored_by_command_beside_the_service(
    start_service: StartService,
) -> None:
    service = start_service()
    with labeler.Client(service.address) as client, refusing(service.database):
        for sequence in range(1, 31):
            client.label("good", sequence, READINGS)
        for sequence in (1, 2):
            client.label("bad", sequence, READINGS)
        eventually(lambda: listed(service.state_dir)["count"] == 2, 30)
        found = listed(service.state_dir)
        assert found["reasons"] == {REASON: 2}
        assert [item["row"]["sequence"] for item in found["dead_letters"]] == [1, 2]
        again = dlq(service.state_dir, "redrive", "--all")
        assert "0 stored, 0 superseded by later labels, 2 refused again, 0 left" in again.stdout
        assert [item["tries"] for item in listed(service.state_dir)["dead_letters"]] == [2, 2]
        assert len(stored(service.database)) == 30
    done = run_labeler("dlq", "redrive", "--all", state_dir=str(service.state_dir))
    assert "2 stored, 0 superseded by later labels, 0 refused again, 0 left" in done.stdout
    assert done.returncode == 0
    assert listed(service.state_dir)["count"] == 0
    assert len(stored(service.database)) == 32
    balanced(service)


def test_nothing_is_shown_nor_made_where_nothing_was_refused(tmp_path: Path) -> None:
    assert listed(tmp_path)["count"] == 0
    assert "no dead letters" in dlq(tmp_path, "list").stdout
    assert "0 stored" in dlq(tmp_path, "redrive", "--all").stdout
    assert "0 dropped" in dlq(tmp_path, "purge", "--all").stdout
    assert list(tmp_path.iterdir()) == []


def test_a_state_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = dlq(tmp_path / "misspelt", "list")
    assert done.returncode == 74
    assert "misspelt is no folder; say which with --state-dir" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_list_is_paged_filtered_and_summed_up(state_dir: Path) -> None:
    put(state_dir, ROW._replace(robot_id="other", journal_number=9), reason="Too Large")
    page = listed(state_dir, "--limit", "3")
    assert page["more"]
    after = page["dead_letters"][-1]["id"]
    assert [
        item["row"]["robot_id"] for item in listed(state_dir, "--after", after)["dead_letters"]
    ] == ["other"]
    assert len(listed(state_dir, "--robot", "other")["dead_letters"]) == 1
    assert len(listed(state_dir, "--reason", "too large")["dead_letters"]) == 1
    shown = dlq(state_dir, "list", "--limit", "3").stdout
    assert "there are more: --after 3" in shown
    assert f"4 dead letters: 3 × {REASON}, 1 × Too Large" in shown


def test_what_a_terminal_would_obey_is_written_out(state_dir: Path) -> None:
    put(state_dir, ROW._replace(robot_id="\x1b[2J\ud800", journal_number=9))
    for done in (dlq(state_dir, "list"), dlq(state_dir, "show", "4")):
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
        assert r"\x1b[2J\ud800" in done.stdout


def test_a_later_label_is_not_overwritten_by_a_redrive(state_dir: Path) -> None:
    later = ROW._replace(sequence=1, journal_number=50, label="later")
    write(state_dir, later)
    done = dlq(state_dir, "redrive", "--robot", "bad")
    assert "2 stored, 1 superseded by later labels, 0 refused again, 0 left" in done.stdout
    assert read(state_dir, 1) == later
    assert listed(state_dir)["count"] == 0


def test_of_two_letters_of_a_key_the_later_is_stored_whatever_their_order(state_dir: Path) -> None:
    put(state_dir, *(ROW._replace(sequence=9, journal_number=n, label=f"{n}") for n in (80, 70)))
    assert dlq(state_dir, "redrive", "--all").returncode == 0
    found = read(state_dir, 9)
    assert found is not None
    assert found.label == "80"


def test_only_what_was_chosen_is_written_again(state_dir: Path) -> None:
    assert "1 stored" in dlq(state_dir, "redrive", "2").stdout
    assert [item["id"] for item in listed(state_dir)["dead_letters"]] == ["1", "3"]
    assert read(state_dir, 2) is not None
    assert read(state_dir, 1) is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["redrive"], "say which: ids, --robot, --reason or --all"),
        (["purge", "--yes"], "say which: ids, --robot, --reason or --all"),
        (["redrive", "1", "--all"], "give one of both"),
        (["redrive", "1", "77"], "no dead letter 77 in"),
        (["show", "seven"], "'seven' is no dead letter's id"),
        (["purge", "--yes", "u5"], "no dead letter u5 in"),
    ],
)
def test_a_wrong_choice_is_one_line_and_changes_nothing(
    state_dir: Path, words: list[str], told: str
) -> None:
    done = dlq(state_dir, *words)
    assert done.returncode == 1
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert listed(state_dir)["count"] == 3


def test_an_unavailable_store_ends_the_redrive_and_says_how_many_are_left(state_dir: Path) -> None:
    with write_locked(state_dir / "labels.sqlite3"):
        done = dlq(state_dir, "redrive", "--all")
    assert done.returncode == 1
    assert "locked; 3 are left: try again later" in done.stderr
    assert listed(state_dir)["count"] == 3
    assert {item["tries"] for item in listed(state_dir)["dead_letters"]} == {1}


def test_an_export_is_exact_and_removes_nothing(state_dir: Path, tmp_path: Path) -> None:
    odd = ROW._replace(
        sequence=2**63 - 1, journal_number=2**63, confidence=float("nan"), robot_id="\ud800\x00"
    )
    put(state_dir, odd)
    break_record(state_dir, 12, b"\xff\x00bytes")
    file = tmp_path / "dead.jsonl"
    assert "5 exported" in dlq(state_dir, "export", str(file)).stdout
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["refused"] * 4 + ["undecodable"]
    row = lines[3]["row"]
    assert (row["sequence"], row["journal_number"]) == (2**63 - 1, 2**63)
    assert (row["confidence"], row["robot_id"]) == ("NaN", "\ud800\x00")
    assert bytes.fromhex(lines[4]["body_hex"]) == b"\xff\x00bytes"
    to_stdout = dlq(state_dir, "export", "-")
    assert to_stdout.stdout == file.read_text()
    assert "5 exported" in to_stdout.stderr
    assert listed(state_dir)["count"] == 5


def test_an_export_that_fails_leaves_what_was_there(state_dir: Path, tmp_path: Path) -> None:
    done = dlq(state_dir, "export", str(tmp_path / "no folder" / "dead.jsonl"))
    assert done.returncode == 74
    assert "cannot be written" in done.stderr


def test_a_purge_asks_first(state_dir: Path) -> None:
    for answer in ("", "n\n"):
        assert dlq(state_dir, "purge", "--all", text=answer).returncode == 1
        assert listed(state_dir)["count"] == 3
    assert "3 dropped" in dlq(state_dir, "purge", "--all", text="y\n").stdout
    assert listed(state_dir)["count"] == 0


def test_only_what_was_chosen_is_dropped(state_dir: Path) -> None:
    assert "1 dropped" in dlq(state_dir, "purge", "2", "--yes").stdout
    assert [item["id"] for item in listed(state_dir)["dead_letters"]] == ["1", "3"]


def test_bytes_that_are_no_label_are_listed_shown_and_dropped_but_not_redriven(
    state_dir: Path,
) -> None:
    kept = break_record(state_dir, 12, b"\xff\xfe")
    break_record(state_dir, 13, b"\x01")
    (kept.parent / "segment-00000000000000000001.log.10-20").write_bytes(b"damage, no letter")
    found = listed(state_dir, "--after", "3")
    assert [item["id"] for item in found["dead_letters"]] == ["u12", "u13"]
    assert found["count"] == 5
    assert [i["id"] for i in listed(state_dir, "--after", "u12")["dead_letters"]] == ["u13"]
    shown = json.loads(dlq(state_dir, "show", "u12", "--json").stdout)
    assert (shown["kind"], shown["journal_number"]) == ("undecodable", 12)
    assert shown["body_hex"] == "fffe"
    assert shown["reason"] == "its bytes are no label: the bytes end between two fields"
    only = listed(state_dir, "--reason", "the bytes end in field")
    assert [item["id"] for item in only["dead_letters"]] == []
    assert only["reasons"][shown["reason"]] == 1
    refused = dlq(state_dir, "redrive", "1", "u12")
    assert refused.returncode == 1
    assert "u12 cannot be redriven: its bytes are no label" in refused.stderr
    assert "3 stored" in dlq(state_dir, "redrive", "--all").stdout
    assert "1 dropped" in dlq(state_dir, "purge", "u12", "--yes").stdout
    assert not kept.exists()
    assert [item["id"] for item in listed(state_dir)["dead_letters"]] == ["u13"]


def test_a_damaged_file_is_told_with_its_name(state_dir: Path) -> None:
    (state_dir / FILE_NAME).write_bytes(b"no database" * 100)
    done = dlq(state_dir, "list")
    assert done.returncode == 74
    assert FILE_NAME in done.stderr
