"""A state directory that this user may not use: the start says what, whose, who and what to do.

And one that is taken away under a running service: nothing is lost. Case W62,
opentelemetry-collector-contrib #40381. Root without its capabilities is an ordinary user here; who
is not root skips loudly, or fails with `LABELER_REQUIRE_ROOT=1`.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import labeler
from labeler.writer.dead_letters import FILE_NAME, DeadLetter, DeadLetters
from tests.support.accounting import balanced
from tests.support.database import acknowledged, lost_or_changed, refusing, stored
from tests.support.faulty_disk import small_disk
from tests.support.journaled import stored_row
from tests.support.load import Fleet, readings, robots
from tests.support.service import LABELER, Service, StartService, environment
from tests.support.waiting import eventually

ORDINARY = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
OTHER = 65_534


@pytest.fixture(autouse=True)
def only_root() -> None:
    """Files of another user can only be made by root."""
    if os.geteuid() != 0:
        if os.environ.get("LABELER_REQUIRE_ROOT") == "1":
            pytest.fail("LABELER_REQUIRE_ROOT=1, but this is another user", pytrace=False)
        pytest.skip("files of another user can only be made by root")


@contextmanager
def taken(path: Path, mode: int) -> Iterator[None]:
    """Another user's meanwhile, with that mode; then ours again, as it was."""
    before = path.stat()
    path.chmod(mode)
    os.chown(path, OTHER, OTHER)
    try:
        yield
    finally:
        path.chmod(before.st_mode & 0o7777)
        os.chown(path, before.st_uid, before.st_gid)


def put_letter(state: Path) -> None:
    """A dead letter, number 1."""
    with closing(DeadLetters(state)) as letters:
        letters.add([DeadLetter(stored_row(1, 1, "bad"), "refused", "sqlite", 1)])


def letters_of(state: Path) -> Sequence[DeadLetter]:
    with closing(DeadLetters(state)) as letters:
        return letters.list()


def refused(service: Service, state_dir: Path, path: Path, *words: str) -> None:
    """Checks the exit and the one message."""
    assert service.wait() == 74, "\n".join(service.stderr)
    log = "\n".join(service.stderr)
    assert "Traceback" not in log
    for word in (f"state_dir = {state_dir}", f"user {os.geteuid()}", str(path), *words):
        assert word in log, f"{word!r} missing in:\n{log}"


def test_a_directory_of_another_user_is_named_with_its_owner_and_the_remedy(
    start_service: StartService, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    os.chown(state, OTHER, OTHER)
    service = start_service(state, ready=False, prefix=ORDINARY)
    refused(service, state, state, f"belongs to user {OTHER}", "mode 0755", "chown", "fsGroup")
    assert not list(state.iterdir()), "nothing was begun, and nowhere else either"


def test_a_missing_directory_is_made_where_that_is_allowed_and_else_refused(
    start_service: StartService, tmp_path: Path
) -> None:
    above = tmp_path / "volume"
    above.mkdir(mode=0o755)
    made = start_service(above / "a" / "state", prefix=ORDINARY)
    balanced(made)
    assert made.stop() == 0
    os.chown(above, OTHER, OTHER)
    service = start_service(above / "b" / "state", ready=False, prefix=ORDINARY)
    refused(service, above / "b" / "state", above, f"belongs to user {OTHER}", "chown")
    assert not (above / "b").exists()


def test_a_file_of_another_user_is_named(start_service: StartService, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = start_service(state)
    balanced(first)
    assert first.stop() == 0
    put_letter(state)
    (state / "journal/quarantine").mkdir()
    segment = next((state / "journal").glob("segment-*.log"))
    for name in ("instance_id", "journal/lock", "labels.sqlite3", FILE_NAME, segment):
        with taken(state / name, 0o600):
            service = start_service(state, ready=False, prefix=ORDINARY)
            refused(service, state, state / name, f"belongs to user {OTHER}", "mode 0600")
    with taken(state / "journal/quarantine", 0o755):  # of what can't be kept there nothing is left
        service = start_service(state, ready=False, prefix=ORDINARY)
        refused(service, state, state / "journal/quarantine", f"belongs to user {OTHER}")
    last = start_service(state, prefix=ORDINARY)
    balanced(last)


def test_dead_letters_that_are_taken_away_keep_refused_labels_in_the_journal(
    start_service: StartService, tmp_path: Path
) -> None:
    """Nobody reads or drops them as another user; the others of the store's labels go on."""
    state = tmp_path / "state"
    state.mkdir()
    put_letter(state)
    service, payload = start_service(state, prefix=ORDINARY), readings(random.Random(1))
    with labeler.Client(service.address) as client, refusing(service.database):
        with taken(state / FILE_NAME, 0o600):
            client.label("bad", 2, payload)
            eventually(lambda: service.status()["writer"]["problem_kind"] == "disk", timeout_s=30)
            assert str(state / FILE_NAME) in service.status()["writer"]["problem"]
            assert "permissions" in service.status()["writer"]["problem"]
            client.label("good", 1, payload)
            eventually(lambda: stored(service.database), timeout_s=30)
            assert service.metrics().records().parts["pending"] == 1
            for words in (["list"], ["redrive", "--all"], ["purge", "--all", "--yes"]):
                done = subprocess.run(
                    [*ORDINARY, LABELER, "dlq", *words, "--state-dir", str(state)],
                    env=environment({}),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 74, done.stderr
                assert f"{state / FILE_NAME} cannot be used" in done.stderr
        eventually(lambda: service.metrics().records().parts["dead"] == 1, timeout_s=30)
        assert [letter.row.sequence for letter in letters_of(state)] == [1, 2]
    balanced(service)


def test_a_command_of_root_leaves_the_dead_letters_to_their_owner(tmp_path: Path) -> None:
    """The log that SQLite makes beside the file is the owner's too: the service opens it next."""
    put_letter(tmp_path)
    os.chown(tmp_path / FILE_NAME, OTHER, OTHER)
    with closing(DeadLetters(tmp_path)) as letters:
        assert letters.remove([1]) == 1
        files = list(tmp_path.iterdir())
        assert len(files) == 3, files
        assert {path.stat().st_uid for path in files} == {OTHER}


def test_a_journal_that_is_taken_away_ends_the_service_and_loses_nothing(
    start_service: StartService, seed: int
) -> None:
    """No next segment can be made: exit code 74 with its path, and all is there after the mend."""
    settings = {"prefix": ORDINARY, "journal__segment_bytes": "1MiB", "writer__linger_ms": 10_000}
    service, fleet = start_service(**settings), robots(8)
    state = service.state_dir
    with taken(state / "journal", 0o755):
        with Fleet(service.address, fleet, seed):
            assert service.wait(120) == 74
        log = "\n".join(service.stderr)
        assert str(state / "journal/segment-") in log
        assert "Permission denied" in log
        refused(start_service(state, ready=False, **settings), state, state / "journal", "chown")
    assert acknowledged(fleet)
    last = start_service(state, prefix=ORDINARY)
    balanced(last)
    assert not lost_or_changed(fleet, last.database)


def test_a_read_only_volume_is_said_to_be_one(start_service: StartService, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        (disk / "state").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        service = start_service(disk / "state", ready=False)
        refused(service, disk / "state", disk, "read-only", "mount it for writing")


def test_what_is_not_ours_in_a_volume_is_in_nobodys_way(
    start_service: StartService, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    found = state / "lost+found"
    found.mkdir(parents=True, mode=0o700)
    os.chown(found, OTHER, OTHER)
    service = start_service(state, prefix=ORDINARY)
    balanced(service)
    assert service.stop() == 0
