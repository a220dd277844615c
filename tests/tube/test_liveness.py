from __future__ import annotations

import asyncio
import math

import pytest
from tests.tube.conftest import Start
from tests.tube.serving import echo, until, url
from tests.tube.stranger import Stranger, dial, host

from headrace.errors import UnreachableError
from headrace.tube import Tube, TubeOptions, connect, serve
from headrace.tube.liveness import Ask, GiveUp, Liveness, Wait

OPTIONS = TubeOptions(idle_seconds=10, pong_seconds=5, message_seconds=60, handshake_seconds=3)

# The rules, on a clock of their own


class Peer:
    """What a session would tell :class:`Liveness` of a peer that does nothing unless a test says so."""

    def __init__(self, options: TubeOptions = OPTIONS, *, opened: bool = True) -> None:
        self.liveness = Liveness(options, 0.0)
        self.reading = True
        self.unfinished = False
        self.taken = 0
        if opened:
            self.liveness.open(0.0)

    def at(self, now: float) -> Wait | Ask | GiveUp:
        return self.liveness.look(now, reading=self.reading, unfinished=self.unfinished, taken=self.taken)


def test_a_tube_must_open_in_time() -> None:
    peer = Peer(opened=False)
    assert peer.at(0) == Wait(3)
    peer.liveness.hear(2.9)
    assert peer.at(3) == GiveUp("did not open the tube within 3 s")


def test_a_silent_peer_is_asked_and_then_given_up() -> None:
    peer = Peer()
    assert peer.at(0) == Wait(10)
    assert peer.at(10) == Ask()
    assert peer.at(10) == Wait(15)
    assert peer.at(15) == GiveUp("no answer to a Ping within 5 s")


def test_any_byte_is_an_answer() -> None:
    peer = Peer()
    assert peer.at(10) == Ask()
    peer.liveness.hear(14)
    assert peer.at(15) == Wait(24)
    assert peer.at(24) == Ask()


def test_a_peer_that_takes_what_we_send_is_not_given_up() -> None:
    peer = Peer()
    assert peer.at(10) == Ask()
    peer.taken = 1000
    assert peer.at(15) == Wait(20)
    peer.taken = 2000
    assert peer.at(20) == Wait(25)
    assert isinstance(peer.at(25), GiveUp)


def test_while_we_do_not_read_we_only_ask() -> None:
    peer = Peer()
    peer.reading = False
    for now in (10, 20, 30):
        assert peer.at(now) == Ask()
        assert peer.at(now) == Wait(now + 10)
    peer.reading = True
    peer.liveness.resume(35)
    assert peer.at(36) == Wait(45)


def test_a_message_must_be_whole_in_time() -> None:
    peer = Peer()
    peer.unfinished = True
    peer.liveness.whole = 5
    for now in range(6, 65, 4):
        peer.liveness.hear(now)
        assert peer.at(now) == Wait(min(now + 10, 65))
    assert peer.at(65) == GiveUp("a message was not whole within 60 s")


def test_never() -> None:
    never = TubeOptions(idle_seconds=math.inf, pong_seconds=math.inf, message_seconds=math.inf)
    assert Peer(never).at(1e9) == Wait(math.inf)


# The same with sockets, and settings short enough to wait for


async def test_a_silent_client_is_pinged_and_cut_off(start: Start, transport: str) -> None:
    errors: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def wait(tube: Tube) -> None:
        try:
            await tube.receive()
        except UnreachableError as error:
            errors.set_result(error)

    server = await start(wait, TubeOptions(idle_seconds=0.05, pong_seconds=0.1))
    async with await dial(transport, server.addresses[0]) as stranger:
        stranger.say(b"\x02")
        assert await stranger.hear(4) == bytes.fromhex("808020 80")
        stranger.say(b"\x88")
        # It is asked again, and this time says nothing.
        assert await stranger.hear(1) == b"\x80"
        assert await stranger.hear_end() == b""
    assert "no answer to a Ping within 0.1 s" in str(await errors)


async def test_a_silent_server_is_pinged_and_given_up(transport: str) -> None:
    async def behave(stranger: Stranger) -> None:
        await stranger.hear(3)
        stranger.say(b"\x02")
        assert await stranger.hear(1) == b"\x80"
        await stranger.hear_end()

    async with host(transport, behave) as url:
        tube = await connect(url, options=TubeOptions(idle_seconds=0.05, pong_seconds=0.05))
        with pytest.raises(UnreachableError, match="no answer to a Ping"):
            await tube.receive()
        await tube.wait_closed()


async def test_two_of_ours_stay_connected_however_idle(start: Start) -> None:
    options = TubeOptions(idle_seconds=0.01, pong_seconds=1)
    server = await start(echo, options)
    async with connect(url(server), options=options) as tube:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await tube.receive()
        await tube.send(b"still there")
        assert await tube.receive() == b"still there"


async def test_a_slow_consumer_is_not_taken_for_dead(start: Start) -> None:
    """It does not read, so it sees no Ping; its own Pings say that it lives."""
    options = TubeOptions(idle_seconds=0.03, pong_seconds=0.06, receive_buffer=1, compress=False)
    go_on = asyncio.Event()
    received: list[bytes] = []

    async def slow(tube: Tube) -> None:
        await go_on.wait()
        received.extend([bytes(message) async for message in tube])

    server = await start(slow, options)
    async with connect(url(server), options=options) as tube:
        for number in range(5):
            await tube.send(bytes([number]))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await tube.receive()
        assert not tube.closed
        go_on.set()
    await until(lambda: len(received) >= 5)


async def test_a_message_that_drips_in(start: Start, transport: str) -> None:
    server = await start(echo, TubeOptions(message_seconds=0.1, idle_seconds=0.02, pong_seconds=1))
    async with await dial(transport, server.addresses[0]) as stranger:
        stranger.say(b"\x02", *([b"\x00\x80\x7d"]))
        assert await stranger.hear(3) == bytes.fromhex("808020")

        async def drip() -> None:
            while True:
                stranger.say(*([b"\x02", b"a"] if transport == "tcp" else [b"a"]))
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        assert set(await stranger.hear_end()) <= {0x80}
        dripping.cancel()


async def test_a_websocket_frame_that_drips_in() -> None:
    options = TubeOptions(message_seconds=0.1, idle_seconds=0.02, pong_seconds=1)
    async with (
        serve(echo, port=0, transport="websocket", options=options) as server,
        await dial("websocket", server.addresses[0]) as stranger,
    ):
        stranger.say(b"\x02")
        assert await stranger.hear(3) == bytes.fromhex("808020")

        async def drip() -> None:
            for byte in bytes.fromhex("82feea60 00000000") + bytes(60_000):
                stranger.writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(5):
            assert set(await stranger.hear_end()) <= {0x80}
        dripping.cancel()


@pytest.mark.parametrize("opening", [b"", b"\x80"], ids=["nothing", "half a number"])
async def test_who_does_not_open_the_tube_is_cut_off(start: Start, transport: str, opening: bytes) -> None:
    ended: list[Tube] = []
    server = await start(
        echo, TubeOptions(handshake_seconds=0.05), admit=lambda tube: not tube.when_closed(ended.append)
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    async with Stranger(reader, writer) as stranger:
        stranger.say(opening)
        assert await stranger.hear_end() == b""
    assert "did not open the tube within 0.05 s" in str(ended[0].error)
    assert server.tubes == []
