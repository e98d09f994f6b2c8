"""Reads Rust sources for the checks of size and border: functions, test code, imports.

Parsed with tree-sitter, never with patterns over braces: strings and macros would deceive those.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import tree_sitter_rust
from tree_sitter import Language, Node, Parser

_PARSER = Parser(Language(tree_sitter_rust.language()))
_TEST_ATTRIBUTES = ("cfg(test)", "cfg(any(test", "test]", "tokio::test")


@dataclass(frozen=True)
class Function:
    """A function with its first line (1-based) and its size from signature to closing brace."""

    name: str
    line: int
    lines: int


def functions(text: str) -> list[Function]:
    """Every function with a body outside of test code, in the order of the file."""
    return [
        Function(
            _name(node), node.start_point.row + 1, node.end_point.row - node.start_point.row + 1
        )
        for node in _walk(_parse(text))
        if node.type == "function_item"
    ]


def code_lines(text: str) -> list[tuple[int, str]]:
    """Numbered lines outside of test code, comments and strings blanked."""
    return _kept(
        text, blank=("line_comment", "block_comment", "string_literal", "raw_string_literal")
    )


def net_lines(text: str) -> list[tuple[int, str]]:
    """Numbered lines outside of test code, as they are."""
    return _kept(text, blank=())


def paths(text: str) -> set[str]:
    """Every path that starts at `crate`, `super` or `self`, or names a crate, outside of tests.

    A `use` tree is expanded: `use crate::{a::B, c}` gives `crate::a::B` and `crate::c`.
    """
    found: set[str] = set()
    for node in _walk(_parse(text)):
        if node.type == "use_declaration":
            argument = node.child_by_field_name("argument")
            found.update(_expand(_text(argument)) if argument else ())
        elif node.type in ("scoped_identifier", "scoped_type_identifier"):
            if node.parent is None or not node.parent.type.startswith("scoped_"):
                found.update(_expand(_text(node)))
    return found


def modules(text: str, tests: bool = True) -> set[str]:
    """Names of `mod name;` items, those of tests too unless told otherwise."""
    return {
        _name(node)
        for node in _walk(_parse(text), tests)
        if node.type == "mod_item" and node.child_by_field_name("body") is None
    }


def test_files(sources: Mapping[str, str]) -> set[str]:
    """Files that only tests see: below tests/, or in a module with `#[cfg(test)] mod name;`."""
    found = {name for name in sources if "/tests/" in name or "/benches/" in name}
    for name, text in sources.items():
        folder, _, file = name.rpartition("/")
        if file not in ("lib.rs", "main.rs", "mod.rs"):
            folder = name.removesuffix(".rs")
        for module in modules(text) - modules(text, tests=False):
            below = f"{folder}/{module}"
            found |= {other for other in sources if other.startswith((f"{below}.rs", f"{below}/"))}
    return found


def _parse(text: str) -> Node:
    return _PARSER.parse(text.encode()).root_node


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _name(node: Node) -> str:
    name = node.child_by_field_name("name")
    return _text(name) if name else "?"


def _walk(node: Node, tests: bool = False) -> Iterator[Node]:
    """The node and all below it; items with a test attribute are left out unless `tests`."""
    yield node
    attributed_as_test = False
    for child in node.named_children:
        if child.type == "attribute_item":
            attributed_as_test |= any(mark in _text(child) for mark in _TEST_ATTRIBUTES)
            continue
        if child.type in ("line_comment", "block_comment"):
            continue
        if tests or not attributed_as_test:
            yield from _walk(child, tests)
        attributed_as_test = False


def _test_rows(root: Node) -> set[int]:
    rows: set[int] = set()
    for parent in _walk(root):
        first: int | None = None
        for child in parent.named_children:
            if child.type == "attribute_item":
                if first is None and any(mark in _text(child) for mark in _TEST_ATTRIBUTES):
                    first = child.start_point.row
            elif child.type not in ("line_comment", "block_comment"):
                if first is not None:
                    rows.update(range(first, child.end_point.row + 1))
                first = None
    return rows


def _kept(text: str, blank: tuple[str, ...]) -> list[tuple[int, str]]:
    root = _parse(text)
    raw = bytearray(text.encode())
    for node in _all(root):
        if node.type in blank:
            for i in range(node.start_byte, node.end_byte):
                if raw[i] != ord("\n"):
                    raw[i] = ord(" ")
    skipped = _test_rows(root)
    lines = raw.decode(errors="replace").splitlines()
    return [(row + 1, line) for row, line in enumerate(lines) if row not in skipped]


def _all(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _all(child)


def _expand(tree: str) -> set[str]:
    """`a::{b::C, d as e, self}` as `a::b::C`, `a::d`, `a`."""
    tree = " ".join(tree.split())
    head, brace, rest = tree.partition("{")
    if not brace:
        return {head.split(" as ")[0].replace(" ", "").removesuffix("::*").removesuffix("::self")}
    found: set[str] = set()
    for part in _split(rest.rpartition("}")[0]):
        found.update(_expand(head.strip() + part))
    return found


def _split(inner: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, char in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(inner[start:i].strip())
            start = i + 1
    return [part for part in [*parts, inner[start:].strip()] if part]
