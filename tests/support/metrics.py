"""Reads a scrape of the admin port, and the accounting of invariant 11 in it.

Names come from the registry, `labeler.telemetry.names`.
"""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from labeler.telemetry import names

OUTCOMES = ("answered", "rejected", "expired", "cancelled", "failed")


@dataclass(frozen=True)
class Balance:
    """Two sides that are equal at rest: what came in, and where it is now."""

    entered: float
    parts: dict[str, float]

    @property
    def missing(self) -> float:
        """What came in and is nowhere; 0 at rest."""
        return self.entered - sum(self.parts.values())


class Metrics:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        """Parses the Prometheus text format."""
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name whose labels include these. 0 where there is none."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def names(self) -> set[str]:
        """All sample names."""
        return {sample.name for sample in self.samples}

    def methods(self) -> set[str]:
        """The methods that requests were counted for."""
        received = names.REQUESTS_RECEIVED.name
        return {sample.labels["method"] for sample in self.samples if sample.name == received}

    def requests(self, method: str) -> Balance:
        """Requests of one method: received, and how they ended or that they are in flight."""
        parts = {
            outcome: self.sum(names.REQUESTS.name, method=method, outcome=outcome)
            for outcome in OUTCOMES
        }
        parts["in_flight"] = self.sum(names.REQUESTS_IN_FLIGHT.name, method=method)
        return Balance(self.sum(names.REQUESTS_RECEIVED.name, method=method), parts)

    def records(self) -> Balance:
        """Records of the journal: journaled, and how they ended or that they are pending."""
        parts = {
            "stored": self.sum(names.RECORDS_STORED.name),
            "superseded": self.sum(names.RECORDS_SUPERSEDED.name),
            "dead": self.sum(names.RECORDS_DEAD.name),
            "pending": self.sum(names.RECORDS_PENDING.name),
        }
        return Balance(self.sum(names.RECORDS_JOURNALED.name), parts)
