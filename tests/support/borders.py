"""Which part of the core uses which: paths in Rust sources, resolved to modules of the crate."""

import re
from dataclasses import dataclass

from tests.support import rust_source

_SOURCE = "rust_core/src/"


@dataclass(frozen=True)
class Use:
    """`file` (below rust_core/src), the module `user`, names `path` (ours, or another crate)."""

    file: str
    user: tuple[str, ...]
    path: tuple[str, ...]


def uses(name: str, text: str) -> list[Use]:
    """What one file of the core names outside of its tests, with `super` and `self` resolved."""
    file = name.removeprefix(_SOURCE)
    user = module_of(file)
    return [Use(file, user, _resolve(user, path)) for path in sorted(rust_source.paths(text))]


def module_of(file: str) -> tuple[str, ...]:
    """`path/batch.rs` as `(path, batch)`, `path/mod.rs` as `(path,)`, `lib.rs` as `()`."""
    parts = file.removesuffix(".rs").split("/")
    if parts[-1] in ("mod", "lib"):
        parts.pop()
    return tuple(parts)


def lines_with(text: str, pattern: str) -> list[int]:
    """Numbers of the lines that match, outside of tests, comments and strings."""
    return [number for number, line in rust_source.code_lines(text) if re.search(pattern, line)]


def _resolve(user: tuple[str, ...], path: str) -> tuple[str, ...]:
    parts = path.split("::")
    if parts[0] not in ("super", "self"):
        return tuple(parts)
    base = list(user)
    while parts and parts[0] in ("super", "self"):
        if parts.pop(0) == "super" and base:
            base.pop()
    return ("crate", *base, *parts)
