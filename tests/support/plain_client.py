"""A plain client of DynamoDB's API for tests of the fault proxy: botocore's, and raw HTTP."""

from __future__ import annotations

import http.client
import json
from datetime import UTC, datetime
from typing import Any

import botocore.exceptions  # type: ignore[import-untyped]
import pytest

from tests.support.dynamodb import DynamoTable
from tests.support.fault_proxy import FaultProxy
from tests.support.faults.exchange import Key

Timeout = botocore.exceptions.ReadTimeoutError
Closed = botocore.exceptions.ConnectionClosedError
Unreachable = botocore.exceptions.EndpointConnectionError
Refused = botocore.exceptions.ClientError


class Client:
    """Writes and reads through a proxy."""

    def __init__(self, table: DynamoTable, proxy: FaultProxy, **config: Any) -> None:
        self.table = table.name
        self.proxy = proxy
        self.raw = table.server.client(proxy.url, **config)

    def batch(self, keys: list[Key]) -> list[Key]:
        """Writes these; the keys that came back."""
        answer = self.raw.batch_write_item(RequestItems={self.table: [put(key) for key in keys]})
        back = answer.get("UnprocessedItems", {}).get(self.table, [])
        return [_key(one["PutRequest"]["Item"]) for one in back]

    def put(self, key: Key) -> None:
        self.raw.put_item(TableName=self.table, **put(key)["PutRequest"])

    def refused(self, keys: list[Key] | Key) -> dict[str, Any]:
        """The whole answer to a call that is refused."""
        with pytest.raises(Refused) as caught:
            self.batch(keys) if isinstance(keys, list) else self.put(keys)
        answer: dict[str, Any] = caught.value.response
        return answer


def put(key: Key) -> dict[str, Any]:
    return {"PutRequest": {"Item": {"robot_id": {"S": key[0]}, "sequence": {"N": str(key[1])}}}}


def _key(item: dict[str, Any]) -> Key:
    return item["robot_id"]["S"], int(item["sequence"]["N"])


def code(answer: dict[str, Any]) -> str:
    return str(answer["Error"]["Code"])


def item(key: Key) -> dict[str, Any]:
    """What `PutItem` takes beside the table's name."""
    made: dict[str, Any] = put(key)["PutRequest"]
    return made


def raw(
    where: FaultProxy | http.client.HTTPConnection,
    operation: str,
    body: dict[str, Any],
    signed: datetime | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """A call without botocore: status, headers in lower case, body.

    `where`: a connection, or a proxy for a new one.
    """
    own = connected(where) if isinstance(where, FaultProxy) else where
    at = (signed or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "X-Amz-Target": f"DynamoDB_20120810.{operation}",
        "X-Amz-Date": at,
        "Content-Type": "application/x-amz-json-1.0",
        "Authorization": "AWS4-HMAC-SHA256 Credential=AKIATESTONLY/20260101/eu-central-1/dynamodb/"
        "aws4_request, SignedHeaders=host;x-amz-date, Signature=0",
    }
    try:
        own.request("POST", "/", json.dumps(body), headers)
        answer = own.getresponse()
        named = {name.lower(): text for name, text in answer.getheaders()}
        return answer.status, named, answer.read()
    finally:
        if own is not where:
            own.close()


def connected(proxy: FaultProxy, timeout_s: float = 10.0) -> http.client.HTTPConnection:
    """A connection to a proxy, opened with the first request and again after `close`."""
    return http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout_s)
