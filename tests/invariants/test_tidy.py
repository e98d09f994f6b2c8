"""The code keeps its habits: small files and functions, head comments, nothing left over."""

import tomllib
from typing import Any

import pytest

from tests.support import rust_source
from tests.support.repo import ROOT, project_files, read
from tests.support.tidy import Finding, check, judge
from tests.support.tools import load_tool
from tests.support.unused import unused_files

RULES: dict[str, Any] = tomllib.loads((ROOT / "tests/invariants/tidy.toml").read_text())
SMALL = {"file_lines": 5, "function_lines": 3, "line_columns": 70, "blob_bytes": 1000}
RUST = "rust_core/src/x.rs"
PYTHON = "python/labeler/x.py"
TEST = "tests/behaviour/test_x.py"


def test_every_file_keeps_the_limits_or_has_an_exception_that_only_falls() -> None:
    findings: list[Finding] = []
    names = project_files()
    tests = rust_source.test_files({name: read(name) for name in names if name.endswith(".rs")})
    for name in names:
        size = (ROOT / name).stat().st_size
        findings += check(name, read(name), size, RULES["limits"], name in tests)
    problems = judge(findings, RULES["exceptions"])
    assert not problems, "\n".join(problems)


def test_no_file_is_unreachable() -> None:
    sources = {name: read(name) for name in project_files() if name.endswith((".rs", ".py"))}
    mentions = "".join(read(name) for name in ("Makefile", "pyproject.toml", "CONTRIBUTING.md"))
    assert not unused_files(sources, mentions)


@pytest.mark.parametrize("name", sorted(RULES["wiring_lines"]))
def test_a_wiring_place_reads_as_a_drawing(name: str) -> None:
    lines = len(
        rust_source.net_lines(read(name)) if name.endswith(".rs") else read(name).splitlines()
    )
    assert lines <= RULES["wiring_lines"][name]


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        ("file_lines", RUST, "//! x\n" + "const A: u8 = 1;\n" * 5),
        ("file_lines", PYTHON, '"""x"""\n' + "a = 1\n" * 5),
        ("function_lines", RUST, "//! x\nfn f() {\n\n\n}"),
        ("function_lines", PYTHON, '"""x"""\ndef f():\n    a = 1\n    b = 2\n    return a + b'),
        ("line_columns", PYTHON, '"""x"""\n' + "a" * 71),
        ("head_comment", RUST, "use std::fs;"),
        ("head_comment", PYTHON, "import os"),
        ("head_comment", ".ci/run", "#!/bin/sh\nset -e"),
        ("debug_print", RUST, "//! x\nfn f() { dbg!(1); }"),
        ("debug_print", RUST, '//! x\nfn f() { println!("x"); }'),
        ("debug_print", PYTHON, '"""x"""\nprint(1)'),
        ("debug_print", TEST, '"""x"""\nbreakpoint()'),
        ("todo", RUST, "//! x\n// TO" + "DO: later"),
        ("sleep", TEST, '"""x"""\ntime.sleep(1)'),
        ("sleep", RUST, "//! x\n#[cfg(test)]\nmod t { fn a() { std::thread::sleep(x); } }"),
        ("wall_clock", TEST, '"""x"""\nassert time.monotonic() - start < 1'),
        ("wall_clock", TEST, '"""x"""\nassert elapsed_s < 1'),
        ("wall_clock", RUST, "//! x\n#[test]\nfn a() { assert!(start.elapsed() < limit); }"),
    ],
)
def test_a_check_finds_what_it_is_for(rule: str, path: str, text: str) -> None:
    assert [finding.rule for finding in check(path, text, len(text), SMALL)] == [rule]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (RUST, "//! x\n#[cfg(test)]\nmod tests {\n\n\n\n\n\n}"),
        (RUST, '//! x\nconst A: &str = "dbg!(1)"; // dbg!(1)'),
        (RUST, "//! x\n// TODO #12: later"),
        ("rust_core/build.rs", '//! x\nfn f() { println!("cargo::x"); }'),
        ("python/labeler/cli/x.py", '"""x"""\nprint(1)'),
        (TEST, '"""x"""\nawait asyncio.sleep(0)'),
        (PYTHON, '"""x"""\ntime.sleep(1)'),
        (TEST, '"""x"""\nassert time.monotonic() - start >= 0.3'),
    ],
)
def test_a_check_leaves_in_peace_what_is_allowed(path: str, text: str) -> None:
    assert check(path, text, len(text), SMALL) == []


def test_a_file_that_only_tests_see_is_known_by_its_module() -> None:
    sources = {
        "rust_core/src/lib.rs": "mod used;\n#[cfg(test)]\nmod testing;",
        "rust_core/src/used.rs": "#[cfg(test)]\nmod double;",
        "rust_core/src/used/double.rs": "",
        "rust_core/src/testing.rs": "",
        "rust_core/tests/whole.rs": "",
    }
    assert rust_source.test_files(sources) == set(list(sources)[2:])


def test_a_large_blob_is_found() -> None:
    assert [f.rule for f in check("docs/picture.png", "", 1001, SMALL)] == ["blob_bytes"]


@pytest.mark.parametrize(
    ("size", "excepted", "mended"),
    [
        (9, None, "file_lines 9"),
        (9, 8, "excepted: 8"),
        (8, 9, "lower"),
        (0, 9, "needs no exception"),
    ],
)
def test_an_exception_is_a_ratchet(size: int, excepted: int | None, mended: str) -> None:
    findings = [Finding("file_lines", "a.py", size, "")] if size else []
    exceptions = (
        [{"rule": "file_lines", "path": "a.py", "size": excepted, "reason": "x"}]
        if excepted
        else []
    )
    [problem] = judge(findings, exceptions)
    assert mended in problem


def test_an_exception_of_the_right_size_is_taken() -> None:
    exception = {"rule": "sleep", "path": "a.py", "size": 2, "reason": "x"}
    assert (
        judge([Finding("sleep", "a.py", 1, ""), Finding("sleep", "a.py", 1, "")], [exception]) == []
    )


def test_a_file_that_nothing_reaches_is_found() -> None:
    sources = {
        "rust_core/src/lib.rs": "mod used;",
        "rust_core/src/used.rs": "mod inner;",
        "rust_core/src/used/inner.rs": "",
        "rust_core/src/used/lost.rs": "",
        "python/labeler/a.py": "from labeler import b",
        "python/labeler/b.py": "from . import c",
        "python/labeler/c.py": "",
        "python/labeler/lost.py": "import labeler.a",
    }
    assert unused_files(sources, "") == ["python/labeler/lost.py", "rust_core/src/used/lost.rs"]


def test_a_long_comment_is_wrapped_and_nothing_else_is() -> None:
    wrap = load_tool("wrap").wrapped
    comment = f"    // {'word ' * 30}end\n    // next"
    wrapped = wrap(comment)
    assert max(map(len, wrapped.splitlines())) <= 100
    assert wrapped.replace("//", "").split() == comment.replace("//", "").split()
    code = f'let text = "{"word " * 30}"; // after code'
    assert wrap(code) == code
