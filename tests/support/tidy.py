"""The habits that a machine can check: sizes, head comments, leftovers (CONTRIBUTING.md).

Each check is a function of a file's name and text. It returns findings; `judge` compares them
with the exceptions of tidy.toml, whose sizes may only fall.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support import rust_source

CODE = (".rs", ".py", ".pyi", ".proto", ".sh")
_HEAD = {".rs": "//!", ".proto": "//", ".sh": "#"}
_TODO = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b(?!\s*\(?#\d+)")
_PRINT = re.compile(r"\b(?:dbg|println|eprintln|print|eprint)!\s*[(\[{]")
_RUST_SLEEP = re.compile(r"\bthread::sleep\s*\(")
_RUST_CLOCK = re.compile(r"\bassert\w*!\s*\(.*\b(?:elapsed\(\)|Instant::now|SystemTime::now)")
_CLOCK_NAMES = re.compile(r"elapsed|took|wall_clock|wall_time")
_CLOCK_CALLS = {"time", "monotonic", "perf_counter", "process_time", "monotonic_ns", "time_ns"}


@dataclass(frozen=True)
class Finding:
    """What a check has against a file: the rule, how much (lines, bytes, or a count), and where."""

    rule: str
    path: str
    size: int
    where: str


def check(
    path: str, text: str, bytes_: int, limits: Mapping[str, int], is_test: bool = False
) -> list[Finding]:
    """All findings of one file.

    `limits`: file_lines, function_lines, line_columns, blob_bytes. `is_test`: a file of Rust that
    only tests see.
    """
    findings = list(_blob(path, bytes_, limits["blob_bytes"]))
    if path.endswith(CODE) or path in ("Makefile", ".ci/run"):
        findings += _head_comment(path, text)
        findings += _todo(path, text)
    if path.endswith(CODE):
        findings += _file_lines(path, text, limits["file_lines"])
        findings += _line_columns(path, text, limits["line_columns"])
    if path.endswith(".rs"):
        findings += _rust(path, text, limits["function_lines"], is_test)
    if path.endswith(".py"):
        findings += _python(path, text, limits["function_lines"])
    return findings


def judge(findings: Iterable[Finding], exceptions: Iterable[Mapping[str, Any]]) -> list[str]:
    """What must be mended: findings above their exception, exceptions larger than needed."""
    sizes: dict[tuple[str, str], int] = {}
    places: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        key = (finding.rule, finding.path)
        largest = finding.rule in ("file_lines", "function_lines", "blob_bytes")
        before = sizes.get(key, 0)
        sizes[key] = max(before, finding.size) if largest else before + finding.size
        places.setdefault(key, []).append(finding.where)
    allowed = {(e["rule"], e["path"]): int(e["size"]) for e in exceptions if e["reason"]}
    problems = []
    for (rule, path), size in sorted(sizes.items()):
        bound = allowed.pop((rule, path), 0)
        where = "; ".join(places[rule, path][:3])
        if size > bound:
            problems.append(
                f"{path}: {rule} {size}{f' (excepted: {bound})' if bound else ''}: {where}"
            )
        elif size < bound:
            problems.append(f"{path}: {rule} fell to {size}; lower its exception from {bound}")
    problems += [f"{path}: {rule} needs no exception any more" for rule, path in sorted(allowed)]
    return problems


def _blob(path: str, bytes_: int, limit: int) -> Iterator[Finding]:
    if bytes_ > limit:
        yield Finding("blob_bytes", path, bytes_, f"{bytes_} bytes, at most {limit}")


def _head_comment(path: str, text: str) -> Iterator[Finding]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#!")]
    if path.endswith((".py", ".pyi")):
        has = bool(lines) and bool(re.match(r'[rR]?"""', lines[0]))
    else:
        mark = next((mark for suffix, mark in _HEAD.items() if path.endswith(suffix)), "#")
        has = bool(lines) and lines[0].startswith(mark)
    if not has:
        yield Finding("head_comment", path, 1, "the file does not begin by saying what it is about")


def _todo(path: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        if _TODO.search(line):
            yield Finding("todo", path, 1, f"line {number} has no issue number")


def _file_lines(path: str, text: str, limit: int) -> Iterator[Finding]:
    lines = len(rust_source.net_lines(text)) if path.endswith(".rs") else len(text.splitlines())
    if lines > limit:
        yield Finding("file_lines", path, lines, f"{lines} lines, at most {limit}")


def _line_columns(path: str, text: str, limit: int) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > limit and "://" not in line:
            yield Finding(
                "line_columns", path, 1, f"line {number} has {len(line)}, at most {limit}"
            )


def _rust(path: str, text: str, function_lines: int, is_test: bool) -> Iterator[Finding]:
    for function in rust_source.functions(text):
        if function.lines > function_lines:
            where = f"{function.name} at line {function.line}, at most {function_lines}"
            yield Finding("function_lines", path, function.lines, where)
    programs = ("build.rs", "/src/main.rs")
    if not is_test and not path.endswith(programs) and "/src/bin/" not in path:
        for number, line in rust_source.code_lines(text):
            if _PRINT.search(line):
                yield Finding("debug_print", path, 1, f"line {number}")
    net = {number for number, _ in rust_source.net_lines(text)}
    for number, line in enumerate(text.splitlines(), 1):
        if number in net and not is_test:
            continue
        if _RUST_SLEEP.search(line):
            yield Finding("sleep", path, 1, f"line {number}: wait for a condition")
        if _RUST_CLOCK.search(line):
            yield Finding("wall_clock", path, 1, f"line {number}: a test asserts no time")


def _python(path: str, text: str, function_lines: int) -> Iterator[Finding]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > function_lines:
                where = f"{node.name} at line {node.lineno}, at most {function_lines}"
                yield Finding("function_lines", path, lines, where)
        elif isinstance(node, ast.Call):
            yield from _call(path, node)
        elif isinstance(node, ast.Assert) and path.startswith("tests/") and _reads_clock(node):
            where = f"line {node.lineno}: a test asserts no time"
            yield Finding("wall_clock", path, 1, where)


def _call(path: str, node: ast.Call) -> Iterator[Finding]:
    name = ast.unparse(node.func)
    quiet = path.startswith("python/labeler/") and not path.startswith("python/labeler/cli/")
    if name in ("breakpoint", "pdb.set_trace", "ic") or (name == "print" and quiet):
        yield Finding("debug_print", path, 1, f"line {node.lineno}")
    if path.startswith("tests/") and name.rpartition(".")[2] == "sleep":
        if not (node.args and ast.unparse(node.args[0]) == "0"):
            yield Finding("sleep", path, 1, f"line {node.lineno}: wait for a condition")


def _reads_clock(node: ast.Assert) -> bool:
    """Whether the assertion bounds a time from above; a least time is no matter of luck."""
    test = node.test
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Gt | ast.GtE):
        return any(map(_is_clock, test.comparators))
    return any(map(_is_clock, ast.walk(test)))


def _is_clock(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _CLOCK_CALLS and ast.unparse(node.func.value) == "time"
    return isinstance(node, ast.Name) and bool(_CLOCK_NAMES.search(node.id))
