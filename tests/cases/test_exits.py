"""S52, trap 12: a program with the label path inside leaves in every way, under traffic.

It ends with the code that its way has, never by a crash, and the journal holds what was
acknowledged, from memory alone too. Full counts: about 240 s.
"""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from labeler._core import journal_dump, journal_verify
from tests.support.counts import counts
from tests.support.database import acknowledged
from tests.support.embedding import CODES
from tests.support.load import Fleet, Robot, robots
from tests.support.repo import ROOT
from tests.support.service import environment
from tests.support.waiting import eventually

PROGRAM = ROOT / "tests" / "support" / "embedding.py"
WAYS = list(CODES)
SILENT = {"return", "sys.exit", "daemon threads", "last reference"}
AT_ONCE = 4


@contextmanager
def embedding(state_dir: Path, way: str) -> Iterator[subprocess.Popen[str]]:
    """The program, which is gone at the end."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(state_dir), way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment({}),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def leave(state_dir: Path, way: str, seed: int) -> tuple[list[Robot], str]:
    """Starts it, lets robots label, leaves in the middle; the robots, and what it said."""
    fleet = robots(4)
    with embedding(state_dir, way) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        with Fleet(address, fleet, seed, durability="BUFFERED") as sending:
            goal = random.Random(seed).randrange(1, 60)
            eventually(lambda: sending.acknowledged() >= goal, timeout_s=30)
            if way == "sigterm":
                process.terminate()
            elif way == "sigint":
                process.send_signal(signal.SIGINT)
            else:
                assert process.stdin
                process.stdin.write("leave\n")
                process.stdin.flush()
            code = process.wait(60)
        assert process.stderr
        said = process.stderr.read()
    assert code == CODES[way], said
    return fleet, said


def journaled(state_dir: Path) -> dict[tuple[str, int], str]:
    """The labels in the journal, each by its key; nothing in it is damaged."""
    journal = str(state_dir / "journal")
    verified = journal_verify(journal)
    assert not verified["damage"], verified
    records = journal_dump(journal, 0, 1_000_000)
    return {(record["robot_id"], record["sequence"]): record["label"] for record in records}


def leaves_well(folder: Path, number: int, seed: int) -> None:
    """One exit. Errors: `AssertionError` with its way, and what was lost or said."""
    way = WAYS[number % len(WAYS)]
    state_dir = folder / f"exit-{number}"
    fleet, said = leave(state_dir, way, seed + number)
    missing = acknowledged(fleet).items() - journaled(state_dir).items()
    assert not missing, (way, missing)
    if way in SILENT:
        assert not said, (way, said)
    assert "panic" not in said, (way, said)
    assert "Fatal Python error" not in said, (way, said)


@counts("exits", quick=len(WAYS), full=200, full_timeout_s=1500)
def test_a_program_leaves_with_its_code_and_what_it_acknowledged_is_in_the_journal(
    tmp_path: Path, seed: int, exits: int
) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        exits_done = [pool.submit(leaves_well, tmp_path, n, seed) for n in range(exits)]
        for done in exits_done:
            done.result()
