"""S62: an option with the wrong type, unit or name was ignored without a word."""

import asyncio
from typing import Any

import pytest

import labeler

ADDRESS = "127.0.0.1:50051"


def refusal(address: Any = ADDRESS, **options: Any) -> str:
    """What both clients say to these options."""
    with pytest.raises(labeler.ConfigError) as refused:
        labeler.Client(address, **options)
    with pytest.raises(labeler.ConfigError) as refused_async:
        labeler.AsyncClient(address, **options)
    assert refused.value.message == refused_async.value.message
    assert refused.value.setting
    return refused.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout_ms", "5s"),
        ("timeout_ms", 0),
        ("timeout_ms", -1),
        ("timeout_ms", 1.5),
        ("timeout_ms", True),
        ("timeout_ms", 3_600_001),
        ("timeout_ms_read", None),
        ("timeout_ms_manage", "1"),
        ("model", None),
        ("durability", "stored"),
        ("durability", 3),
        ("attempts_max", 0),
        ("keepalive_ms", 10),
        ("keepalive_timeout_ms", 0),
        ("stream_rows_max", 0),
        ("credentials", "cert.pem"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(name: str, value: Any) -> None:
    message = refusal(**{name: value})

    assert f"{name} = {value!r}, expected " in message


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    assert "timeout_s = 5, unknown; did you mean `timeout_ms`?" in refusal(timeout_s=5)


@pytest.mark.parametrize(
    "address",
    ["", "localhost", "localhost:", ":50051", "h:0", "h:65536", "http://h:1", 50051, None],
)
def test_a_wrong_address_is_refused(address: Any) -> None:
    assert f"address = {address!r}, expected `host:port`" in refusal(address)


@pytest.mark.parametrize(
    "address", ["localhost:50051", "[::1]:50051", "dns:///labeler:50051", "unix:/run/labeler.sock"]
)
def test_an_address_that_grpc_knows_is_taken(address: str) -> None:
    with labeler.Client(address):
        pass


def test_all_wrong_options_are_named_at_once() -> None:
    message = refusal("localhost", timeout_ms="5s", durabilty="STORED")

    assert message.startswith("client options: 3 errors\n")
    assert all(name in message for name in ("address", "timeout_ms", "durability"))


def test_a_client_that_is_closed_says_so() -> None:
    client = labeler.Client(ADDRESS)
    client.close()
    client.close()

    with pytest.raises(labeler.StoppedError):
        client.label("r1", 1, [1.0])


def test_no_connection_in_time_is_an_error_that_names_the_address() -> None:
    expected = pytest.raises(labeler.UnavailableError, match=r"127\.0\.0\.1:1 within 50 ms")
    with labeler.Client("127.0.0.1:1") as client, expected:
        client.wait_ready(50)


def test_no_connection_in_time_is_the_same_error_for_asyncio() -> None:
    async def wait() -> None:
        async with labeler.AsyncClient("127.0.0.1:1") as client:
            await client.wait_ready(50)

    with pytest.raises(labeler.UnavailableError, match=r"127\.0\.0\.1:1 within 50 ms"):
        asyncio.run(wait())
