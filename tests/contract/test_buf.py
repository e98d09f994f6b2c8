"""The protos: linted, and never broken for a client of the committed image."""

import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.repo import ROOT
from tests.support.tools import load_tool


@pytest.fixture(scope="module")
def proto() -> ModuleType:
    """tools/proto.py, which `make proto` runs."""
    return load_tool("proto")


def test_the_protos_keep_the_lint_rules(proto: ModuleType) -> None:
    command = [proto.BUF, "lint"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_protos_break_no_client_of_the_committed_image(proto: ModuleType) -> None:
    assert proto.breaking() == ""


def test_a_field_that_changes_its_type_is_a_break(proto: ModuleType, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    label = tmp_path / "protos" / "labeler" / "v1" / "label.proto"
    label.write_text(label.read_text().replace("string robot_id = 1;", "bytes robot_id = 1;"))
    command = [proto.BUF, "breaking", "--against", proto.IMAGE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "robot_id" in done.stdout


def test_the_committed_image_is_that_of_the_protos(proto: ModuleType, tmp_path: Path) -> None:
    proto.build_image(tmp_path / "image.binpb")
    same = (tmp_path / "image.binpb").read_bytes() == proto.IMAGE.read_bytes()
    assert same, "the protos changed: run `make proto` and commit what it makes"
