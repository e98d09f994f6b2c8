"""A state directory that this user may not use: the start says what, whose, who and what to do.

Case W62, opentelemetry-collector-contrib #40381. Root without its capabilities is an ordinary user
here; who is not root skips loudly, or fails with `LABELER_REQUIRE_ROOT=1`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.accounting import balanced
from tests.support.faulty_disk import small_disk
from tests.support.service import Service, StartService

ORDINARY = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
OTHER = 65_534


@pytest.fixture(autouse=True)
def only_root() -> None:
    """Files of another user can only be made by root."""
    if os.geteuid() != 0:
        if os.environ.get("LABELER_REQUIRE_ROOT") == "1":
            pytest.fail("LABELER_REQUIRE_ROOT=1, but this is another user", pytrace=False)
        pytest.skip("files of another user can only be made by root")


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
    for name in ("instance_id", "journal/lock", "labels.sqlite3"):
        (state / name).chmod(0o600)
        os.chown(state / name, OTHER, OTHER)
        service = start_service(state, ready=False, prefix=ORDINARY)
        refused(service, state, state / name, f"belongs to user {OTHER}", "mode 0600")
        os.chown(state / name, 0, 0)
    last = start_service(state, prefix=ORDINARY)
    balanced(last)


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
