"""The long random run against DynamoDB, for a short time; and that it would see a lost label.

About 40 s.
"""

import re
from pathlib import Path

import pytest

from tests.support import soak
from tests.support.audit import Audit, audit
from tests.support.dynamodb import DynamoTable
from tests.support.load import Robot

LINE = re.compile(
    r"acknowledged (\d+) stored (\d+) dead (\d+) pending 0 lost (\d+) doubled (\d+)\n"
)


@pytest.mark.slow
def test_a_short_soak_loses_and_doubles_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_S", "20")
    monkeypatch.setenv("SEED", "7")
    assert soak.main() == 0
    said = LINE.fullmatch(capsys.readouterr().out)
    assert said
    acknowledged, stored, dead, lost, doubled = map(int, said.groups())
    assert (lost, doubled) == (0, 0)
    assert stored + dead == acknowledged > 100


@pytest.mark.slow
def test_a_soak_whose_table_lacks_a_row_and_holds_another_answer_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = audit

    def spoiled(fleet: list[Robot], table: DynamoTable, state_dir: Path) -> Audit:
        client, items = table.server.client(), table.items()
        key = {name: items[0][name] for name in ("robot_id", "sequence")}
        client.delete_item(TableName=table.name, Key=key)
        client.put_item(TableName=table.name, Item={**items[1], "label": {"S": "another"}})
        return real(fleet, table, state_dir)

    monkeypatch.setattr(soak, "audit", spoiled)
    monkeypatch.setenv("SOAK_S", "2")
    monkeypatch.setenv("SEED", "8")
    assert soak.main() == 1
    said = LINE.fullmatch(capsys.readouterr().out)
    assert said
    assert said.groups()[3:] == ("1", "1")
