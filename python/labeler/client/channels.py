"""Channels: how a client holds its connection, and the guard against use in the wrong process.

Never makes a call. How many connections a client has stands in `lanes.py`.
"""

import json
import os
from typing import Any

from labeler.client.health import CHECK
from labeler.client.options import Settings
from labeler.errors import ForkedError, StoppedError, UnavailableError
from labeler.v1 import label_pb2_grpc, model_pb2_grpc

__all__ = ["Guard", "channel_options", "methods_of", "not_ready"]

_SERVICE_CONFIG = json.dumps(
    {"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": True}}]}
)


def channel_options(address: str, settings: Settings) -> list[tuple[str, Any]]:
    """Return the gRPC options of a channel to `address`, each with its reason.

    Keepalive: servers with gRPC's defaults answer pings more often than each 300 s with
    `too_many_pings` and close the connection, so that is the default, and none is sent without an
    open call. A dead link is noticed sooner: with keepalive on, unacknowledged data ends the
    connection after `keepalive_timeout_ms` (TCP_USER_TIMEOUT), each request has a deadline, and so
    has each message of a stream. labeler's own server takes `keepalive_ms=10_000` without harm.
    Proxy: robots talk to their service directly, so `http_proxy` and its like are not read.
    """
    # Of a list of addresses gRPC would make the call's authority, which no server takes.
    scheme, _, listed = address.partition(":")
    first = listed.partition(",")[0] if scheme in ("ipv4", "ipv6") else ""
    authority = [("grpc.default_authority", first)] if first != listed and first else []
    return [
        *authority,
        ("grpc.keepalive_time_ms", settings.keepalive_ms),
        ("grpc.keepalive_timeout_ms", settings.keepalive_timeout_ms),
        # What gRPC waits for the answer of a ping by; it alone would be a minute.
        ("grpc.http2.ping_timeout_ms", settings.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 0),
        # A robot stays with one pod, whose window knows its sequences; robots spread by chance.
        ("grpc.service_config", _SERVICE_CONFIG),
        # A connection of its own: at the limit of streams another client's calls would wait unseen.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        # Attempts are made and counted in `retries.py` only.
        ("grpc.enable_retries", 0),
        # After a restart of the server the default of 1 s, growing to 120 s, outlasts any deadline.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # New addresses are to be found within 5 s; the default asks DNS each 30 s at most.
        ("grpc.dns_min_time_between_resolutions_ms", 2_000),
    ]


def methods_of(channel: Any) -> dict[str, Any]:
    """Return what can be called, by the method's name, on a channel of grpc or grpc.aio.

    The generated stubs are untyped; the plans type what goes in and what comes out.
    """
    labels = label_pb2_grpc.LabelServiceStub(channel)
    models = model_pb2_grpc.ModelServiceStub(channel)
    # Bytes in and out: `health.py` is its codec.
    return {**vars(labels), **vars(models), "Check": channel.unary_unary(CHECK)}


def not_ready(address: str, timeout_ms: int) -> UnavailableError:
    """Make the error of a wait for a connection that did not come about."""
    return UnavailableError(f"no connection to {address} within {timeout_ms} ms")


class Guard:
    """Refuses use after `close()`, and in a forked child, where gRPC's threads do not exist."""

    def __init__(self, what: str) -> None:
        """Remember the process; `what` names the guarded thing in messages."""
        self._what = what
        self._pid = os.getpid()
        self.closed = False

    def check(self) -> None:
        """Errors: `ForkedError` in another process, `StoppedError` after the close."""
        if self.forked:
            raise ForkedError(
                f"this {self._what} was made in process {self._pid} and is used in its fork "
                f"{os.getpid()}; make a new one in the child, or start children with spawn"
            )
        if self.closed:
            raise StoppedError(f"this {self._what} is closed")

    @property
    def forked(self) -> bool:
        """Whether this process is not the one that made it."""
        return os.getpid() != self._pid
