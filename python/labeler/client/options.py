"""The client's options: names, defaults, bounds, and the check that refuses what is wrong.

All wrong options are reported at once, each with its value, what was expected, and the nearest
known name. Never reads the environment or a file, never changes a value to make it fit.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, TypedDict

import grpc

from labeler.errors import ConfigError

__all__ = ["DURABILITIES", "ClientOptions", "Durability", "Settings", "check_options", "nearest"]

Durability = Literal["BUFFERED", "JOURNALED", "STORED"]
"""What is true of a label when it is acknowledged: in memory, in the journal, in the store."""

DURABILITIES: tuple[Durability, ...] = ("BUFFERED", "JOURNALED", "STORED")

_TIMEOUT_MS_MAX = 3_600_000
_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:")


class ClientOptions(TypedDict, total=False):
    """What `Client` and `AsyncClient` take beside the address; all are optional.

    `timeout_ms` (150): deadline of a label, from the call to its reply, retries included.
    `timeout_ms_read` (2,000): of `get`, of each page of `list`, of `models` and of `health`.
    `timeout_ms_manage` (60,000): of `load_model` and `unload_model`, which warm and drain.
    `model` ("": the server's default), `durability` (None: the server's default): for each request
    that names none.
    `attempts_max` (3): tries of one call, the first included; 1 means no retries.
    `keepalive_ms` (300,000), `keepalive_timeout_ms` (5,000): see `channels.py`.
    `stream_rows_max` (1,024): requests of a stream that wait for an answer or for their reader.
    `streams_per_connection_max` (100): streams on one connection; one more opens a further
    connection. At most the service's setting of that name (200), less the calls beside them.
    `credentials` (None: plain text): from `grpc.ssl_channel_credentials`.
    """

    timeout_ms: int
    timeout_ms_read: int
    timeout_ms_manage: int
    model: str
    durability: Durability | None
    attempts_max: int
    keepalive_ms: int
    keepalive_timeout_ms: int
    stream_rows_max: int
    streams_per_connection_max: int
    credentials: grpc.ChannelCredentials | None


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked options, with the defaults filled in."""

    timeout_ms: int = 150
    timeout_ms_read: int = 2_000
    timeout_ms_manage: int = 60_000
    model: str = ""
    durability: Durability | None = None
    attempts_max: int = 3
    keepalive_ms: int = 300_000
    keepalive_timeout_ms: int = 5_000
    stream_rows_max: int = 1_024
    streams_per_connection_max: int = 100
    credentials: grpc.ChannelCredentials | None = None


_INTEGERS = {
    "timeout_ms": (1, _TIMEOUT_MS_MAX),
    "timeout_ms_read": (1, _TIMEOUT_MS_MAX),
    "timeout_ms_manage": (1, _TIMEOUT_MS_MAX),
    "attempts_max": (1, 10),
    "keepalive_ms": (1_000, _TIMEOUT_MS_MAX),
    "keepalive_timeout_ms": (100, _TIMEOUT_MS_MAX),
    "stream_rows_max": (1, 65_536),
    "streams_per_connection_max": (1, 100_000),
}


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?` for the known name closest to `name`, else the empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else ""


def check_options(address: object, options: Mapping[str, object]) -> Settings:
    """Turn options into settings. Errors: `ConfigError`, naming every option that is wrong."""
    known = [field.name for field in fields(Settings)]
    problems = {}
    expected = _address_problem(address)
    if expected:
        problems["address"] = f"{address!r}, expected {expected}"
    for name, value in options.items():
        if name not in known:
            problems[name] = f"{value!r}, unknown{nearest(name, known)}"
        elif expected := _option_problem(name, value):
            problems[name] = f"{value!r}, expected {expected}"
    if problems:
        count = f"{len(problems)} error{'s' if len(problems) > 1 else ''}"
        lines = "".join(f"\n  {name} = {problem}" for name, problem in problems.items())
        raise ConfigError(f"client options: {count}{lines}", setting=next(iter(problems)))
    return Settings(**options)  # type: ignore[arg-type]  # each was checked above


def _address_problem(address: object) -> str:
    """What `address` must be, or the empty string where it is right."""
    expected = "`host:port`, or a gRPC target that begins with dns:, ipv4:, ipv6: or unix:"
    if not isinstance(address, str):
        return expected
    if address.startswith(_SCHEMES):
        return ""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
        return expected
    if any(letter.isspace() or letter == "/" for letter in host):
        return expected
    return ""


def _option_problem(name: str, value: object) -> str:
    """What the option must hold, or the empty string where it is right."""
    if name in _INTEGERS:
        least, most = _INTEGERS[name]
        if type(value) is int and least <= value <= most:
            return ""
        unit = " (milliseconds)" if "_ms" in name else ""
        return f"an int from {least:,} to {most:,}{unit}"
    if name == "model":
        return "" if isinstance(value, str) else "a str, empty for the server's default"
    if name == "durability":
        right = value is None or value in DURABILITIES
        return "" if right else f"None or one of {', '.join(DURABILITIES)}"
    right = value is None or isinstance(value, grpc.ChannelCredentials)
    return "" if right else "None or grpc.ChannelCredentials"
