"""A service that writes to DynamoDB through the fault proxy, its robots, and the audit of both."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import labeler
from labeler.telemetry import names
from labeler.writer.dead_letters import DeadLetters
from tests.support.accounting import balanced
from tests.support.audit import Audit, at_dynamodb, nothing_lost, through
from tests.support.dynamodb import DynamoTable
from tests.support.fault_proxy import FaultProxy
from tests.support.load import Fleet, Robot, readings, robots
from tests.support.service import Service, serve
from tests.support.waiting import eventually


@dataclass
class Place:
    """A service that writes through a proxy to a table, and what it has told its robots."""

    service: Service
    table: DynamoTable
    proxy: FaultProxy
    fleet: list[Robot]
    letters_before: int = 0
    """Dead letters of earlier lives of the service."""

    def tell(self, count: int, seed: int) -> None:
        """Lets the robots be told `count` more labels, none refused."""
        with Fleet(self.service.address, self.fleet, seed) as sending:
            goal = sending.acknowledged() + count
            eventually(lambda: sending.acknowledged() >= goal, timeout_s=60)
        assert not [error for robot in self.fleet for error in robot.refused]

    def tell_at_once(self, count: int, seed: int) -> list[labeler.LabelQuery]:
        """The same in batches of up to 1,000, so that writes are full."""
        rng, queries = random.Random(seed), []
        for number in range(count):
            robot = self.fleet[number % len(self.fleet)]
            robot.sent += 1
            queries.append(labeler.LabelQuery(robot.robot_id, robot.sent, readings(rng)))
        with labeler.Client(self.service.address, timeout_ms=20_000) as client:
            client.wait_ready(10_000)
            results = [
                result
                for first in range(0, count, 1000)
                for result in client.label_batch(queries[first : first + 1000])
            ]
        by_id = {robot.robot_id: robot for robot in self.fleet}
        for query, result in zip(queries, results, strict=True):
            assert isinstance(result, labeler.Label), result
            by_id[query.robot_id].acknowledged[query.sequence] = result.label
        return queries

    def count(self, metric: names.Metric, **labels: str) -> float:
        """A figure of now."""
        return self.service.metrics().sum(metric.name, **labels)

    def problem(self, kind: str) -> bool:
        """Whether this is why nothing is stored now."""
        return self.count(names.WRITER_PROBLEM, kind=kind) == 1

    def new_robots(self, seed: int, count: int = 3) -> None:
        """Robots that no other test has."""
        self.fleet[:] = [Robot(f"robot-{seed}-{number}") for number in range(count)]

    def audited(self, dead: int = 0) -> Audit:
        """At rest nothing is lost or doubled, and so many of the robots' are dead letters."""
        rest = balanced(self.service, 60)
        found = nothing_lost(self.fleet, self.table, self.service.state_dir)
        assert (found.dead, found.pending) == (dead, 0)
        with closing(DeadLetters(self.service.state_dir)) as letters:
            mine = letters.count() - self.letters_before
            assert mine == rest.records().parts["dead"], "as many letters as confirmations"
        through(self.proxy)
        return found


@contextmanager
def placed(table: DynamoTable, folder: Path, seed: int, **more: Any) -> Iterator[Place]:
    """A service of one's own at an empty table; `more` of its settings."""
    with FaultProxy(table.server.url, seed) as proxy:
        settings: dict[str, Any] = at_dynamodb(table, proxy.url, **more)
        service = serve(folder / "state", **settings)
        try:
            yield Place(service.wait_ready(), table, proxy, robots(3))
        finally:
            service.close()
            print(f"--- log of service {service.pid}:", *service.stderr[-40:], sep="\n")
