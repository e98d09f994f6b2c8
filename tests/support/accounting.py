"""Invariant 11 as a check for the end of every fault test: nothing is unaccounted for at rest."""

from labeler.telemetry import names
from tests.support.metrics import Metrics
from tests.support.service import Service
from tests.support.waiting import eventually


def at_rest(service: Service, timeout_s: float = 30.0) -> Metrics:
    """A scrape with nothing in flight and nothing pending.

    Errors: `AssertionError` when the service does not come to rest in time.
    """

    def resting() -> Metrics | None:
        scrape = service.metrics()
        in_flight = sum(scrape.requests(method).parts["in_flight"] for method in scrape.methods())
        # A label whose caller was answered from memory is not yet a record.
        uncommitted = scrape.sum(names.JOURNAL_UNCOMMITTED.name)
        pending = scrape.records().parts["pending"]
        return None if in_flight or uncommitted or pending else scrape

    found = eventually(resting, timeout_s)
    assert found is not None
    return found


def balanced(service: Service, timeout_s: float = 30.0) -> Metrics:
    """A scrape at rest in which both sums are exact; the sums are printed.

    Errors: `AssertionError` with the sum that is not exact, or where it does not come to rest.
    """
    scrape = at_rest(service, timeout_s)
    sums = {method: scrape.requests(method) for method in sorted(scrape.methods())}
    sums["records"] = scrape.records()
    for name, balance in sums.items():
        print(f"{name}: {balance.entered:.0f} = {balance.parts}")
    wrong = {name: balance for name, balance in sums.items() if balance.missing}
    assert not wrong, wrong
    return scrape
