"""A call under way: what DynamoDB's JSON protocol says in it, and replies in that protocol."""

from __future__ import annotations

import email.utils
import json
import re
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.support.faults.wire import Connection, Reply, Request

Key = tuple[str, int]
Item = Mapping[str, Mapping[str, Any]]
WRITES = ("BatchWriteItem", "PutItem")
_CORAL = "com.amazon.coral.service#"
_OWN = "com.amazonaws.dynamodb.v20120810#"
_FRONT = ("Signature", "Token", "AccessDenied", "Unrecognized", "Serialization")


@dataclass
class Exchange:
    """One call. `withheld`: items that the store shall not see this time, and says so."""

    request: Request
    connection: Connection
    number: int = 0
    withheld: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    clock_shift_s: float = 0.0
    spoiled: bool = False
    """Whether the reply says nothing of what was stored, though all of it arrives."""
    refusal: Reply | None = None
    """What a real store answers where the server beneath is too lenient."""

    @cached_property
    def operation(self) -> str:
        """Such as `BatchWriteItem`; empty for what is no call of DynamoDB's."""
        return self.request.headers.get("x-amz-target", "").rpartition(".")[2]

    @cached_property
    def body(self) -> dict[str, Any]:
        """The call's parameters; empty where they are no JSON object."""
        try:
            read = json.loads(self.request.body)
        except ValueError:
            return {}
        return read if isinstance(read, dict) else {}

    @property
    def table(self) -> str:
        """The table's name; of a batch the first one's."""
        if self.operation == "BatchWriteItem":
            return next(iter(self.requests), "")
        return str(self.body.get("TableName", ""))

    @property
    def requests(self) -> dict[str, list[dict[str, Any]]]:
        """A batch's requests by table."""
        found = self.body.get("RequestItems")
        return found if isinstance(found, dict) else {}

    @cached_property
    def items(self) -> list[Item]:
        """What a write holds: items to put, keys to delete, in order."""
        if self.operation == "BatchWriteItem":
            return [item_of(one) for many in self.requests.values() for one in many]
        item = self.body.get("Item", {})
        return [item if isinstance(item, dict) else {}] if self.operation == "PutItem" else []

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """The keys of `items`."""
        return tuple(map(key_of, self.items))

    @cached_property
    def access_key(self) -> str:
        """The id that the call is signed with."""
        found = re.search(r"Credential=([^/,\s]+)/", self.request.headers.get("authorization", ""))
        return found[1] if found else ""

    def kept_body(self) -> bytes:
        """The call without the withheld items."""
        if not self.withheld:
            return self.request.body
        out = {id(one) for many in self.withheld.values() for one in many}
        kept = {
            table: [one for one in many if id(one) not in out]
            for table, many in self.requests.items()
        }
        kept = {table: many for table, many in kept.items() if many}
        return json.dumps({**self.body, "RequestItems": kept}).encode()

    def error(
        self,
        code: str,
        message: str,
        status: int = 400,
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """A refusal as the store words it."""
        space = _CORAL if any(word in code for word in _FRONT) else _OWN
        if code == "ValidationException":
            space = "com.amazon.coral.validate#"
        named = {"__type": space + code, "message": message}
        return self.answer({**named, **(more or {})}, status, headers)

    def answer(
        self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """A reply with a body of JSON, its checksum and the store's date."""
        body = json.dumps(content, separators=(",", ":")).encode()
        return self.sealed(Reply(status, body, headers or {}))

    def sealed(self, reply: Reply) -> Reply:
        """The reply with the headers that belong to its body."""
        names = {
            "Server": "Server",
            "Date": email.utils.formatdate(time.time() + self.clock_shift_s, usegmt=True),
            "Content-Type": "application/x-amz-json-1.0",
            "x-amzn-RequestId": uuid.uuid4().hex.upper(),
        }
        own = {name: text for name, text in reply.headers.items() if name.lower() != "x-amz-crc32"}
        lower = {name.lower() for name in own}
        names = {name: text for name, text in names.items() if name.lower() not in lower}
        crc = {"x-amz-crc32": str(zlib.crc32(reply.body))}
        return Reply(reply.status, reply.body, {**names, **own, **crc}, reply.sent, reply.end)


def item_of(request: Any) -> Item:
    """The item of a batch's request, or the key that it deletes."""
    if not isinstance(request, dict):
        return {}
    put, delete = request.get("PutRequest"), request.get("DeleteRequest")
    found = put.get("Item") if put else delete.get("Key") if delete else None
    return found if isinstance(found, dict) else {}


def key_of(item: Item) -> Key:
    """Robot and sequence; empty and -1 where the item has none."""
    try:
        return str(item["robot_id"]["S"]), int(item["sequence"]["N"])
    except (KeyError, TypeError, ValueError):
        return "", -1


def keys_in(unprocessed: Mapping[str, Iterable[Any]]) -> list[Key]:
    """The keys of a reply's `UnprocessedItems`."""
    return [key_of(item_of(one)) for many in unprocessed.values() for one in many]
