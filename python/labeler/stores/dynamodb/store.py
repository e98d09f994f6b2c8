"""The DynamoDB store: writes of up to 25 rows with an outcome each, strong reads, and its table.

Each call is one request: what fails is told, and the writer tries again. Rows that DynamoDB cannot
hold are refused here, by its own arithmetic, without costing the others their write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from labeler.errors import ConfigError
from labeler.stores.base import (
    STORED,
    Difference,
    Outcome,
    Page,
    Query,
    Status,
    StoreContext,
    StoredRow,
    StoreLimits,
    StoreRefusedError,
    StoreUnavailableError,
    decode_page_token,
    encode_page_token,
)
from labeler.stores.dynamodb import items, table
from labeler.stores.dynamodb.client import DynamoSettings, open_client, renew_credentials
from labeler.stores.dynamodb.errors import GarbledError, is_unmet, meaning_of
from labeler.stores.dynamodb.sending import with_body

if TYPE_CHECKING:
    from types_aiobotocore_dynamodb import DynamoDBClient

__all__ = ["DynamoStore", "open_store"]

_log = logging.getLogger(__name__)

CONFIRMED_S = 1.0
"""For so long a look at the table proves that refusals are the rows' own fault."""
RENEWED_S = 10.0
"""Refused credentials are read anew from where they come, once in so long."""
_FILTERED_ROWS = 1000
"""Items that one request of a filtered list looks at."""
_UNPROCESSED = Outcome(Status.UNPROCESSED)


def open_store(context: StoreContext) -> DynamoStore:
    """The store of `writer.store = "dynamodb"`."""
    return DynamoStore(DynamoSettings(**context.settings))


class DynamoStore:
    """The `Store` of one table. All of it belongs to one event loop."""

    def __init__(self, settings: DynamoSettings) -> None:
        """Keeps the settings; `ensure` makes the client."""
        self.settings = settings
        self.limits = StoreLimits(items.REQUEST_ROWS_MAX, settings.connections_max)
        self._client: DynamoDBClient | None = None
        self._confirmed_s = -CONFIRMED_S
        self._renewed_s, self._refused = -RENEWED_S, False

    async def ensure(self) -> None:
        """Makes the client and looks at the table; one that is missing or not yet made is awaited.

        Errors: `ConfigError` for credentials that are not there, and for a table with other keys.
        """
        await self._connect()
        try:
            if self.settings.create:
                await self.create()
            told = await self.check()
        except StoreUnavailableError as error:
            # The journal takes labels all the same; the writer finds out when that is over.
            _log.warning("the store is not ready", extra={"fields": {"problem": str(error)}})
            return
        for difference in told:
            if difference.name == "key schema":
                raise ConfigError(
                    f"configuration: the table {self.settings.table} has another key schema: "
                    f"expected {difference.expected}; found {difference.found}; "
                    f"{difference.change}",
                    setting="dynamodb.table",
                )
            _log.warning("the table differs", extra={"fields": difference._asdict()})

    async def create(self) -> None:
        """Makes the table where it is missing, and waits for it."""
        client = await self._connect()
        async with _meant():
            await table.ensure_table(client, self.settings)

    async def check(self) -> list[Difference]:
        """What is not as the settings ask for; nothing is changed."""
        client = await self._connect()
        async with _meant():
            return table.differences(await table.look(client, self.settings), self.settings)

    async def write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        """One BatchWriteItem; what the service leaves unprocessed comes back as such."""
        assert len(rows) <= items.REQUEST_ROWS_MAX
        reasons = [items.refusal(row) for row in rows]
        sent = [row for row, reason in zip(rows, reasons, strict=True) if not reason]
        left = await self._put(sent) if sent else set()
        return [
            Outcome(Status.REFUSED, reason)
            if reason
            else (_UNPROCESSED if left and row.key in left else STORED)
            for row, reason in zip(rows, reasons, strict=True)
        ]

    async def write_if_newer(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        """A PutItem with a condition for each: a BatchWriteItem can have none.

        All have ended when this returns or raises; those that were written can be written again.
        """
        assert len(rows) <= items.REQUEST_ROWS_MAX
        puts = (self._put_if_newer(row) for row in rows)
        ended = await asyncio.gather(*puts, return_exceptions=True)
        outcomes: list[Outcome] = []
        for result in ended:
            if isinstance(result, BaseException):
                raise result
            outcomes.append(result)
        return outcomes

    async def confirm_refusal(self) -> None:
        """Whether the table still is what it should be, looked at once a second at most."""
        if time.monotonic() < self._confirmed_s + CONFIRMED_S:
            return
        client = self._opened()
        async with _meant():
            found = await table.look(client, self.settings, ttl=False)
        wrong = table.wrong_keys(found)
        if wrong is not None or not found.usable:
            state = f"has {wrong.found}" if wrong else f"is {found.status or 'not there'}"
            raise StoreUnavailableError(
                f"DynamoDB: table {self.settings.table} {state}", kind="table"
            )
        self._confirmed_s = time.monotonic()

    async def get(self, robot_id: str, sequence: int) -> StoredRow | None:
        """The row of a key, by a strongly consistent read."""
        client = self._opened()
        if not robot_id:
            return None
        # The client's own bounds begin with a connection; this one holds while it waits for one.
        bound_ms = self.settings.connect_timeout_ms + self.settings.read_timeout_ms
        async with _meant(), asyncio.timeout(bound_ms / 1000):
            answer = await client.get_item(
                TableName=self.settings.table,
                Key={"robot_id": {"S": robot_id}, "sequence": {"N": str(sequence)}},
                ConsistentRead=True,
            )
            item: Mapping[str, Any] = answer.get("Item") or {}
            return items.row_of(item) if item else None

    async def list(self, query: Query) -> Page:
        """One page by descending sequence; times are a filter, so a long search may take many."""
        client = self._opened()
        rows: list[StoredRow] = []
        request, below = self._query(query), decode_page_token(query)
        try:
            async with asyncio.timeout(query.timeout_ms / 1000), _meant():
                while len(rows) <= query.page_size:
                    request["ExpressionAttributeValues"][":below"] = {"N": str(below)}
                    answer = await client.query(**request)
                    rows += [items.row_of(item) for item in answer.get("Items", [])]
                    last = answer.get("LastEvaluatedKey")
                    if not last:
                        break
                    below = items.key_of(last)[1]
        except TimeoutError:
            raise StoreUnavailableError(
                f"DynamoDB: the search took longer than {query.timeout_ms} ms"
            ) from None
        page = rows[: query.page_size]
        more = len(rows) > query.page_size
        return Page(page, encode_page_token(query, page[-1].sequence) if more else "")

    async def close(self) -> None:
        """Closes the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connect(self) -> DynamoDBClient:
        if self._client is None:
            self._client = await open_client(self.settings)
        return self._client

    def _opened(self) -> DynamoDBClient:
        if self._client is None:
            raise StoreUnavailableError("the DynamoDB store is closed")
        return self._client

    async def _put(self, rows: Sequence[StoredRow]) -> set[tuple[str, int]]:
        """Writes them; the keys that were not."""
        client = self._opened()
        body = items.batch_body(self.settings.table, rows, self.settings.retention_s)
        try:
            async with _meant():
                await self._renew(client)
                answer = await client.batch_write_item(RequestItems=with_body(body))
                self._refused = False
                return _unprocessed(answer.get("UnprocessedItems"), rows)
        except StoreUnavailableError as error:
            self._refused = error.kind == "credentials"
            raise

    async def _renew(self, client: DynamoDBClient) -> None:
        """Looks for other credentials where the last write's were refused."""
        now_s = time.monotonic()
        if self._refused and now_s >= self._renewed_s + RENEWED_S:
            self._renewed_s = now_s
            await renew_credentials(client)

    async def _put_if_newer(self, row: StoredRow) -> Outcome:
        client = self._opened()
        if reason := items.refusal(row):
            return Outcome(Status.REFUSED, reason)
        try:
            async with _meant():
                await client.put_item(
                    TableName=self.settings.table,
                    Item=items.item_of(row, self.settings.retention_s),
                    ConditionExpression=items.IF_NEWER,
                    ExpressionAttributeValues=items.if_newer_values(row),
                )
        except ClientError as error:
            if not is_unmet(error):
                raise
            return Outcome(Status.SUPERSEDED)
        except StoreRefusedError as error:
            await self.confirm_refusal()
            return Outcome(Status.REFUSED, error.message)
        except StoreUnavailableError as error:
            if error.kind != "throttled_key":
                raise
            return _UNPROCESSED
        return STORED

    def _query(self, query: Query) -> dict[str, Any]:
        """The request without the sequence that it begins below."""
        values: dict[str, Any] = {":robot": {"S": query.robot_id}}
        request: dict[str, Any] = {
            "TableName": self.settings.table,
            "KeyConditionExpression": "#robot = :robot AND #sequence < :below",
            "ExpressionAttributeNames": {"#robot": "robot_id", "#sequence": "sequence"},
            "ExpressionAttributeValues": values,
            "ScanIndexForward": False,
            "ConsistentRead": True,
            "Limit": query.page_size + 1,
        }
        times = [
            (":from", ">=", query.from_unix_us),
            (":to", "<", query.to_unix_us),
        ]
        filters = [f"#at {sign} {name}" for name, sign, value in times if value]
        if filters:
            request["FilterExpression"] = " AND ".join(filters)
            request["ExpressionAttributeNames"]["#at"] = "labeled_at_unix_us"
            values.update({name: {"N": str(value)} for name, _, value in times if value})
            request["Limit"] = max(_FILTERED_ROWS, query.page_size + 1)
        return request


@asynccontextmanager
async def _meant() -> AsyncIterator[None]:
    """Raises what the client raises as the store's own errors."""
    try:
        yield
    except Exception as error:
        meaning = meaning_of(error)
        if meaning is None or is_unmet(error):
            raise
        raise meaning from error


def _unprocessed(found: Any, rows: Sequence[StoredRow]) -> set[tuple[str, int]]:
    """Keys of what was not written: absent, empty and an empty list of a table all mean none.

    Errors: `GarbledError` for what names no row of this write: nothing is known of it then.
    """
    if not found:
        return set()
    try:
        left = {
            items.key_of(request["PutRequest"]["Item"])
            for requests in found.values()
            for request in requests or ()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise GarbledError(f"UnprocessedItems cannot be read: {error!r}") from error
    if not left <= {row.key for row in rows}:
        raise GarbledError("UnprocessedItems names rows that were not sent")
    return left
