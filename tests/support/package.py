"""Builds the package as a release does, and installs it in empty environments."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from tests.support.repo import ROOT
from tests.support.service import environment

UV = str(Path(sys.executable).with_name("uv"))


def build_sdist(out: Path) -> Path:
    """The sdist of this tree."""
    return _build(out, "--sdist", str(ROOT))


def build_wheel(sdist: Path, out: Path) -> Path:
    """A wheel from the sdist alone, in a build environment of its own.

    Crates from the registry are taken from the project's own target folder, which saves minutes;
    our own stand at another path there, and so are built anew.
    """
    return _build(out, "--wheel", str(sdist))


def install(folder: Path, *requirements: str) -> Path:
    """An empty environment with just this in it, in the locked versions. Its Python."""
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    pins = folder / "pins.txt"
    export = ["export", "--locked", "--all-extras", "--no-emit-project", "--no-hashes", "-q"]
    _run([UV, *export, "--project", str(ROOT), "-o", str(pins)])
    _run([UV, "pip", "install", "-q", "--python", str(python), "-c", str(pins), *requirements])
    return python


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs that Python outside of the project, so that only what is installed is found."""
    command = [str(python), *arguments]
    return subprocess.run(
        command, cwd=python.parent, env=environment({}), capture_output=True, text=True, check=False
    )


def _build(out: Path, *arguments: str) -> Path:
    _run([UV, "build", "-q", *arguments, "-o", str(out)])
    [made] = [path for path in out.iterdir() if path.suffix in (".gz", ".whl")]
    return made


def _run(command: list[str]) -> None:
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    env = os.environ | {"CARGO_TARGET_DIR": target}
    env.pop("VIRTUAL_ENV", None)
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
