"""The tests that a document's table names, and whether they exist.

In backticks: `tests/a/test_b.py::test_c` or the file alone; of the core `path/batch.rs::name`, the
file, or a folder, counted from `rust_core/src/` or from the project; `bench/cases/name`. `::test_d`
is another one of the file named before it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_SPAN = re.compile(r"`([^`\s]+)`")
_NAMED = re.compile(r"(?P<path>[\w./-]*)(?:::(?P<name>\w+))?")
_RUST_TEST = r"(?:#\[(?:\w+::)*test\b[^\n]*\]|\bfuzz_target!)"
_RUST_BETWEEN = r"(?:\s*(?:#\[[^\n]*\]|///?[^\n]*))*\s*(?:pub )?(?:async )?"
_EXCUSE = re.compile(r"\b(?:waits for|not tried:) \S")
_SEPARATOR = re.compile(r":?-+:?")


@dataclass(frozen=True)
class Row:
    """A row of a table: its line in the document, and its cells by heading."""

    line: int
    cells: dict[str, str]


def rows(markdown: str, heading: str) -> list[Row]:
    """The rows of all tables that have a column with this heading."""
    found: list[Row] = []
    headings: list[str] = []
    before: list[str] = []
    for number, line in enumerate(markdown.splitlines(), 1):
        if not line.lstrip().startswith("|"):
            headings, before = [], []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if all(_SEPARATOR.fullmatch(cell) for cell in cells):
            headings = before
        elif heading in headings:
            found.append(Row(number, dict(zip(headings, cells, strict=False))))
        before = cells
    return found


def missing(root: Path, cell: str) -> list[str]:
    """What a cell names and is not there; a cell that neither names a test nor says why is told."""
    named, problems, last = 0, [], ""
    for span in _SPAN.findall(cell):
        match = _NAMED.fullmatch(span)
        if not match or not (match["path"] or match["name"]) or not _is_test(span):
            continue
        last = match["path"] or last
        named += 1
        if not _exists(root, last, match["name"] or ""):
            problems.append(
                f"{last}{'::' if match['name'] else ''}{match['name'] or ''} is no test"
            )
    if not named and not _EXCUSE.search(cell):
        problems.append("names no test, and says neither what it waits for nor why it is not tried")
    return problems


def problems(root: Path, markdown: str, heading: str) -> list[str]:
    """What is wrong in the column `heading` of a document's tables, each with its line."""
    found = rows(markdown, heading)
    if not found:
        return [f"no table has a column {heading!r}"]
    return [
        f"line {row.line}: {what}" for row in found for what in missing(root, row.cells[heading])
    ]


def _is_test(span: str) -> bool:
    """Whether it is meant as a test's name: a word alone is something else."""
    path = span.partition("::")[0]
    return span.startswith("::") or path.endswith((".py", ".rs", "/")) or path.startswith("bench/")


def _exists(root: Path, path: str, name: str) -> bool:
    places = [root / path, root / "rust_core" / "src" / path]
    place = next((place for place in places if place.exists()), None)
    if not path or place is None:
        return False
    if path.startswith("bench/cases/"):
        return (place / "case.toml").is_file() and not name
    if place.is_dir():
        return not name and any(_tests(file, "") for file in place.rglob("*.rs"))
    beside = place.with_suffix("") / "tests.rs"  # a Rust file's tests may have a file of their own
    return any(_tests(file, name) for file in (place, beside) if file.is_file())


def _tests(file: Path, name: str) -> bool:
    """Whether the file has tests, or the one of this name."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py" and name and not name.startswith("test_"):
        return False
    if file.suffix == ".py":
        return bool(
            re.search(rf"^\s*(?:async )?def {name or 'test_'}{'[(]' if name else ''}", text, re.M)
        )
    return bool(re.search(_RUST_TEST + (rf"{_RUST_BETWEEN}fn {name}\b" if name else ""), text))
