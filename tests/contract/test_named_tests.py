"""Every test that a document names exists: invariants, durability, and the public faults."""

import re
from pathlib import Path

import pytest

from tests.support.named_tests import missing, problems, rows
from tests.support.real_data import case_file
from tests.support.repo import ROOT

CASES = ROOT / "tests" / "cases" / "README.md"
WHERE = "test or what it waits for"
TABLES = [
    ("ARCHITECTURE.md", "guarded by"),
    ("docs/durability.md", "tried by"),
    ("tests/cases/README.md", WHERE),
]


@pytest.mark.parametrize(("document", "heading"), TABLES)
def test_every_test_that_a_document_names_exists(document: str, heading: str) -> None:
    found = problems(ROOT, (ROOT / document).read_text(encoding="utf-8"), heading)
    assert not found, "\n".join([document, *found])


def listed() -> list[str]:
    """The cases that the list of ours has, in its order."""
    found = rows(CASES.read_text(encoding="utf-8"), WHERE)
    return [plain(row.cells["case"]) for row in found]


def plain(cell: str) -> str:
    """A cell without the marks of its text."""
    return re.sub(r"[*`]", "", cell).strip()


def test_every_case_has_one_row() -> None:
    cases = listed()
    assert not {case for case in cases if cases.count(case) > 1}
    numbered = {f"S{n:02}" for n in range(2, 92, 2)} | {f"W{n:02}" for n in range(2, 80, 2)}
    assert {case for case in cases if re.fullmatch(r"[SW]\d\d", case)} == numbered


def test_the_cases_are_those_of_the_public_lists() -> None:
    cases = set(listed())
    texts = {name: case_file(name).read_text() for name in ("serving.md", "writer.md", "peers.md")}
    numbered = set(re.findall(r"\*\*([SW]\d\d)\*\*", texts["serving.md"] + texts["writer.md"]))
    assert {case for case in cases if re.fullmatch(r"[SW]\d\d", case)} == numbered
    peers = {plain(row.cells["where"]) for row in rows(texts["peers.md"], "where")}
    assert len(peers) > 10
    assert not peers - cases


DOCUMENT = """
| case | tried by | note |
|---|---|---|
| a | `tests/test_a.py::test_one`, `::test_two` | `tests/none.py` is no matter here |
| b \\| c | waits for issue 9 | |

| other | table |
|---|---|
| `tests/none.py` | |
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project with tests in Python and Rust, and a bench case."""
    texts = {
        "tests/test_a.py": "def test_one() -> None:\n    pass\n\nasync def test_two():\n    pass\n",
        "tests/support.py": "def helper() -> None:\n    pass\n",
        "rust_core/src/path/batch.rs": (
            "#[cfg(test)]\nmod t {\n    fn made() {}\n\n"
            "    #[test]\n    #[ignore]\n    /// why\n    fn a_row() {}\n}\n"
        ),
        "rust_core/src/journal/tests/mod.rs": "#[tokio::test]\nasync fn b() {}\n",
        "rust_core/src/path/dedupe.rs": "mod tests;\n",
        "rust_core/src/path/dedupe/tests.rs": "#[test]\nfn a_key() {}\n",
        "rust_core/src/row.rs": "fn a_row() {}\n",
        "rust_core/src/models/name.rs": "fn a_row() {}\n",
        "bench/cases/saturated/case.toml": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_only_tables_with_the_column_are_read_and_each_row_has_its_line() -> None:
    found = rows(DOCUMENT, "tried by")
    assert [(row.line, row.cells["case"]) for row in found] == [(4, "a"), (5, "b \\| c")]


def test_a_document_whose_tests_exist_has_no_problem(project: Path) -> None:
    assert problems(project, DOCUMENT, "tried by") == []


@pytest.mark.parametrize(
    "cell",
    [
        "`tests/test_a.py`",
        "`path/batch.rs::a_row` and more",
        "`rust_core/src/path/batch.rs` tests",
        "`path/dedupe.rs` tests, `path/dedupe.rs::a_key`",
        "`journal/` tests, `journal/tests/mod.rs::b`",
        "crate border (`tests/test_a.py`), `bench/cases/saturated`",
        "`make fuzz`, then `tests/test_a.py::test_one`",
        "not tried: no such disk here",
        "waits for issue 7: rollouts",
    ],
)
def test_what_exists_is_found(project: Path, cell: str) -> None:
    assert missing(project, cell) == []


@pytest.mark.parametrize(
    "cell",
    [
        "`tests/test_b.py`",
        "`tests/test_a.py::test_three`",
        "`tests/test_a.py::test_on`",
        "`tests/support.py`",
        "`tests/support.py::helper`",
        "`tests/test_a.py::test_one`, `::test_three`",
        "`path/batch.rs::a_column`",
        "`path/batch.rs::made`",
        "`path/batch.rs::a_ro`",
        "`row.rs`",
        "`row.rs::a_row`",
        "`models/`",
        "`bench/cases/none`",
        "`::test_one`",
        "by hand",
        "",
        "waits for",
    ],
)
def test_what_does_not_exist_is_told(project: Path, cell: str) -> None:
    assert len(missing(project, cell)) == 1


def test_a_document_without_the_column_is_told(project: Path) -> None:
    assert problems(project, "no table", "tried by") == ["no table has a column 'tried by'"]
