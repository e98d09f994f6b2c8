"""Sends a ready-made body through the client's own HTTP session, from its `before-call` hook.

That hook may answer a call in the client's place (botocore's `Stubber` does). So a write skips what
botocore does for calls of any kind, half of its CPU, and keeps the client's connections, proxies,
TLS, timeouts, errors and credentials. What this cannot sign goes the client's own way.

What botocore would let pass as a success is found here: an answer that is cut, empty, no JSON or
of another checksum confirms nothing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from aiobotocore.httpsession import AIOHTTPSession  # type: ignore[import-untyped]
from botocore.awsrequest import AWSPreparedRequest  # type: ignore[import-untyped]
from botocore.exceptions import NoCredentialsError  # type: ignore[import-untyped]
from botocore.parsers import create_parser  # type: ignore[import-untyped]

from labeler.stores.dynamodb.errors import GarbledError
from labeler.stores.dynamodb.signing import signed

__all__ = ["Sender", "check_answer", "with_body"]

_BODY = "labeler_body"


class _Ready:
    """Stands for the parameters whose JSON is `body`."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body


def with_body(body: bytes) -> Any:
    """`RequestItems` of a `batch_write_item` whose body is ready-made."""
    return _Ready(body)


class Sender:
    """The hooks of one client. `session_class` goes into its configuration, before it is made."""

    def __init__(self) -> None:
        """Sends nothing before `attach`."""
        self._session: Any = None
        sender = self

        class Session(AIOHTTPSession):  # type: ignore[misc]
            """The client's HTTP session, which its sender may use too."""

            def __init__(self, **settings: Any) -> None:
                super().__init__(**settings)
                sender._session = self

        self.session_class = Session

    def attach(self, events: Any) -> None:
        """Registers the hooks at the client's events."""
        events.register("provide-client-params.dynamodb.BatchWriteItem", _keep_body)
        events.register("before-call.dynamodb.BatchWriteItem", self._send)
        events.register("before-parse.dynamodb", check_answer)

    async def _send(
        self,
        model: Any,
        params: dict[str, Any],
        request_signer: Any,
        context: Mapping[str, Any],
        **_: object,
    ) -> tuple[Any, dict[str, Any]] | None:
        """The answer and what it says; None leaves the call, with its body, to the client."""
        body = context.get(_BODY)
        if body is None:
            return None
        signing = context.get("signing", {})
        version = context.get("auth_type") or request_signer.signature_version
        if self._session is None or version != "v4" or "?" in params["url"]:
            params["body"] = body
            return None
        scope = (
            signing.get("region") or request_signer.region_name,
            signing.get("signing_name") or request_signer.signing_name,
        )
        auth = await request_signer.get_auth_instance(scope[1], scope[0], "v4")
        if auth.credentials is None:
            raise NoCredentialsError
        headers = signed(
            params["url"], params["headers"], body, auth.credentials, scope, datetime.now(UTC)
        )
        http = await self._session.send(
            AWSPreparedRequest("POST", params["url"], headers, body, stream_output=False)
        )
        return http, _read(http, await http.content, model)


def _keep_body(
    params: Mapping[str, Any], context: dict[str, Any], **_: object
) -> Mapping[str, Any] | None:
    items = params["RequestItems"]
    if not isinstance(items, _Ready):
        return None
    context[_BODY] = items.body
    return {"RequestItems": {}}


def _read(http: Any, body: bytes, model: Any) -> dict[str, Any]:
    """A write's answer; an error's in the form that the client raises it from."""
    answer = {
        "headers": http.headers,
        "status_code": http.status_code,
        "body": body,
        "context": {"operation_name": model.name},
    }
    if http.status_code < 300:
        said: dict[str, Any] = {}
        check_answer(answer, said)
        return said
    parser = create_parser(model.service_model.resolved_protocol)
    parsed: dict[str, Any] = parser.parse(answer, model.output_shape)
    code = parsed.get("Error", {}).get("Code")
    shape = code and model.service_model.shape_for_error_code(code)
    if shape:
        parsed.update(parser.parse(answer, shape))
    return parsed


def check_answer(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    """Reads a success as what it must be: botocore takes a page of HTML for an empty answer."""
    if response_dict["status_code"] >= 300:
        return
    body: bytes = response_dict["body"]
    checksum = response_dict["headers"].get("x-amz-crc32")
    if checksum is not None and checksum != str(zlib.crc32(body)):
        raise GarbledError(f"an answer of {len(body)} bytes does not have its checksum")
    if response_dict["status_code"] != 200:
        raise GarbledError(f"an answer with HTTP status {response_dict['status_code']}")
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise GarbledError(f"an answer of {len(body)} bytes is no JSON: {error}") from error
    if not isinstance(answer, dict):
        raise GarbledError(f"an answer of {len(body)} bytes is no JSON object")
    # A write's answer is read from here; its shapes need no second reading.
    if response_dict["context"].get("operation_name") == "BatchWriteItem":
        customized_response_dict["UnprocessedItems"] = answer.get("UnprocessedItems")
        response_dict["body"] = b"{}"
