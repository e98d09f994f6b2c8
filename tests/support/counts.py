"""How much of a fault a test tries: little in `make test`, all of it in `make test-slow`.

One test, two counts, so that what is tried quickly and what is tried in full can't drift apart.
"""

import os

import pytest

SCALE = int(os.environ.get("LABELER_TEST_SCALE", "1"))


def counts(name: str, quick: int, full: int, full_timeout_s: int) -> pytest.MarkDecorator:
    """The argument `name` of a test: `quick`, and `full` in the slow tests. SCALE multiplies both.

    `full_timeout_s`: what the full count may take at most on a busy machine, for each SCALE.
    """
    marks = (pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(full_timeout_s * SCALE))
    return pytest.mark.parametrize(
        name,
        [
            pytest.param(quick * SCALE, id="quick", marks=pytest.mark.timeout(120 * SCALE)),
            pytest.param(full * SCALE, id="full", marks=marks),
        ],
    )
