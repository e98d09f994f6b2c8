"""Loads a script of tools/ as a module, to test what it does."""

import importlib.util
from types import ModuleType

from tests.support.repo import ROOT


def load_tool(name: str) -> ModuleType:
    """tools/`name`.py, freshly loaded; nothing is run."""
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
