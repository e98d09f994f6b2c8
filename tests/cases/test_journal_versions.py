"""Journals of other versions: every older one is delivered, a newer one is refused untouched.

Case W44: a format change must never leave a journal behind, nor ask for one to be deleted.
"""

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounting import balanced
from tests.support.database import stored
from tests.support.journal_bytes import crc32c
from tests.support.repo import ROOT
from tests.support.service import StartService, run_labeler
from tests.support.wire import WIDTH, floats, request, wire

FIXTURES = ROOT / "tests" / "fixtures" / "journal"
VERSIONS = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())


def fixture(version: str, state_dir: Path) -> dict[str, Any]:
    """Puts a copy of a fixture into a state directory; what it holds."""
    shutil.copytree(FIXTURES / version / "journal", state_dir / "journal")
    found: dict[str, Any] = json.loads((FIXTURES / version / "holds.json").read_text())
    return found


def digests(folder: Path) -> dict[str, str]:
    """Each file's content, by name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_journal_of_each_version_is_looked_at_and_not_touched(
    version: str, tmp_path: Path
) -> None:
    holds = fixture(version, tmp_path)
    before = digests(tmp_path)
    verified = run_labeler("journal", "verify", str(tmp_path), "--json")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["whole"] is True
    stat = json.loads(run_labeler("journal", "stat", str(tmp_path), "--json").stdout)
    assert stat["pending"] == len(holds["pending"])
    assert stat["next_number"] == holds["next_number"]
    dump = run_labeler("journal", "dump", str(tmp_path), "--json").stdout
    rows = {row["number"]: row for row in map(json.loads, dump.splitlines()) if row["pending"]}
    for told in holds["pending"]:
        assert rows[told["number"]] | told == rows[told["number"]]
    assert rows.keys() == {told["number"] for told in holds["pending"]}
    assert digests(tmp_path) == before


@pytest.mark.parametrize("version", VERSIONS)
def test_a_journal_of_each_version_is_delivered_and_gone_on_with(
    version: str, start_service: StartService, tmp_path: Path
) -> None:
    holds = fixture(version, tmp_path / "state")
    service = start_service()
    with wire(service.address) as labels:
        reply = labels.labels.Label(request("newcomer", 1, floats([1.0] * WIDTH)))
    balanced(service)
    expected = {(row["robot_id"], row["sequence"]): row["label"] for row in holds["pending"]}
    assert stored(service.database) == expected | {("newcomer", 1): reply.label}
    with closing(sqlite3.connect(service.database)) as database:
        [numbered] = database.execute(
            "SELECT journal_id, journal_number FROM labels WHERE robot_id = 'newcomer'"
        ).fetchall()
    assert numbered == (holds["journal_id"], holds["next_number"])
    assert service.stop() == 0


def test_a_newer_segment_ends_the_start_with_exit_code_65_and_nothing_is_touched(
    start_service: StartService, tmp_path: Path
) -> None:
    fixture(VERSIONS[-1], tmp_path / "state")
    newest = max((tmp_path / "state" / "journal").glob("segment-*.log"))
    content = bytearray(newest.read_bytes())
    known = content[8]
    for copy in (0, 2048):
        content[copy + 8] = known + 1
        content[copy + 60 : copy + 64] = crc32c(content[copy : copy + 60]).to_bytes(4, "little")
    # A torn tail and an unfinished segment would be cut and removed by a start that goes on.
    content[-8] = 1
    newest.write_bytes(content)
    newest.with_suffix(".log.new").write_bytes(b"begun")
    before = digests(tmp_path / "state" / "journal")
    service = start_service(ready=False)
    assert service.wait() == 65
    said = "\n".join(service.stderr)
    assert newest.name in said
    assert f"version {known + 1}" in said
    assert f"reads up to {known}" in said
    after = digests(tmp_path / "state" / "journal")
    assert {name: after.get(name) for name in before} == before
    assert after.keys() - before.keys() <= {"lock"}
    looked = run_labeler("journal", "verify", str(tmp_path / "state"))
    assert looked.returncode == 65
