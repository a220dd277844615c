from __future__ import annotations

import asyncio
import math

import pytest
from tests.tube.stranger import Stranger, host

import headrace.tube
from headrace.errors import LimitError, UnreachableError, UsageError
from headrace.tube import TubeOptions, connect
from headrace.tube.client import _Target
from headrace.wire.tube.connection import Transport


@pytest.mark.parametrize(
    ("url", "transport", "host", "port", "uri"),
    [
        ("tube://example.net", Transport.TCP, "example.net", 8081, "tube://example.net"),
        ("tube://[::1]:7", Transport.TCP, "::1", 7, "tube://[::1]:7"),
        ("tube+tcp://10.0.0.1:0", Transport.TCP, "10.0.0.1", 0, "tube+tcp://10.0.0.1:0"),
        ("ws://example.net", Transport.WEBSOCKET, "example.net", 8080, "ws://example.net:8080"),
        ("ws://example.net:/a?b", Transport.WEBSOCKET, "example.net", 8080, "ws://example.net:8080/a?b"),
        ("tube+ws://[::1]:80/a", Transport.WEBSOCKET, "::1", 80, "ws://[::1]:80/a"),
    ],
)
def test_urls(url: str, transport: Transport, host: str, port: int, uri: str) -> None:
    assert _Target.parse(url) == _Target(uri, transport, host, port)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8081",
        "http://example.net",
        "tube://",
        "tube://:8081",
        "ws://a:b",
        "ws://a:70000",
        "ws://a/#b",
    ],
)
def test_what_is_no_tube(url: str) -> None:
    with pytest.raises(UsageError, match="is no tube: expected tube://host:port or ws://"):
        connect(url)


@pytest.mark.parametrize(
    "name", ["tube://127.0.0.1:1", "ws://127.0.0.1:1", "tube://a..b", f"tube://{'a' * 70}.b"]
)
async def test_nobody_there(name: str) -> None:
    with pytest.raises(UnreachableError) as caught:
        await connect(name)
    assert caught.value.address.startswith(name)


async def test_somebody_who_does_not_answer(transport: str) -> None:
    async def silent(stranger: Stranger) -> None:
        await stranger.hear_end()

    async with host(transport, silent) as url:
        with pytest.raises(UnreachableError, match=r"no answer within 0.05 s|did not open .* within 0.05 s"):
            await connect(url, options=TubeOptions(handshake_seconds=0.05))


async def test_somebody_who_hangs_up(transport: str) -> None:
    async def hang_up(stranger: Stranger) -> None:
        await stranger.hear(3)

    async with host(transport, hang_up) as url:
        with pytest.raises(UnreachableError):
            await connect(url)


async def test_connecting_can_be_cancelled(transport: str) -> None:
    connected = asyncio.Event()

    async def silent(stranger: Stranger) -> None:
        await stranger.hear(3)
        connected.set()
        await stranger.hear_end()

    async with host(transport, silent) as url:

        async def dial() -> None:
            await connect(url)

        task = asyncio.create_task(dial())
        await connected.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_server_that_speaks_and_leaves_at_once(transport: str) -> None:
    """All in one packet: the tube was open, and what came on it is not lost."""

    async def brief(stranger: Stranger) -> None:
        await stranger.hear(3)
        stranger.say(b"\x02", *([b"\x01\x02a"] if transport == "tcp" else [b"\x01a"]))

    async with host(transport, brief) as url, connect(url) as tube:
        assert await tube.receive() == b"a"
        with pytest.raises(UnreachableError):
            await tube.receive()


@pytest.mark.parametrize(
    "wrong",
    [
        {"idle_seconds": 0},
        {"pong_seconds": -1},
        {"message_seconds": math.nan},
        {"handshake_seconds": 0},
        {"close_seconds": 0},
        {"receive_buffer": 0},
        {"write_buffer": 0},
    ],
)
def test_options_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        TubeOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["fragment_size", "max_message", "max_inflated"])
def test_limits_that_cannot_be(wrong: str) -> None:
    with pytest.raises(LimitError):
        TubeOptions(**{wrong: 0})


def test_what_the_library_offers() -> None:
    assert headrace.tube.__all__ == [
        "TCP_PORT",
        "WEBSOCKET_PORT",
        "Handler",
        "Policy",
        "Received",
        "Receiver",
        "Side",
        "Transport",
        "Tube",
        "TubeCounts",
        "TubeOptions",
        "TubeServer",
        "connect",
        "serve",
    ]
    for name in headrace.tube.__all__:
        assert hasattr(headrace.tube, name)
