"""docs/dynamodb.md says what is so: attributes, permissions, problems, and what a label weighs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from labeler.stores.base import Problem, Query
from labeler.stores.dynamodb import DynamoStore
from labeler.stores.dynamodb.items import item_of, size_bytes
from tests.support.dynamodb import DynamoTable, servers
from tests.support.repo import read
from tests.support.stores import OpenStore, aws_variables, dynamodb_settings, opened, row

TEXT = read("docs/dynamodb.md")


def first_cells(after: str) -> list[str]:
    """The first column of the table below a heading."""
    part = TEXT.partition(after)[2].partition("\n## ")[0]
    return [line.split("|")[1].strip() for line in part.splitlines() if line.startswith("| `")]


def test_every_attribute_of_an_item_stands_in_the_table() -> None:
    named = [name for cell in first_cells("## The table") for name in re.findall(r"`(\w+)`", cell)]
    assert named == list(item_of(row(1), retention_s=1))


def test_every_problem_says_what_to_do() -> None:
    assert sorted(first_cells("## When something is wrong")) == sorted(
        f"`{kind}`" for kind in get_args(Problem)
    )


def test_the_weight_of_an_item_is_that_of_an_ordinary_label() -> None:
    identity = "b6d1c2a8-1111-2222-3333-444455556666"
    ordinary = row(
        123_456,
        robot_id="robot-0017",
        confidence=0.9731234,
        model="kiva-floor",
        labeled_at_unix_us=1_764_668_000_123_456,
        captured_at_unix_us=1_764_668_000_100_000,
        sku="SKU-004711",
        instance_id=identity,
        journal_id=identity,
        journal_number=99_887_766,
    )
    [told] = re.findall(r"An item weighs about (\d+) bytes", TEXT)
    assert round(size_bytes(ordinary, 0), -1) == int(told)


@pytest.mark.parametrize(("column", "rate"), [(2, 1150), (3, 2300)])
def test_the_arithmetic_of_the_costs_is_right(column: int, rate: int) -> None:
    lines = [line for line in TEXT.partition("## Capacity")[2].splitlines() if line[:1] == "|"]
    cells = {line.split("|")[1].strip(): line.split("|")[column] for line in lines}
    month = rate * 730 * 3600 / 1e6
    stored = rate * 86_400 * (290 + 100) / 1e9

    def number(name: str) -> float:
        return float(re.findall(r"\d[\d,]*", cells[name])[0].replace(",", ""))

    assert number("labels a month, as many write request units (WRU)") == round(month)
    units = number("provisioned, 30 % above the rate")
    assert units == round(rate * 1.3, -2)
    assert number("WCU-hours a month") == units * 730
    assert number("stored a day (290 bytes and 100 of overhead)") == round(stored)
    assert number("stored with 7 days' retention") == round(stored * 7)
    assert number("example: on demand, 0.625 $ a million WRU") == round(month * 0.625)
    assert number("example: provisioned, 0.00065 $ a WCU-hour") == round(units * 0.00065 * 730)
    assert number("example: 7 days stored, 0.25 $ a GB and month") == round(stored * 7 * 0.25)


def policies() -> dict[str, set[str]]:
    """The actions of each statement of the document."""
    found: dict[str, set[str]] = {}
    for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL):
        for statement in json.loads(block)["Statement"]:
            found[statement["Sid"]] = set(statement["Action"])
    return found


def asked_of(store: OpenStore) -> set[str]:
    """Collects the actions of the store's client from now on."""
    seen: set[str] = set()
    assert isinstance(store.store, DynamoStore)
    client: Any = store.call(store.store._connect())

    def see(model: Any, **_: object) -> None:
        seen.add(f"dynamodb:{model.name}")

    client.meta.events.register("provide-client-params.dynamodb.*", see)
    return seen


@servers("ministack")
def test_the_policies_name_what_is_called_and_nothing_else(
    labels_table: DynamoTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_variables(monkeypatch, labels_table.server)
    with opened("dynamodb", dynamodb_settings(labels_table), tmp_path, ensure=False) as store:
        served = asked_of(store)
        store.ensure()
        store.write(row(1))
        store.get("robot-1", 1)
        store.list(Query("robot-1"))
        store.confirm_refusal()
        store.check()
        assert served == policies()["LabelerServe"]
        store.call(store.store.write_if_newer([row(1)]))
    assert served - policies()["LabelerServe"] == policies()["LabelerRedrive"]
    served = policies()["LabelerServe"]
    settings = dynamodb_settings(labels_table.server.table(), retention_s=60)
    with opened("dynamodb", settings, tmp_path, ensure=False) as store:
        made = asked_of(store)
        store.create()
        store.check()
    assert made <= policies()["LabelerServe"] | policies()["LabelerEnsure"]
    assert made - served == policies()["LabelerEnsure"]
