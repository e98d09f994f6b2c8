"""The gate's command: exact figures of the base and of this tree, compared; no time is measured.

`python -m bench.gate.run`, from `make bench-gate`. Exit codes: 0 no regression, or nothing to
compare with, which it says; 1 a regression, with a line that names it; 2 it could not be measured.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench.gate import figures, judge, trees

__all__ = ["main"]


def main(root: Path = trees.ROOT) -> int:
    """The exit code, see above, for the tree at `root`."""
    try:
        found = trees.base_of(os.environ, root)
        if not found:
            print("gate: no commit to compare with, so nothing is compared")
            return 0
        base, how = found
        print(f"gate: base {base[:12]} ({how}), head is this tree", flush=True)
        return _gate(base, root)
    except (trees.TreeError, figures.FiguresError) as error:
        print(f"gate: {error}", file=sys.stderr)
        return 2


def _gate(base: str, root: Path) -> int:
    folder = figures.target_folder() / "gate" / "base"
    with trees.checked_out(base, folder, root) as tree:
        if not figures.has_micro(tree):
            print("gate: the base has no micro-benchmarks, so nothing is compared")
            return 0
        before = figures.measure(tree)
    after = figures.measure(root)
    accepted = trees.accepted(base, root)
    compared = judge.compare(before, after, accepted)
    print("\n".join(judge.lines(compared, accepted)))
    return 1 if any(c.verdict == "regression" for c in compared) else 0


if __name__ == "__main__":
    sys.exit(main())
