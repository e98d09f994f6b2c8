"""The table is made as the settings ask for, compared with them exactly, and never altered.

Cases W30, W66.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner, Result

from labeler.cli.app import app_for
from labeler.errors import ConfigError, DiskError
from labeler.stores.base import StoreUnavailableError
from tests.support.dynamodb import DynamoServer, DynamoTable, servers
from tests.support.fault_proxy import FaultProxy
from tests.support.faults.account import Credentials, Described, TableCreating, TableMissing
from tests.support.faults.kinds import Gone, ServerError
from tests.support.service import environment
from tests.support.stores import OpenStore, aws_variables, dynamodb_settings, opened, row


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch, dynamodb: DynamoServer) -> None:
    """Credentials of the server."""
    aws_variables(monkeypatch, dynamodb)


@pytest.fixture
def proxy(dynamodb: DynamoServer) -> Iterator[FaultProxy]:
    """In front of the server, with no fault switched on."""
    with FaultProxy(dynamodb.url) as found:
        yield found


def described(table: DynamoTable) -> dict[str, Any]:
    found: dict[str, Any] = table.server.client().describe_table(TableName=table.name)["Table"]
    return found


def named(store: OpenStore) -> dict[str, tuple[str, str]]:
    """Each difference's name with what was expected and found."""
    return {item.name: (item.expected, item.found) for item in store.check()}


def test_ensure_makes_a_table_with_our_keys_on_demand(
    dynamodb: DynamoServer, tmp_path: Path
) -> None:
    table = dynamodb.table()
    with opened("dynamodb", dynamodb_settings(table), tmp_path, ensure=False) as store:
        assert named(store) == {"table": (table.name, "none")}
        store.create()
        assert named(store) == {}
    made = described(table)
    assert made["TableStatus"] == "ACTIVE"
    assert [(key["AttributeName"], key["KeyType"]) for key in made["KeySchema"]] == [
        ("robot_id", "HASH"),
        ("sequence", "RANGE"),
    ]
    assert made["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert "GlobalSecondaryIndexes" not in made


def test_ensure_makes_a_provisioned_table_with_its_units_and_the_index(
    dynamodb: DynamoServer, tmp_path: Path
) -> None:
    table = dynamodb.table()
    settings = dynamodb_settings(
        table,
        billing_mode="provisioned",
        read_capacity_units=7,
        write_capacity_units=11,
        sku_index=True,
    )
    with opened("dynamodb", settings, tmp_path, ensure=False) as store:
        store.create()
        assert named(store) == {}
        store.write(row(1, sku="SKU-9"), row(2, sku=""))
    made = described(table)
    for units in (made, made["GlobalSecondaryIndexes"][0]):
        assert units["ProvisionedThroughput"]["ReadCapacityUnits"] == 7
        assert units["ProvisionedThroughput"]["WriteCapacityUnits"] == 11
    by_sku = dynamodb.client().query(
        TableName=table.name,
        IndexName="by-sku",
        KeyConditionExpression="sku = :sku",
        ExpressionAttributeValues={":sku": {"S": "SKU-9"}},
    )
    assert [item["sequence"]["N"] for item in by_sku["Items"]] == ["1"]


def test_retention_is_a_whole_number_of_ten_digits_and_the_table_expires_by_it(
    dynamodb: DynamoServer, tmp_path: Path
) -> None:
    table, made_us = dynamodb.table(), 1_764_668_000_999_999
    with opened("dynamodb", dynamodb_settings(table, retention_s=604_800), tmp_path) as store:
        store.create()
        store.write(row(1, labeled_at_unix_us=made_us))
        assert named(store) == {}
    [item] = table.items()
    assert item["expires_at_unix_s"] == {"N": "1765272800"}
    ttl = dynamodb.client().describe_time_to_live(TableName=table.name)["TimeToLiveDescription"]
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "expires_at_unix_s")


def test_without_retention_nothing_expires(dynamodb: DynamoServer, tmp_path: Path) -> None:
    table = dynamodb.table()
    with opened("dynamodb", dynamodb_settings(table, create=True), tmp_path) as store:
        store.write(row(1))
    [item] = table.items()
    assert "expires_at_unix_s" not in item
    ttl = dynamodb.client().describe_time_to_live(TableName=table.name)["TimeToLiveDescription"]
    assert ttl["TimeToLiveStatus"] == "DISABLED"


def test_a_table_that_exists_gets_its_time_to_live_and_keeps_its_rows(
    dynamodb: DynamoServer, tmp_path: Path
) -> None:
    table = dynamodb.table().create()
    with opened("dynamodb", dynamodb_settings(table), tmp_path) as store:
        store.write(row(1))
    with opened("dynamodb", dynamodb_settings(table, retention_s=60), tmp_path) as store:
        assert named(store) == {"time to live": ("expires_at_unix_s", "none")}
        store.create()
        assert named(store) == {}
        assert store.get("robot-1", 1) == row(1)


def test_a_time_to_live_by_another_attribute_is_told_and_left(
    dynamodb: DynamoServer, tmp_path: Path
) -> None:
    table = dynamodb.table().create()
    wanted = {"Enabled": True, "AttributeName": "sequence"}
    client = dynamodb.client()
    client.update_time_to_live(TableName=table.name, TimeToLiveSpecification=wanted)
    for retention_s, expected in ((0, "none"), (60, "expires_at_unix_s")):
        settings = dynamodb_settings(table, retention_s=retention_s)
        with opened("dynamodb", settings, tmp_path) as store:
            store.create()
            assert named(store) == {"time to live": (expected, "sequence")}
    found = client.describe_time_to_live(TableName=table.name)["TimeToLiveDescription"]
    assert found["AttributeName"] == "sequence"


def test_every_difference_is_told_with_what_to_do(dynamodb: DynamoServer, tmp_path: Path) -> None:
    table = dynamodb.table().create()
    settings = dynamodb_settings(
        table, billing_mode="provisioned", retention_s=60, sku_index=True, write_capacity_units=9
    )
    with opened("dynamodb", settings, tmp_path) as store:
        found = store.check()
    assert [(item.name, item.expected, item.found) for item in found] == [
        ("dynamodb.billing_mode", "PROVISIONED", "PAY_PER_REQUEST"),
        ("time to live", "expires_at_unix_s", "none"),
        (
            "index by-sku",
            "partition key sku (S), sort key labeled_at_unix_us (N)",
            "none",
        ),
    ]
    assert all(item.change for item in found)
    assert "WriteCapacityUnits=9" in found[0].change


SCHEMAS = {
    "names": ([("robot", "HASH"), ("at", "RANGE")], {"robot": "S", "at": "N"}),
    "type": ([("robot_id", "HASH"), ("sequence", "RANGE")], {"robot_id": "S", "sequence": "S"}),
    "no sort key": ([("robot_id", "HASH")], {"robot_id": "S"}),
    "swapped": ([("sequence", "HASH"), ("robot_id", "RANGE")], {"robot_id": "S", "sequence": "N"}),
}


@pytest.mark.parametrize(("schema", "create"), [*zip(SCHEMAS, [False, True] * 2, strict=True)])
def test_a_table_with_other_keys_stops_the_start_naming_both(
    dynamodb: DynamoServer, tmp_path: Path, schema: str, create: bool
) -> None:
    keys, types = SCHEMAS[schema]
    table = dynamodb.table().create(
        KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys],
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": kind} for name, kind in types.items()
        ],
    )
    settings = dynamodb_settings(table, create=create)
    with opened("dynamodb", settings, tmp_path, ensure=False) as store:
        with pytest.raises(ConfigError) as caught:
            store.ensure()
        assert caught.value.exit_code == 64
        assert "expected partition key robot_id (S), sort key sequence (N)" in str(caught.value)
        for name, kind in types.items():
            assert f"{name} ({kind})" in str(caught.value).partition("found")[2]
        assert [item.name for item in store.check()] == ["key schema"]
        with pytest.raises(StoreUnavailableError) as refused:
            store.confirm_refusal()
        assert refused.value.kind == "table"


def test_a_missing_table_does_not_stop_the_start_and_is_a_problem_of_the_table(
    dynamodb: DynamoServer, tmp_path: Path
) -> None:
    table = dynamodb.table()
    with opened("dynamodb", dynamodb_settings(table), tmp_path) as store:
        for attempt in (lambda: store.write(row(1)), store.confirm_refusal):
            with pytest.raises(StoreUnavailableError) as caught:
                attempt()
            assert caught.value.kind == "table"
        store.create()
        assert store.statuses(row(1)) == ["stored"]


@servers("ministack")
def test_a_table_in_the_making_is_waited_for_by_ensure_and_by_nobody_else(
    dynamodb: DynamoServer, proxy: FaultProxy, tmp_path: Path
) -> None:
    table = dynamodb.table()
    settings = dynamodb_settings(table, proxy.url, retention_s=60)
    making = proxy.on(TableCreating(seconds=1.5, then_missing_s=0.5))
    with opened("dynamodb", settings, tmp_path, ensure=False) as store:
        store.create()
        assert making.hits >= 2
        assert described(table)["TableStatus"] == "ACTIVE"
        proxy.off()
        proxy.on(TableCreating(seconds=3600))
        store.ensure()
        assert named(store)["status"] == ("ACTIVE", "CREATING")
        with pytest.raises(StoreUnavailableError) as caught:
            store.write(row(1))
        assert caught.value.kind == "table"
        with pytest.raises(StoreUnavailableError):
            store.confirm_refusal()


@servers("ministack")
def test_a_table_that_is_not_made_in_time_is_told(
    dynamodb: DynamoServer,
    proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("labeler.stores.dynamodb.table.WAIT_S_MAX", 0.2)
    table = dynamodb.table()
    proxy.on(TableCreating(seconds=3600))
    with opened("dynamodb", dynamodb_settings(table, proxy.url), tmp_path, ensure=False) as store:
        with pytest.raises(StoreUnavailableError, match="CREATING after") as caught:
            store.create()
        assert caught.value.kind == "table"


@servers("ministack")
@pytest.mark.parametrize(
    "fault", [Gone(), TableMissing(), ServerError(operations=()), Credentials("denied")], ids=repr
)
def test_no_fault_of_the_service_stops_the_start(
    dynamodb: DynamoServer,
    proxy: FaultProxy,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    fault: Any,
) -> None:
    table = dynamodb.table().create()
    with opened("dynamodb", dynamodb_settings(table, proxy.url), tmp_path, ensure=False) as store:
        with proxy.on(fault), caplog.at_level(logging.WARNING, "labeler"):
            store.ensure()
        assert len([line for line in caplog.records if line.name.startswith("labeler")]) == 1
        assert store.statuses(row(1)) == ["stored"]


@servers("ministack")
@pytest.mark.parametrize("status", ["UPDATING", "DELETING", "ARCHIVED"])
def test_only_a_table_in_use_confirms_a_refusal_and_is_asked_once_a_second(
    dynamodb: DynamoServer, proxy: FaultProxy, tmp_path: Path, status: str
) -> None:
    table = dynamodb.table().create()
    with opened("dynamodb", dynamodb_settings(table, proxy.url), tmp_path) as store:
        with proxy.on(Described({"TableStatus": status})) as asked:
            for _ in range(3):
                if status == "UPDATING":
                    store.confirm_refusal()
                else:
                    with pytest.raises(StoreUnavailableError) as caught:
                        store.confirm_refusal()
                    assert caught.value.kind == "table"
        assert asked.hits == (1 if status == "UPDATING" else 3)


def labeler(*arguments: str) -> Result:
    """Runs a command in this process, with the environment as the test has it, less our own."""
    with patch.dict(os.environ, environment({}), clear=True):
        return CliRunner().invoke(app_for(arguments), list(arguments))


def store_command(table: DynamoTable, command: str, *more: str, url: str = "") -> list[str]:
    flags = {
        "writer.store": "dynamodb",
        "dynamodb.region": table.server.region,
        "dynamodb.endpoint_url": url or table.server.url,
        "dynamodb.table": table.name,
    }
    sets = [part for name, value in flags.items() for part in ("--set", f"{name}={value}")]
    return ["store", command, *sets, *more]


def test_the_command_makes_the_table_and_says_what_differs(dynamodb: DynamoServer) -> None:
    table = dynamodb.table()
    missing = labeler(*store_command(table, "check"))
    assert missing.exit_code == 1
    assert "labeler store ensure" in missing.output
    made = labeler(*store_command(table, "ensure"))
    assert (made.exit_code, made.output) == (0, "dynamodb: as the settings ask for\n")
    other = labeler(
        *store_command(table, "check", "--json", "--set", "dynamodb.billing_mode=provisioned")
    )
    assert other.exit_code == 1
    [difference] = json.loads(other.output)["differences"]
    assert difference["name"] == "dynamodb.billing_mode"


@servers("ministack")
def test_the_command_says_in_one_line_what_stops_it(
    dynamodb: DynamoServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = dynamodb.table()
    gone = labeler(*store_command(table, "ensure", url="http://127.0.0.1:1"))
    assert isinstance(gone.exception, StoreUnavailableError)
    assert "127.0.0.1:1" in str(gone.exception)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    command = [sys.executable, "-m", "labeler.cli", *store_command(table, "check")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment({})
    )
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (64, 1)
    assert "aws_access_key_id" in done.stderr.lower()


@servers("ministack")
def test_the_command_knows_sqlite_too(dynamodb: DynamoServer, tmp_path: Path) -> None:
    where = ["--set", f"state_dir={tmp_path / 'state'}"]
    assert labeler("store", "check", *where).exit_code == 1
    assert not (tmp_path / "state").exists()
    assert labeler("store", "ensure", *where).exit_code == 0
    assert labeler("store", "check", *where).exit_code == 0
    (tmp_path / "state" / "labels.sqlite3").write_bytes(b"no database at all" * 100)
    damaged = labeler("store", "check", *where)
    assert isinstance(damaged.exception, DiskError)
