"""AWS's signature, version 4, of a POST: what botocore makes, without its detours. Pure.

Tests hold it against botocore's `SigV4Auth`, which is the reference.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Protocol
from urllib.parse import quote, urlsplit

from botocore.utils import normalize_url_path  # type: ignore[import-untyped]

__all__ = ["Credentials", "signed"]

_UNSIGNED = frozenset(
    {"connection", "expect", "transfer-encoding", "user-agent", "x-amzn-trace-id"}
)
_PORTS = {"http": 80, "https": 443}


class Credentials(Protocol):
    """As the client's chain has them now."""

    access_key: str
    secret_key: str
    token: str | None


def signed(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    credentials: Credentials,
    scope: tuple[str, str],
    now: datetime,
) -> dict[str, str]:
    """The headers, with date, token and signature; `scope` is region and service, `now` UTC."""
    region, service = scope
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    made = {**headers, "X-Amz-Date": stamp}
    if credentials.token:
        made["X-Amz-Security-Token"] = credentials.token
    host, path = _place(url)
    told = {name.lower(): " ".join(value.split()) for name, value in made.items()}
    told["host"] = host
    names = sorted(told.keys() - _UNSIGNED)
    lines = "".join([f"{name}:{told[name]}\n" for name in names])
    listed = ";".join(names)
    request = f"POST\n{path}\n\n{lines}\n{listed}\n{hashlib.sha256(body).hexdigest()}"
    where = f"{stamp[:8]}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{where}\n{digest}"
    key = _key(credentials.secret_key, stamp[:8], region, service)
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    made["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{where}, "
        f"SignedHeaders={listed}, Signature={signature}"
    )
    return made


@lru_cache(maxsize=8)
def _place(url: str) -> tuple[str, str]:
    """Host, with a port that is not the scheme's own, and path."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    if parts.port is not None and parts.port != _PORTS.get(parts.scheme):
        host = f"{host}:{parts.port}"
    return host, quote(normalize_url_path(parts.path), safe="/~")


@lru_cache(maxsize=2)
def _key(secret: str, day: str, region: str, service: str) -> bytes:
    """The day's key: four of the five digests of each signature."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
