"""A server of DynamoDB's API that costs next to nothing: `python -m bench.suite.fast_dynamodb`.

The servers of the tests take 300 µs of CPU an item, more than service and sender together: beside
a service on a few cores they would be what is measured. This one reads each write, keeps each item
by its key, and answers; a later write of a key replaces the item. One table, which is always there;
no signature is checked. SIGUSR1 begins an outage, in which each call is answered with a 500;
SIGUSR2 ends it. Prints its port, and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
from collections.abc import Callable, Mapping
from typing import Any, cast

import uvloop

__all__ = ["Table", "main"]

Answer = tuple[int, Mapping[str, Any]]
_KEYS = (("robot_id", "HASH", "S"), ("sequence", "RANGE", "N"))
_WRITTEN = b'{"UnprocessedItems":{}}'


class Table:
    """The items, by key: of each the write that brought it last, as it came."""

    def __init__(self) -> None:
        """Empty."""
        self._writes: dict[tuple[str, str], bytes] = {}

    def batch_write_item(self, body: bytes) -> None:
        """Keeps all items of a write."""
        for puts in json.loads(body)["RequestItems"].values():
            for put in puts:
                item = put["PutRequest"]["Item"]
                self._writes[item["robot_id"]["S"], item["sequence"]["N"]] = body

    def put_item(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keeps one item, as a write of one."""
        item = request["Item"]
        write = {"RequestItems": {request["TableName"]: [{"PutRequest": {"Item": item}}]}}
        self._writes[item["robot_id"]["S"], item["sequence"]["N"]] = json.dumps(write).encode()
        return {}

    def get_item(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The item of a key, if there is one."""
        key = request["Key"]["robot_id"]["S"], request["Key"]["sequence"]["N"]
        found = self._writes.get(key)
        if found is None:
            return {}
        [puts] = json.loads(found)["RequestItems"].values()
        items = [put["PutRequest"]["Item"] for put in puts]
        [item] = [i for i in items if (i["robot_id"]["S"], i["sequence"]["N"]) == key]
        return {"Item": item}

    def scan(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """How many items there are: `Select` can be nothing but `COUNT`."""
        assert request["Select"] == "COUNT"
        return {"Count": len(self._writes), "ScannedCount": len(self._writes)}

    @staticmethod
    def describe_table(request: Mapping[str, Any]) -> Mapping[str, Any]:
        """A table by robot and sequence, on demand."""
        described = {
            "TableName": request["TableName"],
            "TableStatus": "ACTIVE",
            "KeySchema": [{"AttributeName": name, "KeyType": role} for name, role, _ in _KEYS],
            "AttributeDefinitions": [
                {"AttributeName": name, "AttributeType": kind} for name, _, kind in _KEYS
            ],
            "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"},
        }
        return {"Table": described}

    @staticmethod
    def describe_time_to_live(_: Mapping[str, Any]) -> Mapping[str, Any]:
        """No item expires."""
        return {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}


class Service:
    """What all connections share: the table, and whether there is an outage."""

    def __init__(self) -> None:
        """No outage."""
        self.outage = False
        table = Table()
        self._write = table.batch_write_item
        self._others: Mapping[bytes, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
            b"PutItem": table.put_item,
            b"GetItem": table.get_item,
            b"Scan": table.scan,
            b"DescribeTable": table.describe_table,
            b"DescribeTimeToLive": table.describe_time_to_live,
        }

    def answer(self, operation: bytes, body: bytes) -> bytes:
        """The reply to one call, with its head."""
        if self.outage:
            return _reply(b"500 Internal Server Error", {"__type": "InternalServerError"})
        if operation == b"BatchWriteItem":
            self._write(body)
            return _head(b"200 OK", _WRITTEN)
        call = self._others.get(operation)
        if call is None:
            return _reply(b"400 Bad Request", {"__type": "UnknownOperationException"})
        return _reply(b"200 OK", call(json.loads(body)))


class Connection(asyncio.Protocol):
    """HTTP/1.1 with `Content-Length`, one call after the other: what AWS's clients send."""

    def __init__(self, service: Service) -> None:
        """Nothing has come yet."""
        self._service = service
        self._came = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps where replies go."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        """Answers the calls that are whole."""
        self._came += data
        while (end := self._came.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._came[:end])
            begin = end + 4
            stop = begin + int(_header(head, b"content-length"))
            if len(self._came) < stop:
                return
            body = bytes(self._came[begin:stop])
            del self._came[:stop]
            operation = _header(head, b"x-amz-target").rpartition(b".")[2]
            self._transport.write(self._service.answer(operation, body))


def _header(head: bytes, name: bytes) -> bytes:
    at = head.lower().find(b"\r\n" + name + b":")
    assert at >= 0, f"no {name.decode()} in {head!r}"
    return head[at + len(name) + 3 :].partition(b"\r\n")[0].strip()


def _reply(status: bytes, body: Mapping[str, Any]) -> bytes:
    return _head(status, json.dumps(body).encode())


def _head(status: bytes, body: bytes) -> bytes:
    kind = b"Content-Type: application/x-amz-json-1.0"
    return b"HTTP/1.1 %b\r\n%b\r\nContent-Length: %d\r\n\r\n%b" % (status, kind, len(body), body)


async def _serve() -> None:
    service, loop = Service(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, setattr, service, "outage", True)
    loop.add_signal_handler(signal.SIGUSR2, setattr, service, "outage", False)
    server = await loop.create_server(lambda: Connection(service), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serves until a signal ends it."""
    gc.disable()  # nothing here is a cycle, and looking for one in a million items takes seconds
    uvloop.run(_serve())


if __name__ == "__main__":
    main()
