"""Finds ONNX Runtime's shared library in the `onnxruntime` wheel without importing the package.

Importing it would load a second copy of the library into the process: two environments, two thread
pools, and crashes where handles cross. The core loads what is found here once, and checks it.

Since 1.32 the library keeps a database of its use in the user's home and sends it to its maker, on
threads of its own that a forked child lacks and its exit waits for. Nothing leaves the floor: it is
told before it is loaded, since what it offers afterwards comes too late.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from labeler.errors import RuntimeLibraryError

__all__ = ["find", "silence"]

_PATTERNS = ("libonnxruntime.so*", "libonnxruntime*.dylib", "onnxruntime.dll")


def find(setting: str = "") -> Path:
    """The library's path: `setting` (`models.runtime_library`) if given, else the wheel's.

    Whoever asks is about to load it, so it is silenced first.

    Errors: `RuntimeLibraryError` with the path that was tried and what to do.
    """
    silence()
    if setting:
        path = Path(setting)
        if not path.is_file():
            raise RuntimeLibraryError(
                f"models.runtime_library = {setting!r} is not a file; give the path of "
                "libonnxruntime.so, or leave it empty to use the onnxruntime package's"
            )
        return path.resolve()
    folder = _package_folder()
    if folder is None:
        raise RuntimeLibraryError(
            "the package onnxruntime is not installed; install labeler[serve], "
            "or set models.runtime_library to the path of libonnxruntime.so"
        )
    for pattern in _PATTERNS:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if found:
            return found[0]
    raise RuntimeLibraryError(
        f"no libonnxruntime in {folder}; reinstall onnxruntime, "
        "or set models.runtime_library to the path of libonnxruntime.so"
    )


def silence() -> None:
    """Turns the library's telemetry off for this process and those that it starts."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def _package_folder() -> Path | None:
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "capi"
