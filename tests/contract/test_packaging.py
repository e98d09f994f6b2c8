"""What a release is: an sdist, a wheel made from it, and what either needs to do its work.

Slow: the wheel builds our crates once more, about 90 s on two cores after `make build`.
"""

import fnmatch
import random
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

import labeler
from tests.support import package
from tests.support.load import readings
from tests.support.service import serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NEEDED_TO_BUILD = (
    "Cargo.toml",
    "Cargo.lock",
    "LICENSE",
    "NOTICE",
    "protos/labeler/v1/label.proto",
    "protos/labeler/journal/v1/record.proto",
    "rust_core/Cargo.toml",
    "rust_core/build.rs",
    "rust_core/src/lib.rs",
    "rust_core/bridge/src/lib.rs",
    "rust_core/loadgen/src/lib.rs",
)
# Of the names with an underscore these are in the stable ABI (CPython's Misc/stable_abi.toml).
STABLE_PRIVATE = {
    *("_Py_Dealloc", "_Py_DecRef", "_Py_IncRef", "_Py_NoneStruct", "_Py_TrueStruct"),
    *("_Py_FalseStruct", "_Py_EllipsisObject", "_Py_NotImplementedStruct"),
}
PROMISED = (
    "labeler/__init__.py",
    "labeler/py.typed",
    "labeler/_core/__init__.pyi",
    "labeler/_core/loadgen.pyi",
    "labeler/_core.abi3.so",
    "labeler/v1/label_pb2.py",
)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this tree."""
    return package.build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist."""
    return package.build_wheel(sdist, tmp_path_factory.mktemp("wheel"))


def test_the_sdist_has_all_that_a_build_needs_and_nothing_that_it_makes(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in NEEDED_TO_BUILD if name not in names]
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
    assert not [name for name in names if name.startswith(("target/", ".venv/"))]


def test_the_wheel_has_its_models_its_types_and_its_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not [name for name in PROMISED if name not in names]
    models = [
        f"labeler/models/packaged/{name}/*/model" for name in ("kiva-floor", "wall-following")
    ]
    meta = "labeler-*.dist-info"
    patterns = [f"{model}.{kind}" for model in models for kind in ("onnx", "int8.onnx", "toml")]
    patterns += [f"{meta}/licenses/LICENSE", f"{meta}/licenses/NOTICE", f"{meta}/entry_points.txt"]
    assert not [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]


def test_the_wheel_serves_every_python_from_3_11_on(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name


def versions(names: str, symbol: str) -> list[tuple[int, ...]]:
    """The versions of a library's symbols in what `objdump -T` says, such as those of GLIBC."""
    found = re.findall(rf"\b{symbol}_(\d+(?:\.\d+)+)\b", names)
    return sorted({tuple(map(int, version.split("."))) for version in found})


def test_the_wheel_s_platform_has_every_symbol_that_the_extension_needs(
    wheel: Path, tmp_path: Path
) -> None:
    """S84: a tag for an older platform than the symbols are of is accepted by pip, and fails."""
    with zipfile.ZipFile(wheel) as archive:
        extension = archive.extract("labeler/_core.abi3.so", tmp_path)
    command = ["objdump", "-T", extension]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = versions(names, "GLIBC")
    assert needed, names
    tags = re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name)
    promised = [tuple(map(int, tag)) for tag in tags]
    # A wheel for "linux" promises the machine that it was built on, and is for no other.
    assert all(max(needed) <= tag for tag in promised), (wheel.name, needed)
    assert promised or re.search(r"-linux_\w+\.whl$", wheel.name), wheel.name
    # Of the interpreter it needs the stable ABI: nothing private but what its macros stand for.
    private = set(re.findall(r"\*UND\*.*\b(_Py\w+)", names))
    assert private <= STABLE_PRIVATE, private - STABLE_PRIVATE


def test_a_wheel_from_the_sdist_serves_a_label_in_an_empty_environment(
    wheel: Path, tmp_path: Path
) -> None:
    python = package.install(tmp_path / "served", f"{wheel}[serve]")
    service = serve(tmp_path / "state", labeler=python.with_name("labeler"))
    try:
        service.wait_ready()
        with labeler.Client(service.address, timeout_ms=5000) as client:
            client.wait_ready(10_000)
            assert client.label("robot-1", 1, readings(random.Random(1))).source == "MODEL"
        assert service.stop() == 0
    finally:
        service.close()


def test_the_client_needs_grpcio_protobuf_and_numpy_alone(wheel: Path, tmp_path: Path) -> None:
    python = package.install(tmp_path / "client", str(wheel))
    listed = package.run(
        python, "-c", "from importlib.metadata import distributions as d; "
        "print(sorted({x.name.lower() for x in d()}))"
    )  # fmt: skip
    allowed = {"grpcio", "labeler", "numpy", "protobuf", "typing-extensions", "typing_extensions"}
    assert set(eval(listed.stdout)) <= allowed
    used = package.run(
        python, "-c", "import labeler, sys; labeler.Client('127.0.0.1:1').close(); "
        "print('labeler._core' in sys.modules)"
    )  # fmt: skip
    assert (used.stdout.strip(), used.stderr) == ("False", "")


def test_the_command_line_without_the_server_says_what_to_install(
    wheel: Path, tmp_path: Path
) -> None:
    python = package.install(tmp_path / "client", str(wheel))
    done = package.run(python, str(python.with_name("labeler")), "serve")
    assert done.returncode != 0
    assert "labeler[serve]" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
