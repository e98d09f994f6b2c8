"""The store of docs/stores.md is one: its text is installed as a package, served and read back."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import labeler
from labeler.stores.base import Query, Status, StoreContext, StoredRow, StoreUnavailableError
from tests.support.accounting import balanced
from tests.support.repo import read
from tests.support.service import StartService
from tests.support.waiting import eventually

TEXT = read("docs/stores.md")
READINGS = [0.5] * 24
ROW = StoredRow("r", 1, "l", 0, float("nan"), "m", "1", 1, 10, 5, "", "instance", "journal", 5)


def block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"docs/stores.md has {len(found)} blocks of {language}"
    return str(found[0])


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the example installed, as a package manager would."""
    entry = re.fullmatch(
        r'\[project\.entry-points\."labeler\.stores"\]\n(\w+) = "(\w+):(\w+)"\n', block("toml")
    )
    assert entry is not None
    folder = tmp_path / "site"
    about = folder / "example-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / f"{entry[2]}.py").write_text(block("python"))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[labeler.stores]\n{entry[1]} = {entry[2]}:{entry[3]}\n"
    )
    return folder


@pytest.fixture
def store(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's store, opened in this process."""
    monkeypatch.syspath_prepend(str(site))
    made = import_module("labeler_jsonlines").open_store(StoreContext(tmp_path, {}))
    made.ensure()
    yield made
    made.close()
    sys.modules.pop("labeler_jsonlines")


def test_the_example_has_at_most_forty_lines() -> None:
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 40


def test_a_service_labels_through_the_example_and_reads_back_after_a_kill(
    site: Path, start_service: StartService, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    prefix = ("env", f"PYTHONPATH={os.pathsep.join([str(site), *sys.path])}")
    chosen = ("writer.store=jsonlines", f"writer.store_settings=path={path}")
    args = ("--set", chosen[0], "--set", chosen[1])
    service = start_service(prefix=prefix, args=args)
    with labeler.Client(service.address) as client:
        told = {n: client.label("robot", n, READINGS).label for n in range(1, 51)}
        eventually(lambda: path.read_bytes().count(b"\n") == 50)
    balanced(service)
    service.kill()
    service.wait()
    after = start_service(prefix=prefix, args=args)
    with labeler.Client(after.address) as client:
        held = {row.sequence: row for row in client.list("robot", page_size=7)}
        assert {n: row.label for n, row in held.items()} == told
        # What was confirmed last may be delivered again: the example takes it for what it is.
        eventually(lambda: client.get("robot", 17).durability == "STORED")
        assert client.get("robot", 17).label == told[17]
    balanced(after)


def test_what_is_written_again_or_too_late_changes_nothing(store: Any) -> None:
    later = ROW._replace(journal_number=9, label="later")
    assert [outcome.status for outcome in store.write([ROW])] == [Status.STORED]
    assert [outcome.status for outcome in store.write([later])] == [Status.STORED]
    assert [outcome.status for outcome in store.write([later])] == [Status.STORED]
    assert [outcome.status for outcome in store.write([ROW])] == [Status.SUPERSEDED]
    assert repr(store.get("r", 1)) == repr(later)


def test_a_line_that_a_crash_cut_off_is_gone_and_the_others_stay(store: Any) -> None:
    store.write([ROW._replace(sequence=n) for n in (1, 2)])
    whole = Path(store.path).read_bytes()
    Path(store.path).write_bytes(whole + b'["r", 3, "l')
    again = type(store)(store.path)
    again.ensure()
    again.write([ROW._replace(sequence=4)])
    assert Path(store.path).read_bytes().startswith(whole + b'["r", 4, ')
    assert [again.get("r", n) is not None for n in (1, 2, 3, 4)] == [True, True, False, True]
    again.close()


def test_a_disk_error_is_no_refusal_and_leaves_no_rest(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write([ROW])
    whole = Path(store.path).read_bytes()

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(StoreUnavailableError, match="Input/output error"):
            store.write([ROW._replace(sequence=2)])
    assert store.get("r", 2) is None
    store.write([ROW._replace(sequence=3)])
    assert Path(store.path).read_bytes().startswith(whole + b'["r", 3, ')


def test_pages_hold_each_row_once_in_the_time_asked_for(store: Any) -> None:
    rows = [ROW._replace(sequence=n, labeled_at_unix_us=10 * n) for n in range(1, 11)]
    store.write([*rows, ROW._replace(robot_id="other")])
    seen: list[int] = []
    token = ""
    while True:
        query = Query("r", 3, token, from_unix_us=20, to_unix_us=100)
        page = store.list(query)
        seen += [row.sequence for row in page.rows]
        token = page.next_page_token
        if not token:
            break
    assert seen == list(range(9, 1, -1))
