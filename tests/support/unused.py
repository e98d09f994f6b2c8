"""Finds files that nothing reaches: Rust that no `mod` names, Python that no module imports."""

import ast
from collections.abc import Iterable, Mapping

from tests.support import rust_source

_ENTRIES = ("__init__", "__main__", "conftest", "lib", "main", "build")


def unused_files(sources: Mapping[str, str], mentions: str) -> list[str]:
    """Names in `sources` (name to text) that are unreachable.

    `mentions`: text of files such as Makefile and pyproject.toml, whose words count as uses.
    """
    python = {name: text for name, text in sources.items() if name.endswith(".py")}
    rust = {name: text for name, text in sources.items() if name.endswith(".rs")}
    return sorted([*_unused_rust(rust), *_unused_python(python, mentions)])


def _unused_rust(sources: Mapping[str, str]) -> Iterable[str]:
    for name in sources:
        folder, _, file = name.rpartition("/")
        stem = file.removesuffix(".rs")
        if "/src/" not in name or stem in _ENTRIES or "/src/bin/" in name:
            continue
        if stem == "mod":
            folder, _, stem = folder.rpartition("/")
        parents = [f"{folder}/{parent}.rs" for parent in ("lib", "main", "mod")] + [f"{folder}.rs"]
        if not any(stem in rust_source.modules(sources.get(parent, "")) for parent in parents):
            yield name


def _unused_python(sources: Mapping[str, str], mentions: str) -> Iterable[str]:
    used: set[str] = set()
    for name, text in sources.items():
        used |= _imports(_dotted(name), name.endswith("__init__.py"), text)
    for name in sources:
        stem = name.rpartition("/")[2].removesuffix(".py")
        if stem in _ENTRIES or stem.startswith("test_"):
            continue
        dotted = _dotted(name)
        file = name.rpartition("/")[2]  # run as a program of its own
        named = {dotted, file} & used
        if not named and dotted not in mentions and name not in mentions:
            yield name


def _dotted(name: str) -> str:
    return (
        name.removeprefix("python/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    )


def _imports(module: str, is_package: bool, text: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parents = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parents, *([base] if base else [])])
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # loaded by name, lazily
    return found
