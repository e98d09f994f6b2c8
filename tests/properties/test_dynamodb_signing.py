"""Our signature of a write is botocore's `SigV4Auth`, for any text, token, URL and time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import botocore.auth  # type: ignore[import-untyped]
import pytest
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import ReadOnlyCredentials  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from labeler.stores.dynamodb.signing import signed

SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
URLS = st.sampled_from(
    [
        "https://dynamodb.eu-central-1.amazonaws.com/",
        "https://dynamodb.eu-central-1.amazonaws.com",
        "https://dynamodb.eu-central-1.amazonaws.com:443/",
        "http://127.0.0.1:4566/",
        "http://[::1]:8000/a//b/../c d",
        "http://localhost:80/é",
    ]
)
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2099, 1, 1))


@given(
    url=URLS,
    body=st.binary(max_size=200),
    secret=SECRETS,
    token=st.none() | SECRETS,
    agent=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1),
    more=st.text(st.sampled_from("ab  c"), min_size=1).map(str.strip),
    at=TIMES,
)
def test_a_signature_is_the_one_that_botocore_makes(
    url: str, body: bytes, secret: str, token: str | None, agent: str, more: str, at: datetime
) -> None:
    headers = {
        "X-Amz-Target": "DynamoDB_20120810.BatchWriteItem",
        "Content-Type": "application/x-amz-json-1.0",
        "User-Agent": agent,
        "X-Amz-More": more,
    }
    credentials = ReadOnlyCredentials("AKIATESTONLY", secret, token)
    ours = signed(
        url, headers, body, credentials, ("eu-west-1", "dynamodb"), at.replace(tzinfo=UTC)
    )
    request = AWSRequest("POST", url, data=body, headers=headers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda *_: at)
        auth: Any = botocore.auth.SigV4Auth(credentials, "dynamodb", "eu-west-1")
        auth.add_auth(request)
    theirs = {name.lower(): value for name, value in request.headers.items()}
    assert {name.lower(): value for name, value in ours.items()} == theirs
