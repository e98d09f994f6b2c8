"""Lanes: a client's connections, so that none has more streams than a service lets it open.

Above that limit gRPC lets a stream wait without a word. Never makes a call, and never closes a
connection before its client is closed: streams come back.
"""

import threading
from collections.abc import Callable
from typing import Any

from labeler.client.channels import methods_of

__all__ = ["Lane", "Lanes"]


class Lane:
    """One connection, with its methods, and the streams that it holds."""

    def __init__(self, channel: Any, lock: threading.Lock) -> None:
        """Hold a channel of grpc or grpc.aio."""
        self.channel = channel
        self.methods = methods_of(channel)
        self.streams = 0
        self._lock = lock

    def leave(self) -> None:
        """Make room again: one of its streams is over."""
        with self._lock:
            self.streams -= 1


class Lanes:
    """The lanes of one client. The first also carries its other calls."""

    def __init__(self, connect: Callable[[], Any], streams_max: int) -> None:
        """`connect` makes a channel; a lane takes `streams_max` streams."""
        self._connect = connect
        self._streams_max = streams_max
        self._lock = threading.Lock()
        self._closed = False
        self.lanes: list[Lane] = []

    def first(self) -> Lane:
        """Return the lane of the calls, made at its first use."""
        with self._lock:
            return self.lanes[0] if self.lanes else self._open()

    def enter(self) -> Lane:
        """Return a lane with room for one more stream; who gets it calls `leave` at its end."""
        with self._lock:
            free = (lane for lane in self.lanes if lane.streams < self._streams_max)
            lane = next(free, None)
            if lane is None:
                # After the close no channel is made that nobody would close.
                lane = self.lanes[0] if self._closed and self.lanes else self._open()
            lane.streams += 1
            return lane

    def close(self) -> list[Any]:
        """Return all channels, to be closed; none is made from here on."""
        with self._lock:
            self._closed = True
            return [lane.channel for lane in self.lanes]

    def _open(self) -> Lane:
        lane = Lane(self._connect(), self._lock)
        self.lanes.append(lane)
        return lane
