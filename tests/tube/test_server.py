from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest
from tests.tube.conftest import Start
from tests.tube.serving import echo, until, url
from tests.tube.stranger import Stranger, dial
from tests.tube.test_session import Collector

from headrace.errors import HeadraceError, UnreachableError, UsageError
from headrace.tube import Tube, TubeOptions, connect, serve


async def test_a_socket_of_your_own(transport: str) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    server = await serve(echo, transport=transport, sock=sock)  # type: ignore[arg-type]
    async with server:
        assert server.addresses[0].port == sock.getsockname()[1]
        async with connect(url(server)) as tube:
            await tube.send(b"a")
            assert await tube.receive() == b"a"


async def test_a_unix_socket_of_your_own(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "tube"))
        async with serve(echo, sock=sock) as server:
            assert server.addresses[0].host == str(tmp_path / "tube")
            async with Stranger(*await asyncio.open_unix_connection(tmp_path / "tube")) as stranger:
                stranger.say(bytes.fromhex("808020 010261"))
                assert await stranger.hear(6) == bytes.fromhex("808020 010261")
                assert server.tubes[0].peer.host == "somebody"


async def test_an_address_that_is_taken(start: Start) -> None:
    server = await start(echo)
    with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1:"):
        await serve(echo, "127.0.0.1", server.addresses[0].port)


def test_a_transport_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="expected 'tcp' or 'websocket'"):
        serve(echo, transport="udp")  # type: ignore[arg-type]


async def test_closing_handles_what_was_received_and_answers_it(start: Start) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def hesitate(tube: Tube) -> None:
        async for message in tube:
            begun.set()
            await go_on.wait()
            await tube.send(message)

    server = await start(hesitate)
    async with connect(url(server)) as tube:
        for number in range(100):
            await tube.send(bytes([number]))
        await begun.wait()
        await until(lambda: server.tubes[0].counts.messages_received >= 100)
        server.close()
        server.close()
        with pytest.raises(UnreachableError):
            await connect(url_of(tube))
        go_on.set()
        assert [message[0] async for message in tube] == list(range(100))
        await server.wait_closed()


def url_of(tube: Tube) -> str:
    return f"{'tube' if tube.transport.value == 'tcp' else 'ws'}://{tube.peer}"


async def test_a_handler_that_does_not_end_is_cancelled(start: Start) -> None:
    cancelled = asyncio.Event()

    async def stay(tube: Tube) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = await start(stay, TubeOptions(close_seconds=0.05))
    async with connect(url(server)):
        await until(lambda: server.tubes)
        server.close()
        await server.wait_closed()
        assert cancelled.is_set()


async def test_closing_ends_those_without_a_task_and_those_not_yet_open(start: Start, transport: str) -> None:
    collector = Collector()
    server = await start(lambda tube: tube.attach(collector))
    async with connect(url(server)) as tube, await dial(transport, server.addresses[0]) as stranger:
        await tube.send(b"a")
        await until(lambda: collector.messages)
        server.close()
        assert [message async for message in tube] == []
        await stranger.hear_end()
        await server.wait_closed()
    assert collector.ends == [None]


async def test_a_handler_that_calls_instead_of_awaiting(start: Start) -> None:
    class Echo(Collector):
        def __init__(self, tube: Tube) -> None:
            super().__init__()
            self.tube = tube
            tube.attach(self)

        def on_message(self, message: bytes | bytearray) -> None:
            self.tube.write_parts([b"> ", message])

        def on_end(self, error: HeadraceError | None) -> None:
            super().on_end(error)
            self.tube.start_closing()

    made: list[Echo] = []
    server = await start(lambda tube: made.append(Echo(tube)))
    async with connect(url(server)) as tube:
        for message in (b"one", b"two"):
            await tube.send(message)
            assert await tube.receive() == b"> " + message
    await until(lambda: made[0].tube.closed)
    assert made[0].ends == [None]


async def test_a_handler_that_fails_is_reported_and_its_tube_closed(start: Start) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def fail(tube: Tube) -> None:
        raise ZeroDivisionError(bytes(await tube.receive()))

    server = await start(fail)
    async with connect(url(server)) as tube:
        await tube.send(b"why")
        assert [message async for message in tube] == []
    (context,) = reported
    assert isinstance(context["exception"], ZeroDivisionError)
    assert str(tube.local) in str(context["message"])


async def test_how_a_tube_ended_is_no_failure_of_its_handler(
    start: Start, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.tube")
    server = await start(echo)
    async with await dial(transport, server.addresses[0]) as stranger:
        stranger.say(b"\x02")
        await stranger.hear(3)
        stranger.say(b"\x90")
        await stranger.hear_end()
    await until(lambda: "message code 18" in caplog.text)


async def test_who_is_not_admitted_is_cut_off_before_a_word(start: Start) -> None:
    asked: list[Tube] = []

    def admit(tube: Tube) -> bool:
        asked.append(tube)
        return len(asked) > 1

    server = await start(echo, admit=admit)
    with pytest.raises(UnreachableError):
        await connect(url(server))
    async with connect(url(server)) as tube:
        assert asked[1].peer == tube.local
    assert asked[0].peer.host == "127.0.0.1"
    assert asked[0].closed


async def test_many_tubes_at_once(start: Start) -> None:
    server = await start(echo)

    async def talk(number: int) -> None:
        message = number.to_bytes(4) * 5000
        async with connect(url(server)) as tube:
            for _ in range(3):
                await tube.send(message)
            assert [await tube.receive() for _ in range(3)] == [message] * 3

    async with asyncio.TaskGroup() as group:
        for number in range(60):
            group.create_task(talk(number))
    await until(lambda: not server.tubes)
