"""The DynamoDB store at work: what it sends, how it is started, whose credentials it signs with.

Cases W14, W20, W22, W24, W26, W68. What all stores share is in `test_stores.py`, what goes wrong in
`test_dynamodb_errors.py`.
"""

from __future__ import annotations

import asyncio
import configparser
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiobotocore.endpoint  # type: ignore[import-untyped]
import pytest

from labeler.config import Facts, Sources, load
from labeler.errors import ConfigError
from labeler.stores import registry
from labeler.stores.base import Query, StoreUnavailableError
from labeler.stores.dynamodb import DynamoStore
from labeler.stores.dynamodb.items import item_of
from labeler.stores.dynamodb.sending import Sender
from tests.support.agent import Agent
from tests.support.dynamodb import DynamoTable, servers
from tests.support.fault_proxy import FaultProxy
from tests.support.faults.account import Credentials
from tests.support.stores import OpenStore, aws_variables, dynamodb_settings, opened, row


@pytest.fixture
def store(
    labels_table: DynamoTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenStore]:
    aws_variables(monkeypatch, labels_table.server)
    settings = dynamodb_settings(labels_table, retention_s=3600)
    with opened("dynamodb", settings, tmp_path) as found:
        yield found


def client_of(store: OpenStore) -> Any:
    assert isinstance(store.store, DynamoStore)
    client = store.store._client
    assert client is not None
    return client


def test_the_ready_made_body_leaves_the_same_items_as_the_plain_call(
    store: OpenStore, labels_table: DynamoTable
) -> None:
    batch = [
        row(1),
        row(2, confidence=math.nan, sku=""),
        row(3, confidence=math.inf, label='"\\\n\x00é\U0001f916'),
        row(4, confidence=-0.1),
        row(2**63 - 1, captured_at_unix_us=2**64 - 1, journal_number=2**63),
    ]
    assert store.statuses(*batch) == ["stored"] * len(batch)
    ours = labels_table.items()
    plain = [{"PutRequest": {"Item": item_of(written, 3600)}} for written in batch]
    store.call(client_of(store).batch_write_item(RequestItems={labels_table.name: plain}))
    assert labels_table.items() == ours
    assert len(ours) == len(batch)


def test_a_row_that_dynamodb_cannot_hold_is_refused_alone_before_it_is_sent(
    store: OpenStore, labels_table: DynamoTable
) -> None:
    bad = [
        row(100, label="x" * 410_000),
        row(101, robot_id=""),
        row(102, robot_id="r" * 2049),
        row(103, sku="\ud800"),
    ]
    good = [row(n) for n in range(1, 22)]
    for place in (0, 10, 21):
        batch = [*good[:place], *bad, *good[place:]]
        found = store.write(*batch)
        refused = [item for item, outcome in zip(batch, found, strict=True) if outcome.reason]
        assert refused == bad
    assert len(labels_table.rows()) == len(good)
    assert store.statuses(*bad) == ["refused"] * 4


@servers("ministack")
@pytest.mark.parametrize("way", ["hook", "client"])
def test_a_write_is_sent_from_the_hook_and_else_by_the_client_with_the_same_items(
    labels_table: DynamoTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """What the hook cannot sign it leaves to the client: botocore makes a request then."""
    aws_variables(monkeypatch, labels_table.server)
    attach = Sender.attach

    def without_session(self: Sender, events: Any) -> None:
        self._session = None
        attach(self, events)

    if way == "client":
        monkeypatch.setattr(Sender, "attach", without_session)
    requests: list[str] = []
    with opened("dynamodb", dynamodb_settings(labels_table), tmp_path) as found:
        client_of(found).meta.events.register(
            "request-created.dynamodb.*",
            lambda operation_name, **_: requests.append(operation_name),
        )
        assert found.statuses(row(1), row(2)) == ["stored"] * 2
    assert requests == ([] if way == "hook" else ["BatchWriteItem"])
    assert labels_table.items() == [item_of(row(1)), item_of(row(2))]


def test_a_write_holds_at_most_what_a_call_may(store: OpenStore) -> None:
    assert store.store.limits.rows_max == 25
    with pytest.raises(AssertionError):
        store.call(store.store.write([row(n) for n in range(26)]))


@servers("ministack")
def test_reads_are_strongly_consistent(store: OpenStore) -> None:
    """No server here has stale reads: what is asked for is all that can be seen."""
    asked: list[dict[str, Any]] = []
    events = client_of(store).meta.events
    events.register(
        "provide-client-params.dynamodb.*", lambda params, **_: asked.append(dict(params))
    )
    store.get("robot-1", 1)
    store.list(Query("robot-1"))
    store.list(Query("robot-1", from_unix_us=1))
    assert [params["ConsistentRead"] for params in asked] == [True] * 3


@servers("ministack")
def test_a_store_that_was_not_opened_or_was_closed_says_so(
    labels_table: DynamoTable, store: OpenStore, tmp_path: Path
) -> None:
    store.call(store.store.close())
    store.call(store.store.close())
    for attempt in (
        lambda: store.write(row(1)),
        lambda: store.get("robot-1", 1),
        lambda: store.list(Query("robot-1")),
        store.confirm_refusal,
    ):
        with pytest.raises(StoreUnavailableError, match="closed"):
            attempt()


@servers("ministack")
def test_the_loop_turns_while_the_client_is_made(
    labels_table: DynamoTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client reads certificates and descriptions on another thread than the loop's."""
    aws_variables(monkeypatch, labels_table.server)
    threads: list[str] = []
    made = aiobotocore.endpoint.AioEndpoint.__init__

    def seen(self: Any, *arguments: Any, **named: Any) -> None:
        threads.append(threading.current_thread().name)
        made(self, *arguments, **named)

    monkeypatch.setattr(aiobotocore.endpoint.AioEndpoint, "__init__", seen)
    with opened("dynamodb", dynamodb_settings(labels_table), tmp_path) as store:
        assert store.statuses(row(1)) == ["stored"]
    assert threads
    assert all(name != "test-store" for name in threads)


@servers("ministack")
def test_writes_under_way_at_once_share_the_connections(
    store: OpenStore, labels_table: DynamoTable
) -> None:
    async def many() -> None:
        batches = [[row(n * 25 + m) for m in range(25)] for n in range(40)]
        await asyncio.gather(*(store.store.write(batch) for batch in batches))

    store.call(many())
    assert len(labels_table.rows()) == 1000


# --- settings


def problems(*sets: str, **variables: str) -> str:
    """What the configuration says; empty where it is right."""
    flags = [("--set", text) for text in sets]
    try:
        load(Sources(None, variables, flags), Facts(stores=registry.names()))
    except ConfigError as error:
        return f"{error.exit_code} {error}"
    return ""


REGION = "dynamodb.region=eu-central-1"


@pytest.mark.parametrize(
    "wrong",
    [
        *("dynamodb.retention_s=-1", "dynamodb.retention_s=604800000", "dynamodb.retention_s=7d"),
        *("dynamodb.table=ab", "dynamodb.table=a b c", "dynamodb.billing_mode=free"),
        *("dynamodb.endpoint_url=localhost:8000", "dynamodb.endpoint_url=ftp://x"),
        *("dynamodb.endpoint_url=http://h/path", "dynamodb.region=EU West"),
        *("dynamodb.create=yes", "dynamodb.sku_index=1", "dynamodb.connections_max=0"),
    ],
)
def test_a_setting_that_cannot_be_stops_the_start(wrong: str) -> None:
    found = problems("writer.store=dynamodb", REGION, wrong)
    assert wrong.partition("=")[0] in found
    assert found.startswith("64 configuration: 1 error")


def test_a_region_is_needed_and_only_the_settings_name_it() -> None:
    aws = {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-1", "REGION": "eu-west-1"}
    assert "dynamodb.region" in problems("writer.store=dynamodb", **aws)
    assert problems("writer.store=dynamodb", REGION) == ""
    assert problems("writer.store=sqlite") == ""
    assert problems("writer.store=dynamodb", LABELER_DYNAMODB__REGION="eu-west-1") == ""


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False)])
def test_a_flag_is_true_or_false(text: str, value: bool) -> None:
    config = load(Sources(None, {"LABELER_DYNAMODB__CREATE": text}))
    assert config.settings.dynamodb.create is value


@servers("ministack")
def test_no_address_of_the_environment_is_written_to(
    labels_table: DynamoTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_variables(monkeypatch, labels_table.server)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"):
        monkeypatch.setenv(name, labels_table.server.url)
    settings = dynamodb_settings(labels_table) | {"endpoint_url": "", "region": "eu-west-3"}
    with opened("dynamodb", settings, tmp_path, ensure=False) as store:
        store.call(store.store._connect())  # type: ignore[attr-defined]
        assert client_of(store).meta.endpoint_url == "https://dynamodb.eu-west-3.amazonaws.com"


@servers("ministack")
def test_a_start_without_credentials_says_so_in_one_line(
    labels_table: DynamoTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_variables(monkeypatch, labels_table.server)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    settings = dynamodb_settings(labels_table)
    with opened("dynamodb", settings, tmp_path, ensure=False) as store:
        with pytest.raises(ConfigError) as half:
            store.ensure()
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(ConfigError) as none:
            store.ensure()
    for caught in (half, none):
        assert caught.value.exit_code == 64
        assert len(str(caught.value).splitlines()) == 1


# --- credentials that change


@pytest.fixture
def agent() -> Iterator[Agent]:
    found = Agent(valid_s=15)
    yield found
    found.shutdown()
    found.server_close()


@servers("ministack")
def test_a_container_s_credentials_are_renewed_before_they_end_and_nothing_fails(
    labels_table: DynamoTable, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Valid for 15 s; the token file is replaced, and the key that it gave is over at once."""
    aws_variables(monkeypatch, labels_table.server)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.url)
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
    with FaultProxy(labels_table.server.url) as proxy:
        settings = dynamodb_settings(labels_table, proxy.url)
        with opened("dynamodb", settings, tmp_path) as store:
            assert store.statuses(row(1)) == ["stored"]
            token.write_text("second")
            proxy.on(Credentials("expired", unless_key="AKIA-second"))
            assert store.statuses(row(2)) == ["stored"]
    assert list(dict.fromkeys(agent.asked)) == ["first", "second"]


@servers("ministack")
def test_credentials_that_cannot_be_renewed_are_a_problem_of_credentials_until_they_can(
    labels_table: DynamoTable, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_variables(monkeypatch, labels_table.server)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.url)
    with opened("dynamodb", dynamodb_settings(labels_table), tmp_path) as store:
        agent.valid_s = -60  # over before they arrive
        with pytest.raises(StoreUnavailableError) as caught:
            store.write(row(1))
        assert caught.value.kind == "credentials"
        agent.valid_s = 3600
        assert store.statuses(row(1)) == ["stored"]
        asked = len(agent.asked)
        assert store.statuses(row(2), row(3)) == ["stored", "stored"]
        assert len(agent.asked) == asked


@servers("ministack")
def test_a_profile_s_process_gives_credentials_too(
    labels_table: DynamoTable, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_variables(monkeypatch, labels_table.server)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"Version": 1} | renamed(agent.credentials("file"))))
    profiles = configparser.ConfigParser()
    profiles["profile robots"] = {"credential_process": f"cat {given}"}
    with (tmp_path / "config").open("w") as file:
        profiles.write(file)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "robots")
    with FaultProxy(labels_table.server.url) as proxy:
        proxy.on(Credentials("unrecognized", unless_key="AKIA-file"))
        with opened("dynamodb", dynamodb_settings(labels_table, proxy.url), tmp_path) as store:
            assert store.statuses(row(1)) == ["stored"]


def renamed(credentials: dict[str, str]) -> dict[str, str]:
    return {{"Token": "SessionToken"}.get(name, name): text for name, text in credentials.items()}


@servers("ministack")
def test_a_role_s_token_file_that_is_gone_is_a_problem_of_credentials(
    labels_table: DynamoTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_variables(monkeypatch, labels_table.server)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::000000000000:role/labeler")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "gone"))
    with opened("dynamodb", dynamodb_settings(labels_table), tmp_path, ensure=False) as store:
        store.ensure()
        with pytest.raises(StoreUnavailableError) as caught:
            store.write(row(1))
        assert caught.value.kind == "credentials"
        assert "gone" in str(caught.value)
