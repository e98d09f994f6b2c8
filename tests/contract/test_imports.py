"""What importing the package loads, and what it promises."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import labeler

ROOT = Path(__file__).resolve().parents[2]
CLIENT_NEEDS = "import google.protobuf.descriptor_pb2, grpc.aio, numpy"


def loaded_by(statement: str) -> set[str]:
    """Modules outside of the standard library that the statement loads in a fresh interpreter."""
    script = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-I", "-c", script]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    modules = set(json.loads(out.stdout))
    return {name for name in modules if name.split(".")[0] not in sys.stdlib_module_names}


def test_importing_the_package_loads_the_errors_only() -> None:
    ours = loaded_by("import labeler") - loaded_by("pass")

    assert ours == {"labeler", "labeler.errors"}


def test_the_client_loads_grpc_protobuf_and_numpy_and_nothing_of_the_server() -> None:
    modules = loaded_by("import labeler; labeler.Client")

    beyond = {name.split(".")[0] for name in modules - loaded_by(CLIENT_NEEDS)}
    ours = {name.split(".")[1] for name in modules if name.startswith("labeler.")}
    assert beyond - {"google", "grpc", "numpy"} == {"labeler"}
    assert ours == {"client", "errors", "v1"}


def test_the_simulated_floor_loads_numpy_and_nothing_of_the_service() -> None:
    modules = loaded_by("import labeler.fleet.floor_map, labeler.fleet.traces")

    beyond = {name.split(".")[0] for name in modules - loaded_by("import numpy")}
    ours = {name.split(".")[1] for name in modules if name.startswith("labeler.")}
    assert beyond == {"labeler"}
    assert ours == {"errors", "fleet"}


def test_the_process_that_serves_loads_nothing_that_only_reads_settings() -> None:
    modules = loaded_by("import labeler.cli.served, labeler.service")

    assert modules & {"pydantic", "typer", "rich", "labeler.config", "labeler.cli.app"} == set()


def test_importing_the_client_starts_no_thread() -> None:
    statement = "import labeler, threading; labeler.Client; assert threading.active_count() == 1"

    assert loaded_by(statement)


def test_every_promised_name_is_there() -> None:
    assert [name for name in labeler.__all__ if not hasattr(labeler, name)] == []


def test_the_version_is_the_workspaces() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())

    assert labeler.__version__ == cargo["workspace"]["package"]["version"]
