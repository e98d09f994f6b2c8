"""Reads a scrape of the admin port, and the accounting of invariant 11 in it.

The one place in the tests that spells metric names.
"""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

OUTCOMES = ("answered", "rejected", "expired", "cancelled", "failed")
ENDINGS = ("stored", "superseded", "dead")


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
        return {
            s.labels["method"] for s in self.samples if s.name == "labeler_requests_received_total"
        }

    def requests(self, method: str) -> Balance:
        """Requests of one method: received, and how they ended or that they are in flight."""
        parts = {
            outcome: self.sum(f"labeler_requests_{outcome}_total", method=method)
            for outcome in OUTCOMES
        }
        parts["in_flight"] = self.sum("labeler_requests_in_flight", method=method)
        return Balance(self.sum("labeler_requests_received_total", method=method), parts)

    def records(self) -> Balance:
        """Records of the journal: journaled, and how they ended or that they are pending."""
        parts = {end: self.sum(f"labeler_records_{end}_total") for end in ENDINGS}
        parts["pending"] = self.sum("labeler_records_pending")
        return Balance(self.sum("labeler_records_journaled_total"), parts)
