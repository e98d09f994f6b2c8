"""The committed `labeler.v1` package is what the protos generate, byte for byte."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "python" / "labeler" / "v1"


def test_regenerating_changes_nothing(tmp_path: Path) -> None:
    protos = sorted((ROOT / "protos" / "labeler" / "v1").glob("*.proto"))
    outs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    names = [str(proto.relative_to(ROOT / "protos")) for proto in protos]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outs, *names]

    subprocess.run(command, cwd=ROOT / "protos", check=True, timeout=60)

    made = {file.name: file.read_text() for file in (tmp_path / "labeler" / "v1").iterdir()}
    committed = {file.name: file.read_text() for file in GENERATED.glob("*_pb2*.py*")}
    assert committed == made, "`make proto` brings it up to date"
