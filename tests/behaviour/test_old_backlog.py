"""A backlog that grows old: bulk is shed first, then robots, with a wait; all comes back by itself.

Case W56. Where the bound counts from, and that it holds for a day of labels, is tested beside it:
`rust_core/src/journal/age.rs`, `rust_core/src/journal/tests/bounds.rs`. About 8 s.
"""

from __future__ import annotations

import labeler
from labeler.client.requests import Priority
from labeler.telemetry import names
from tests.support.accounting import balanced
from tests.support.database import write_locked
from tests.support.load import WIDTH
from tests.support.service import StartService
from tests.support.waiting import eventually

READINGS = [1.0] * WIDTH
AGE_MS_MAX = 5000


def test_bulk_is_shed_before_robots_while_the_oldest_label_grows_old_until_the_store_is_back(
    start_service: StartService,
) -> None:
    service = start_service(journal__pending_age_ms_max=AGE_MS_MAX)
    refused: dict[Priority, labeler.OverloadedError] = {}
    order: list[Priority] = []
    with labeler.Client(service.address, timeout_ms=5000, attempts_max=1) as client:
        sequences = iter(range(1, 1_000_000))

        def ask(priority: Priority) -> bool:
            try:
                client.label("robot", next(sequences), READINGS, priority=priority)
            except labeler.OverloadedError as error:
                if priority not in refused:
                    refused[priority] = error
                    order.append(priority)
                return False
            return True

        def both() -> bool:
            # Bulk first: a pause of the machine between the two hides no turn of bulk.
            return not ask("BULK") and not ask("ROBOT")

        with write_locked(service.database):
            assert ask("ROBOT")
            eventually(both, timeout_s=60)
            assert service.metrics().sum(names.JOURNAL_AGE.name) > AGE_MS_MAX * 1000
        assert order == ["BULK", "ROBOT"]
        for priority, error in refused.items():
            assert error.retry_after_ms > 0
            assert f"journal.pending_age_ms_max, {AGE_MS_MAX} ms" in error.message
            assert ("80 % of" in error.message) == (priority == "BULK")
        eventually(lambda: ask("BULK") and ask("ROBOT"), timeout_s=60)
    balanced(service)
