"""Prints our row of figures: sizes of files and functions, counted as the tidy test counts.

Run by `make check` as `python -m tests.support.tidy_report`; decides nothing.
"""

import ast
from statistics import median, quantiles

from tests.support import rust_source
from tests.support.repo import project_files, read


def main() -> None:
    """Counts and prints, Rust and Python apart."""
    for language, suffix in (("Rust", ".rs"), ("Python", ".py")):
        texts = [read(name) for name in project_files() if name.endswith(suffix) and _ours(name)]
        files = [_lines(text, suffix) for text in texts]
        functions = [size for text in texts for size in _functions(text, suffix)]
        print(f"{language}: file median / p95 {_spread(files)} · function {_spread(functions)}")


def _ours(name: str) -> bool:
    return name.startswith(("rust_core/", "python/"))


def _lines(text: str, suffix: str) -> int:
    return len(rust_source.net_lines(text)) if suffix == ".rs" else len(text.splitlines())


def _functions(text: str, suffix: str) -> list[int]:
    if suffix == ".rs":
        return [function.lines for function in rust_source.functions(text)]
    nodes = ast.walk(ast.parse(text))
    defs = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(n.end_lineno or n.lineno) - n.lineno + 1 for n in defs]


def _spread(sizes: list[int]) -> str:
    if len(sizes) < 2:
        return "-"
    p95 = quantiles(sizes, n=20, method="inclusive")[-1]
    return f"{median(sizes):.0f} / {p95:.0f} / max {max(sizes)} (of {len(sizes)})"


if __name__ == "__main__":
    main()
