"""Credentials of each source run out or are replaced beside a real service: W14, botocore #3134.

A container's agent, STS for a web identity and an instance's metadata answer over HTTP. Slow
ones: about 10 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import labeler
from labeler.telemetry import names
from tests.support.accounting import balanced
from tests.support.agent import Agent
from tests.support.dynamodb import DynamoServers, DynamoTable
from tests.support.faults.account import Credentials
from tests.support.place import placed
from tests.support.preload import prefix
from tests.support.waiting import eventually


@pytest.fixture
def table(dynamodb_servers: DynamoServers) -> DynamoTable:
    """An empty table of the test's own."""
    return dynamodb_servers.get("ministack").table().create()


@pytest.fixture
def agent() -> Iterator[Agent]:
    """Gives keys for 15 s."""
    found = Agent(valid_s=15)
    yield found
    found.close()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """What the source is asked with."""
    path = tmp_path / "token"
    path.write_text("first")
    return path


def variables(source: str, agent: Agent, token: Path) -> dict[str, str]:
    """Where a service looks for its credentials."""
    if source == "container":
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": agent.url,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        }
    if source == "instance":
        return {
            "AWS_EC2_METADATA_DISABLED": "false",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": agent.root,
        }
    if source == "profile":
        return {"AWS_SHARED_CREDENTIALS_FILE": str(token)}
    return {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
        "AWS_ROLE_ARN": "arn:aws:iam::000000000000:role/labeler",
        "AWS_ENDPOINT_URL_STS": agent.root,
    }


def looking(table: DynamoTable, source: str, agent: Agent, token: Path) -> tuple[str, ...]:
    """Starts a service with no keys but those of its source."""
    rest = {name: text for name, text in table.server.environment.items() if "KEY" not in name}
    return prefix(**rest | variables(source, agent, token))


@pytest.mark.parametrize(
    "source", ["container", pytest.param("web identity", marks=pytest.mark.slow)]
)
def test_credentials_that_are_renewed_cost_one_write_at_most_while_labels_flow(
    table: DynamoTable,
    tmp_path: Path,
    seed: int,
    agent: Agent,
    token: Path,
    source: str,
) -> None:
    """The token file is replaced, the old key over at once; then no key is given that holds."""
    found = looking(table, source, agent, token)
    with placed(table, tmp_path, seed, prefix=found) as place:
        place.tell(30, seed)
        balanced(place.service)
        token.write_text("second")
        with place.proxy.on(Credentials("expired", unless_key="AKIA-second")) as rule:
            place.tell(60, seed + 1)
            place.audited()
        assert rule.hits <= place.count(names.WRITER_LIMIT), "those that were under way"
        used = {call.access_key for call in place.proxy.record.writes()}
        assert used == {"AKIA-first", "AKIA-second"}
        agent.valid_s = -60
        place.tell(20, seed + 2)
        eventually(lambda: place.problem("credentials"))
        agent.valid_s = 3600
        place.audited()


PROFILE = "[default]\naws_access_key_id = AKIA-{0}\naws_secret_access_key = secret\n"


@pytest.mark.parametrize("source", ["profile", pytest.param("instance", marks=pytest.mark.slow)])
def test_credentials_that_are_over_though_they_should_hold_are_looked_for_anew(
    table: DynamoTable,
    tmp_path: Path,
    seed: int,
    agent: Agent,
    token: Path,
    source: str,
) -> None:
    """A file is edited, or a key revoked, of which the AWS library looks at neither again."""
    agent.valid_s = 6 * 3600
    token.write_text(PROFILE.format("first"))
    found = looking(table, source, agent, token)
    with placed(table, tmp_path, seed, prefix=found) as place:
        place.tell(30, seed)
        balanced(place.service)
        token.write_text(PROFILE.format("second"))
        agent.instance_token = "second"
        with place.proxy.on(Credentials("expired", unless_key="AKIA-second")) as rule:
            place.tell(30, seed + 1)
            eventually(lambda: rule.hits >= 1)
            place.audited()
            robot = place.fleet[0]
            with labeler.Client(place.service.address, timeout_ms=5000) as client:
                assert client.get(robot.robot_id, 1).label == robot.acknowledged[1]
        assert place.count(names.WRITER_PROBLEM) == 0
