"""Reads the admin port of a running service from outside: `/status` and `/stages`.

Asked directly: a proxy of the environment is for the world outside, and knows no address of this
machine. Never retries, keeps nothing.
"""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from typing import Any

from labeler.errors import UnavailableError

__all__ = ["read_page"]

_TIMEOUT_S = 5


def read_page(address: str, page: str) -> dict[str, Any]:
    """A JSON page of the admin port at `host:port`. Errors: `UnavailableError` with what to do."""
    base = address if "://" in address else f"http://{address}"
    url = f"{base.rstrip('/')}{page}"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=_TIMEOUT_S) as reply:
            found = json.load(reply)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UnavailableError(
            f"no service answers at {url} ({reason}); start one with `labeler serve`, "
            "or give its admin port with --admin HOST:PORT"
        ) from error
    assert isinstance(found, dict)
    return found
