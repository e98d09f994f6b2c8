"""The typed border, the stubs of `_core`, is what the built extension has: no more, no less."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.repo import ROOT


def test_the_stub_matches_the_built_extension_with_an_empty_allowlist() -> None:
    stubtest = str(Path(sys.executable).with_name("stubtest"))
    # Beside the installed package, so that the stub in the source tree is the one that is read.
    env = os.environ | {"MYPYPATH": str(ROOT / "python")}
    command = [stubtest, "labeler._core", "--mypy-config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
