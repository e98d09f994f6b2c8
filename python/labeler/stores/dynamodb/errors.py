"""What an exception of the client means to the writer: the one table, and the order it is read in.

A refusal must be proven to be the row's fault. Whatever is not known to be that is unavailable: the
row waits, the problem is seen, and nobody has to bring a label back.

| seen | the writer hears |
|---|---|
| ThrottlingReasons of an account, a table, a key range | `throttled_account`, `_table`, `_key` |
| RequestLimitExceeded | `throttled_account` |
| other throttles: ProvisionedThroughputExceeded, Throttling, HTTP 429 | `throttled_table` |
| ExpiredToken, UnrecognizedClient, AccessDenied, HTTP 401, 403 | `credentials` |
| no credentials, half of them, a source of them that fails | `credentials` |
| signature expired, not yet current; a bad one with a Date far from ours | `clock` |
| ResourceNotFound, ResourceInUse, IndexNotFound, a key that is not the table's | `table` |
| ValidationException, SerializationException, HTTP 413 | `StoreRefusedError` |
| ItemCollectionSizeLimitExceeded | `StoreRefusedError` |
| HTTP 5xx, timeouts, connections, DNS, TLS, an answer that is cut or no JSON | `outage` |
| any other HTTP 4xx, and what the client does not name | `outage`, with its name |
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from botocore import exceptions as boto  # type: ignore[import-untyped]

from labeler.errors import LabelerError
from labeler.stores.base import Problem, StoreRefusedError, StoreUnavailableError

__all__ = [
    "RETRY_AFTER_S_MAX",
    "SKEW_S_MAX",
    "GarbledError",
    "is_missing",
    "is_unmet",
    "meaning_of",
]

RETRY_AFTER_S_MAX = 300.0
"""A server that asks for more is asked again after so long."""
SKEW_S_MAX = 120.0
"""A refused signature with clocks further apart than this is the clock's; AWS takes 300 s."""
_MESSAGE_CHARACTERS_MAX = 500


class GarbledError(Exception):
    """An answer that can't be DynamoDB's: cut, no JSON, a wrong checksum. It confirms nothing."""


_REFUSED = frozenset(
    {
        "ValidationException",
        "SerializationException",
        "ItemCollectionSizeLimitExceededException",
        "RequestEntityTooLarge",
        "RequestEntityTooLargeException",
    }
)

_CODES: Mapping[str, Problem] = {
    **dict.fromkeys(
        (
            "ProvisionedThroughputExceededException",
            "ThrottlingException",
            "Throttling",
            "ThrottledException",
            "RequestThrottled",
            "RequestThrottledException",
            "TooManyRequestsException",
            "SlowDown",
            "TransactionInProgressException",
        ),
        "throttled_table",
    ),
    **dict.fromkeys(
        ("RequestLimitExceeded", "BandwidthLimitExceeded", "LimitExceededException"),
        "throttled_account",
    ),
    **dict.fromkeys(
        (
            "AccessDenied",
            "AccessDeniedException",
            "ExpiredToken",
            "ExpiredTokenException",
            "IncompleteSignature",
            "IncompleteSignatureException",
            "InvalidAccessKey",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "InvalidIdentityToken",
            "InvalidSignatureException",
            "InvalidToken",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
            "NotAuthorized",
            "OptInRequired",
            "SignatureDoesNotMatch",
            "SubscriptionRequiredException",
            "UnauthorizedException",
            "UnrecognizedClientException",
        ),
        "credentials",
    ),
    **dict.fromkeys(
        ("RequestExpired", "RequestExpiredException", "RequestInTheFuture", "RequestTimeTooSkewed"),
        "clock",
    ),
    **dict.fromkeys(
        (
            "IndexNotFoundException",
            "ResourceInUseException",
            "ResourceNotFoundException",
            "TableInUseException",
            "TableNotFoundException",
        ),
        "table",
    ),
    "ReplicatedWriteConflictException": "busy",
}

_STATUSES: Mapping[int, Problem] = {401: "credentials", 403: "credentials", 429: "throttled_table"}

# Of a ValidationException: the item is as it should be, the table is not.
_TABLE_IS_WRONG = re.compile(
    r"does not match the schema|type mismatch for (index )?key|missing the key\b"
    r"|non-existent table|table is (being|not)",
    re.IGNORECASE,
)
_EXPIRED = re.compile(r"signature (has )?expired|not yet current", re.IGNORECASE)
_SIGNATURES = ("InvalidSignatureException", "SignatureDoesNotMatch", "IncompleteSignature")

_CREDENTIALS = (
    boto.ConfigNotFound,
    boto.ConfigParseError,
    boto.CredentialRetrievalError,
    boto.InfiniteLoopConfigError,
    boto.InvalidConfigError,
    boto.MetadataRetrievalError,
    boto.NoAuthTokenError,
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.RefreshWithMFAUnsupportedError,
    boto.SSOError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
    boto.UnknownCredentialError,
    # A token's or a profile's file; the network's errors come as botocore's own.
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)

_OUTAGES = (boto.BotoCoreError, GarbledError, asyncio.TimeoutError, OSError, EOFError)


def meaning_of(error: BaseException, clock: Callable[[], float] = time.time) -> LabelerError | None:
    """What the writer is told: `StoreUnavailableError`, `StoreRefusedError`; None if unknown here.

    What is unknown is a fault of the program, and stays as it is.
    """
    if isinstance(error, boto.ClientError):
        return _of_answer(error, clock())
    if isinstance(error, _CREDENTIALS) or _still_expired(error):
        return StoreUnavailableError(f"AWS credentials: {_told(error)}", kind="credentials")
    if isinstance(error, _OUTAGES):
        return StoreUnavailableError(f"DynamoDB: {_told(error)}", kind="outage")
    return None


def is_missing(error: BaseException) -> bool:
    """Whether the table is not there."""
    return isinstance(error, boto.ClientError) and _code(error) in (
        "ResourceNotFoundException",
        "TableNotFoundException",
    )


def is_unmet(error: BaseException) -> bool:
    """Whether a write's condition did not hold."""
    unmet = "ConditionalCheckFailedException"
    return isinstance(error, boto.ClientError) and _code(error) == unmet


def _of_answer(error: boto.ClientError, now_s: float) -> LabelerError:
    code, status, headers = _code(error), _status(error), _headers(error)
    told = _told(error)
    skew_s = _skew_s(headers, now_s)
    kind = _kind(code, status, _text(error), skew_s)
    if error.operation_name.startswith(("AssumeRole", "GetSessionToken", "GetRoleCredentials")):
        kind = "clock" if kind == "clock" else "credentials"
    if kind is None:
        return StoreRefusedError(told)
    if kind.startswith("throttled"):
        kind = _widest(error.response) or kind
    if kind == "clock":
        told = f"{_skew_told(skew_s)}: {told}"
    return StoreUnavailableError(
        f"DynamoDB: {told}", kind=kind, retry_after_s=_retry_after_s(headers, now_s)
    )


def _kind(code: str, status: int, text: str, skew_s: float | None) -> Problem | None:
    """The problem of an answer; None where the request was refused for what it holds."""
    if code in _REFUSED and status < 500:
        return "table" if _TABLE_IS_WRONG.search(text) else None
    if code in _SIGNATURES and (_EXPIRED.search(text) or abs(skew_s or 0.0) > SKEW_S_MAX):
        return "clock"
    if status == 413:
        return None
    return _CODES.get(code) or _STATUSES.get(status) or "outage"


def _widest(response: Mapping[str, Any]) -> Problem | None:
    """What the throttling reasons say; of several the one that concerns most rows."""
    listed = response.get("ThrottlingReasons") or response.get("throttlingReasons") or []
    reasons = [str(item.get("reason", "")) for item in listed if isinstance(item, Mapping)]
    if any("AccountLimit" in reason for reason in reasons):
        return "throttled_account"
    if any("KeyRange" not in reason for reason in reasons):
        return "throttled_table"
    return "throttled_key" if reasons else None


def _skew_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """How far the server's clock is ahead of ours, in s; None where it does not tell the time."""
    try:
        return parsedate_to_datetime(headers.get("date", "")).timestamp() - now_s
    except (TypeError, ValueError):
        return None


def _skew_told(skew_s: float | None) -> str:
    if skew_s is None:
        return "this machine's clock is not DynamoDB's"
    return f"this machine's clock is {abs(skew_s):.0f} s {'behind' if skew_s > 0 else 'ahead'}"


def _retry_after_s(headers: Mapping[str, str], now_s: float) -> float:
    """Retry-After as seconds or as a date; 0 where there is none."""
    text = headers.get("retry-after", "").strip()
    try:
        wait_s = (
            float(text) if text[:1].isdigit() else parsedate_to_datetime(text).timestamp() - now_s
        )
    except (TypeError, ValueError):
        return 0.0
    return min(max(wait_s, 0.0), RETRY_AFTER_S_MAX)


def _still_expired(error: BaseException) -> bool:
    """Botocore has no class for credentials that were renewed with others that are over too."""
    return isinstance(error, RuntimeError) and "credentials" in str(error).lower()


def _code(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _text(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message", ""))


def _status(error: boto.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _headers(error: boto.ClientError) -> Mapping[str, str]:
    found: Mapping[str, str] = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return found


def _told(error: BaseException) -> str:
    """The error in a line: a page of HTML in place of an answer must not fill the log."""
    if isinstance(error, boto.ClientError):
        text = f"{_code(error)} (HTTP {_status(error)}): {_text(error)}"
    else:
        text = f"{type(error).__name__}: {error}"
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE_CHARACTERS_MAX else text[:_MESSAGE_CHARACTERS_MAX] + "…"
