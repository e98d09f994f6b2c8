"""The set-up contract: `make` lists its targets; a machine that lacks something is told what."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repo import ROOT, read

TOOLCHAIN = ROOT / "tools" / "toolchain.sh"
PLAIN = ("sh", "sed", "sort", "head", "dirname", "cat")
RUSTC = "#!/bin/sh\necho 'rustc {} (hash date)'\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with Python, Rust and a linker that a test takes away or replaces."""
    for name in PLAIN:
        found = shutil.which(name)
        assert found
        (tmp_path / name).symlink_to(found)
    put(tmp_path, "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    put(tmp_path, "cargo", "#!/bin/sh\n")
    put(tmp_path, "rustc", RUSTC.format("1.92.0"))
    put(tmp_path, "cc", "#!/bin/sh\n")
    return tmp_path


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def toolchain(path: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(path)}
    return subprocess.run([TOOLCHAIN], env=env, capture_output=True, text=True, check=False)


def test_a_machine_with_everything_is_told_nothing(machine: Path) -> None:
    done = toolchain(machine)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(machine / "python3")


@pytest.mark.parametrize(
    ("missing", "word"),
    [
        ("python3", "Python 3.11 or newer is needed; none is on PATH"),
        ("cargo", "Rust 1.92 or newer is needed; cargo or rustc is not on PATH"),
        ("cc", "a C linker is needed; none of cc, gcc and clang is on PATH"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(machine: Path, missing: str, word: str) -> None:
    (machine / missing).unlink()
    done = toolchain(machine)
    assert done.returncode == 1
    assert word in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_rust_that_is_too_old_is_named_with_its_version(machine: Path) -> None:
    put(machine, "rustc", RUSTC.format("1.91.1"))
    assert "rustc is 1.91.1, too old. Update it: rustup update stable" in toolchain(machine).stderr


def test_a_newer_rust_is_taken(machine: Path) -> None:
    put(machine, "rustc", RUSTC.format("1.100.0"))
    assert toolchain(machine).returncode == 0


def test_a_python_that_is_too_old_is_named_with_its_version(machine: Path) -> None:
    version = "import sys; sys.version_info = (3, 10, 9); exec(sys.stdin.read())"
    put(machine, "python3", f'#!/bin/sh\nexec {sys.executable} -c "{version}"\n')
    assert "python3 is 3.10.9, too old" in toolchain(machine).stderr


def test_everything_that_is_missing_is_named_at_once(machine: Path) -> None:
    for name in ("python3", "rustc", "cc"):
        (machine / name).unlink()
    assert len(toolchain(machine).stderr.splitlines()) == 3


def test_make_alone_lists_every_target_that_it_has() -> None:
    env = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(["make"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    for target in ("build", "run", "test", "test-slow", "check", "fmt", "bench", "proto", "clean"):
        assert f"\n  make {target} " in f"\n{done.stdout}"


def test_ci_calls_the_targets_that_people_call() -> None:
    assert "\nmake test\n" in read(".ci/run")
