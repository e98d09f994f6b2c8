"""S82, trap 8: no ONNX Runtime, the wrong one, or two of them.

Each start that cannot succeed ends before it has touched anything, so in no time; what is said has
the path that was tried and the remedy. How a load that hangs is given up stands in
`rust_core/src/models/runtime.rs`.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import labeler
from labeler.runtime_library import find
from tests.support.load import readings
from tests.support.preload import prefix
from tests.support.service import StartService, environment
from tests.support.threads import settled

# main, loop, writer, control, models, admin, sampler, log, and the one on which the store's writes
# wait: those of `labeler.service`. Reads and dead letters have theirs from the first one on.
PYTHON_THREADS = 9

Wrong = Callable[[Path], Path]

API = """
static const void *api(unsigned version) { return 0; }
static const char *version(void) { return "%s"; }
struct base { const void *(*api)(unsigned); const char *(*version)(void); };
static const struct base base = { api, version };
const struct base *OrtGetApiBase(void) { return &base; }
"""


def compiled(folder: Path, code: str) -> Path:
    """A shared library as large as a real one must be."""
    source, library = folder / "library.c", folder / "libonnxruntime.so"
    source.write_text(f"const char filler[2 << 20] = {{1}};\n{code}")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def with_text(folder: Path) -> Path:
    path = folder / "libonnxruntime.so"
    path.write_text("not a library")
    return path


def cut_short(folder: Path) -> Path:
    path = folder / "libonnxruntime.so"
    path.write_bytes(find().read_bytes()[: 4 << 20])
    return path


def without_permission(folder: Path) -> Path:
    path = folder / "libonnxruntime.so"
    path.write_bytes(b"")
    path.chmod(0)
    return path


WRONG: dict[str, tuple[Wrong, str]] = {
    "missing": (lambda folder: folder / "libonnxruntime.so", "is not a file"),
    "a directory": (lambda folder: folder, "is not a file"),
    "a text file": (with_text, "is not a 64-bit shared library"),
    "no permission": (without_permission, "ermission denied"),
    "cut short": (cut_short, "is cut short"),
    "another library": (lambda folder: compiled(folder, "int x(void) { return 1; }"), "not ONNX"),
    "older": (lambda folder: compiled(folder, API % "1.10.2"), "1.10.2, expected 1."),
    "older, by its symbols": (
        lambda folder: compiled(folder, 'const char mark[] = "\\0VERS_1.9.0";'),
        "1.9.0, expected 1.",
    ),
    "newer, without our API": (lambda folder: compiled(folder, API % "1.99.0"), "gives no API"),
}


def test_a_library_that_cannot_serve_is_refused_with_its_path_and_the_remedy(
    start_service: StartService, tmp_path: Path
) -> None:
    def refused(name: str) -> None:
        make, reason = WRONG[name]
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        path = make(folder)
        # Root may read everything while it has its capabilities.
        without = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
        prefix = without if os.geteuid() == 0 and name == "no permission" else ()
        service = start_service(
            folder / "state", ready=False, prefix=prefix, models__runtime_library=str(path)
        )
        code, log = service.wait(), "\n".join(service.stderr)
        assert code == labeler.RuntimeLibraryError.exit_code, (name, log)
        assert str(path) in log, (name, log)
        assert reason in log, (name, log)
        assert "give the path of" in log, (name, log)
        assert "Traceback" not in log, (name, log)
        assert not (folder / "state" / "journal").exists(), name

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(refused, WRONG))


NO_WHEEL = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "onnxruntime" else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"sitecustomize.py": NO_WHEEL}, "the package onnxruntime is not installed"),
        ({"onnxruntime/__init__.py": "", "onnxruntime/capi/x": ""}, "no libonnxruntime in"),
    ],
    ids=["no wheel", "a wheel without its library"],
)
def test_a_package_that_has_no_library_is_named_with_what_to_install(
    start_service: StartService, tmp_path: Path, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        (tmp_path / "first" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "first" / name).write_text(text)
    path = os.pathsep.join([str(tmp_path / "first"), os.environ.get("PYTHONPATH", "")])
    service = start_service(ready=False, prefix=("env", f"PYTHONPATH={path}"))
    assert service.wait() == labeler.RuntimeLibraryError.exit_code
    log = "\n".join(service.stderr)
    assert said in log
    assert "models.runtime_library" in log
    assert not (tmp_path / "state").exists()


def mapped(pid: int | str) -> set[str]:
    """The files of ONNX Runtime in the memory of a process."""
    files = (line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return {file for file in files if "onnxruntime" in file}


@pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is read from /proc")
def test_a_service_has_one_library_and_not_the_packages_own_copy(
    start_service: StartService,
) -> None:
    assert mapped(start_service().pid) == {str(find().resolve())}


TOOLS = """
import labeler.models, numpy
from pathlib import Path
from labeler.models import inference
[model] = Path(labeler.models.__file__).parent.glob("packaged/kiva-floor/*/model.onnx")
inference.run(inference.open_session(model.read_bytes()), numpy.zeros((1, 24), "f4"))
"""


def test_the_library_neither_keeps_a_diary_in_the_users_home_nor_a_thread_to_send_it(
    start_service: StartService, tmp_path: Path
) -> None:
    # ONNX Runtime 1.32: ~/.cache/Microsoft/DeveloperTools/.onnxruntime/onnxruntime.db, uploaded.
    home = tmp_path / "home"
    home.mkdir()
    variables = {"HOME": str(home), "ORT_DISABLE_TELEMETRY": "0"}
    service = start_service(prefix=prefix(**variables))
    with labeler.Client(service.address, timeout_ms=5000) as client:
        client.wait_ready(10_000)
        assert client.label("robot-1", 1, readings(random.Random(1))).label
    allowed = {"transport", "log", "committer", "signals", "failure"}
    strange = {
        name: count
        for name, count in settled(service.pid).items()
        if name not in allowed and not name.startswith("infer-")
    }
    assert strange == {"labeler": PYTHON_THREADS}
    assert service.stop() == 0
    tools = [sys.executable, "-c", TOOLS]
    subprocess.run(tools, env=environment({}) | variables, check=True, timeout=100)
    assert [str(path) for path in home.rglob("*")] == []


BESIDE = """
import sys
from labeler._core import Engine
from tests.support.forking import settings
from pathlib import Path

def package():
    import onnxruntime
    from labeler.models import inference
    import labeler.models, numpy
    [model] = Path(labeler.models.__file__).parent.glob("packaged/kiva-floor/*/model.onnx")
    scores = inference.run(inference.open_session(model.read_bytes()), numpy.zeros((1, 24), "f4"))
    assert numpy.isfinite(scores).all()

def core():
    engine = Engine.start(settings(f"{sys.argv[1]}"))
    [ready] = [model for model in engine.list_models() if model["state"] == "ready"]
    assert ready["name"] == "kiva-floor"
    return engine

if sys.argv[2] == "before":
    package()
    engine = core()
else:
    engine = core()
    package()
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "/libonnxruntime.so" in line}
assert len(libraries) == 1, libraries
assert engine.load_model("wall-following", "", False)["state"] == "ready"
engine.stop()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is read from /proc")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_program_that_imports_the_package_too_has_the_library_once(
    tmp_path: Path, when: str
) -> None:
    command = [sys.executable, "-c", BESIDE, str(tmp_path / "state"), when]
    done = subprocess.run(
        command, env=environment({}), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
