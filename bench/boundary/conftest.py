"""The label path in this process, and a client of it over loopback; no store stands behind it."""

import itertools
from collections.abc import Iterator

import pytest

from labeler import Client
from labeler._core import Engine
from labeler.config import Sources, core_json, load

__all__ = ["client", "engine", "sequences"]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A running engine with the default model."""
    state = tmp_path_factory.mktemp("engine") / "state"
    settings = (f"state_dir={state}", "transport.grpc_address=127.0.0.1:0")
    flags = [("--set", setting) for setting in settings]
    started = Engine.start(core_json(load(Sources(flags=flags))))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def client(engine: Engine) -> Iterator[Client]:
    """A client of it."""
    with Client(engine.grpc_address(), timeout_ms=5000) as connected:
        connected.wait_ready(10_000)
        yield connected


@pytest.fixture(scope="session")
def sequences() -> Iterator[int]:
    """Sequences that no call has had."""
    return itertools.count(1)
