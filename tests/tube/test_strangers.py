"""Sessions as a stranger's implementation would have them, byte by byte, in both roles and over both transports."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.tube.conftest import Start
from tests.tube.serving import echo, until, url
from tests.tube.stranger import CLOSE, PING, PONG, TEXT, Stranger, WebSocketStranger, dial, host

from headrace.errors import HeadraceError, MalformedError, RefusedError, UnreachableError
from headrace.tube import Tube, TubeOptions, connect, serve

RAW = TubeOptions(compress=False)


def octets(text: str) -> bytes:
    return bytes.fromhex(text)


@asynccontextmanager
async def websocket_client() -> AsyncIterator[WebSocketStranger]:
    """A stranger connected to an echo."""
    async with (
        serve(echo, port=0, transport="websocket") as server,
        await dial("websocket", server.addresses[0]) as stranger,
    ):
        assert isinstance(stranger, WebSocketStranger)
        yield stranger


# What a client says over TCP, and what an echo answers. Its fragments are at most 100 bytes long.
TCP_TALK = [
    ("a message in one fragment", "01 0a 68656c6c6f", "01 0a 68656c6c6f"),
    ("in two", "02 06 68656c 04 6c6f", "01 0a 68656c6c6f"),
    ("in eight, counted", "00 10 0261 0262 0263 0264 0265 0266 0267 0268", "01 10 6162636465666768"),
    ("in one, counted though it need not be", "00 02 0a 68656c6c6f", "01 0a 68656c6c6f"),
    ("with an empty fragment", "02 00 0a 68656c6c6f", "01 0a 68656c6c6f"),
    ("an empty message", "01 00", "01 00"),
    ("of no fragments at all", "00 00", "01 00"),
    ("ping", "80", "88"),
    ("ping with low bits set", "85", "88"),
    ("a pong nobody asked for, then a message", "88 01 0261", "01 0261"),
    ("a refusal of what was never sent, then a message", "48 78 01 0261", "01 0261"),
    ("deflate", "09 1e 78012b294d4a5528412100 47d30721", "01 26" + b"tube tube tube tube".hex()),
    *((f"compression {n}", f"{n << 3 | 1:02x} 06 010203", f"{8 + n << 3:02x}") for n in range(2, 8)),
    ("raw deflate", "09 12 2b294d4a5528412100", "48"),
    ("nothing at all as deflate", "08 00", "48"),
    (
        "250 bytes in fragments of 100",
        "01 f403" + "41" * 250,
        "03" + "c801" + "41" * 100 + "c801" + "41" * 100 + "64" + "41" * 50,
    ),
]

# The same over WebSocket: each element is one binary message.
WEBSOCKET_TALK = [
    ("the header on its own", ["01", "68656c6c6f"], ["01", "68656c6c6f"]),
    ("on its own, counted", ["00 04", "68656c", "6c6f"], ["01", "68656c6c6f"]),
    ("an empty message", ["01", ""], ["01", ""]),
    ("of no fragments at all", ["00 00"], ["01", ""]),
    ("ping", ["80"], ["88"]),
    ("ping with low bits set", ["87"], ["88"]),
    ("a pong nobody asked for, then a message", ["88", "01", "61"], ["01", "61"]),
    ("deflate", ["09", "78012b294d4a5528412100 47d30721"], ["01", b"tube tube tube tube".hex()]),
    *((f"compression {n}", [f"{n << 3 | 1:02x}", "010203"], [f"{8 + n << 3:02x}"]) for n in range(2, 8)),
    ("raw deflate", ["09", "2b294d4a5528412100"], ["48"]),
    ("250 bytes in fragments of 100", ["01", "41" * 250], ["03", "41" * 100, "41" * 100, "41" * 50]),
]

# A client that begins the first fragment with the header is answered in its own framing.
JOINED_TALK = [
    ("on its own at first", ["01", "68656c6c6f"], ["01", "68656c6c6f"]),
    ("the header joined to the first fragment", ["01 68656c6c6f"], ["01 68656c6c6f"]),
    ("joined, in two", ["02 68656c", "6c6f"], ["01 68656c6c6f"]),
    ("joined, counted", ["00 04 68656c", "6c6f"], ["01 68656c6c6f"]),
    ("once on its own again", ["01", "68656c6c6f"], ["01 68656c6c6f"]),
    ("an empty message: a lone header is never fragment 1", ["01", ""], ["01", ""]),
    ("ping", ["80"], ["88"]),
    ("deflate", ["09 78012b294d4a5528412100 47d30721"], ["01" + b"tube tube tube tube".hex()]),
    *((f"compression {n}", [f"{n << 3 | 1:02x} 010203"], [f"{8 + n << 3:02x}"]) for n in range(2, 8)),
    ("raw deflate", ["09 2b294d4a5528412100"], ["48"]),
    (
        "250 bytes in fragments of 100, to which the header does not count",
        ["01" + "41" * 250],
        ["03" + "41" * 100, "41" * 100, "41" * 50],
    ),
]


async def test_a_tcp_session_of_a_strange_client() -> None:
    async with serve(echo, port=0) as server, await dial("tcp", server.addresses[0]) as stranger:
        stranger.say(octets("c801"))
        assert await stranger.hear(3) == octets("808020")
        for what, said, answer in TCP_TALK:
            stranger.say(octets(said))
            assert await stranger.hear(len(octets(answer))) == octets(answer), what
        stranger.finish()
        assert await stranger.hear_end() == b""


async def test_all_of_it_at_once_and_a_half_close() -> None:
    """A client like ``nc``: it sends, shuts its side down, and reads the answers."""
    async with serve(echo, port=0) as server, await dial("tcp", server.addresses[0]) as stranger:
        stranger.say(octets("c801"), *(octets(said) for _, said, _ in TCP_TALK))
        stranger.finish()
        heard = await stranger.hear_end()
        answers = [octets(answer) for _, _, answer in TCP_TALK]
        # Answers to Pings overtake the echoes, which take a turn of their own; nothing is lost or added.
        assert heard[:3] == octets("808020")
        assert len(heard) == 3 + sum(map(len, answers))
        assert sorted(heard[3:]) == sorted(b"".join(answers))


@pytest.mark.parametrize("talk", [WEBSOCKET_TALK, JOINED_TALK], ids=["on its own", "joined"])
async def test_a_websocket_session_of_a_strange_client(talk: list[tuple[str, list[str], list[str]]]) -> None:
    async with websocket_client() as stranger:
        stranger.say(octets("c801"))
        assert await stranger.hear_piece() == octets("808020")
        for what, said, answers in talk:
            stranger.say(*map(octets, said))
            for answer in answers:
                assert await stranger.hear_piece() == octets(answer), what
        stranger.say_frame(CLOSE, octets("03e8"))
        assert await stranger.hear_frame() == (CLOSE, octets("03e8"))


async def test_websocket_features_a_strange_client_may_use() -> None:
    """Its own pings, and messages in several frames, with control frames in between."""
    async with websocket_client() as stranger:
        stranger.say_frame(0x02, octets("c8"))
        stranger.say_frame(PING, b"there?")
        stranger.say_frame(0x80, octets("01"))
        assert await stranger.hear_frame() == (PONG, b"there?")
        assert await stranger.hear_piece() == octets("808020")
        stranger.say_frame(0x02, octets("01"))
        stranger.say_frame(0x00, b"hel")
        stranger.say_frame(0x80, b"lo")
        assert await stranger.hear(6) == b"\x01hello"


async def test_permessage_deflate_stays_off() -> None:
    async with serve(echo, port=0, transport="websocket") as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with WebSocketStranger(reader, writer, masked=True) as stranger:
            answer = await stranger.request("/any/path", "Sec-WebSocket-Extensions: permessage-deflate")
            assert answer.startswith(b"HTTP/1.1 101 ")
            assert b"Extensions" not in answer


@pytest.mark.parametrize(
    ("opening", "origins", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", None, b"426"),
        (b"POST / HTTP/1.1\r\nHost: here\r\n\r\n", None, b"405"),
        (b"GET / HTTP/1.1\r\nHost: here" + b"e" * 9000 + b"\r\n\r\n", None, b"431"),
    ],
)
async def test_what_is_not_a_websocket_gets_an_http_answer(
    opening: bytes, origins: list[str | None] | None, status: bytes
) -> None:
    ended: list[Tube] = []
    async with (
        serve(
            echo, port=0, transport="websocket", admit=lambda tube: not tube.when_closed(ended.append)
        ) as server,
        await dial("tcp", server.addresses[0]) as stranger,
    ):
        stranger.say(opening)
        assert (await stranger.hear_end()).startswith(b"HTTP/1.1 " + status)
    (tube,) = ended
    assert isinstance(tube.error, MalformedError)
    assert tube.error.field == "websocket handshake"


async def test_origins() -> None:
    async with serve(echo, port=0, transport="websocket", origins=["https://here.example", None]) as server:
        for headers, status in [
            ([], b"101"),
            (["Origin: https://here.example"], b"101"),
            (["Origin: https://elsewhere.example"], b"403"),
        ]:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            async with WebSocketStranger(reader, writer, masked=True) as stranger:
                answer = await stranger.request("/", *headers)
                assert answer.startswith(b"HTTP/1.1 " + status)


# Strange servers


async def test_a_strange_tcp_server() -> None:
    async def behave(stranger: Stranger) -> None:
        # "Sent by client, immediately after the connection is established."
        assert await stranger.hear(2) == octets("c801")
        stranger.say(octets("06"))
        # Fragments of three bytes, as this server wants them.
        assert await stranger.hear(8) == octets("02 06 68656c 04 6c6f")
        assert await stranger.hear(1) == octets("80")
        stranger.say(octets("88 03 0261 0262 0263"))
        assert not (await stranger.hear_end()).strip(octets("80"))

    options = TubeOptions(fragment_size=100, compress=False, idle_seconds=0.05)
    async with host("tcp", behave) as url, connect(url, options=options) as tube:
        assert tube.fragment_size == 3
        await tube.send(b"hello")
        assert await tube.receive() == b"abc"


async def test_a_strange_websocket_server() -> None:
    async def behave(stranger: Stranger) -> None:
        assert isinstance(stranger, WebSocketStranger)
        assert await stranger.hear_piece() == octets("c801")
        stranger.say(octets("06"))
        assert [await stranger.hear_piece() for _ in range(3)] == [octets("02"), b"hel", b"lo"]
        assert await stranger.hear_piece() == octets("80")
        stranger.say(octets("88"), octets("03 61"), b"b", b"c")
        assert not (await stranger.hear_end()).strip(octets("80"))

    options = TubeOptions(fragment_size=100, compress=False, idle_seconds=0.05)
    async with host("websocket", behave) as url, connect(url, options=options) as tube:
        assert tube.fragment_size == 3
        await tube.send(b"hello")
        assert await tube.receive() == b"abc"


async def test_a_strange_websocket_server_that_joins_headers() -> None:
    async def behave(stranger: Stranger) -> None:
        assert isinstance(stranger, WebSocketStranger)
        await stranger.hear_piece()
        stranger.say(octets("06"), octets("02 616263"), b"d")
        assert [await stranger.hear_piece() for _ in range(2)] == [octets("02") + b"hel", b"lo"]
        # Eight fragments, and parts that were never one buffer.
        assert [await stranger.hear_piece() for _ in range(8)] == [
            octets("00 10") + b"aaa",
            *[b"aaa"] * 6,
            b"b",
        ]
        await stranger.hear_end()

    options = TubeOptions(compress=False)
    async with host("websocket", behave) as url, connect(url, options=options) as tube:
        assert await tube.receive() == b"abcd"
        await tube.send(b"hello")
        await tube.send_parts([b"a" * 21, b"b"])


async def test_a_strange_server_whose_deflate_is_raw(transport: str) -> None:
    """Its message is answered with 9, and comes again uncompressed on the same connection."""
    packed, tcp = zlib.compress(b"water " * 9, wbits=-15), transport == "tcp"

    async def behave(stranger: Stranger) -> None:
        await stranger.hear(3)
        stranger.say(octets("80 80 20"))
        stranger.say(*([octets("09") + varint(len(packed)) + packed] if tcp else [octets("09"), packed]))
        assert await stranger.hear(1) == octets("48")
        stranger.say(*([octets("01 0261")] if tcp else [octets("01"), b"a"]))
        await stranger.hear_end()

    async with host(transport, behave) as url, connect(url) as tube:
        assert await tube.receive() == b"a"
        assert tube.counts.discarded == 1


async def test_a_strange_server_without_deflate(transport: str) -> None:
    """It answers 9 to the first compressed message, which then comes again, raw, and so does all the rest."""
    text = b"the wheel turns while the water runs; " * 100
    raw, tcp = len(text), transport == "tcp"

    async def behave(stranger: Stranger) -> None:
        await stranger.hear(3)
        stranger.say(octets("80 80 20"))
        packed = zlib.compress(text, 1)
        head = octets("09") + (varint(len(packed)) if tcp else b"")
        assert await stranger.hear(len(head) + len(packed) + 1) == head + packed + octets("80")
        stranger.say(octets("48"), octets("88"))
        head = octets("01") + (varint(raw) if tcp else b"")
        for _ in range(2):
            assert await stranger.hear(len(head) + raw) == head + text
        stranger.say(*([octets("01 0261")] if tcp else [octets("01"), b"a"]))
        assert await stranger.hear_end() == b""

    async with host(transport, behave) as url, connect(url) as tube:
        await tube.send(text)
        await until(lambda: tube.counts.refused)
        await tube.send(text)
        assert await tube.receive() == b"a"
        assert tube.counts.compressed_sent == 1


async def test_closing_at_once_loses_nothing_at_a_strange_server_without_deflate(transport: str) -> None:
    """The tube stays until the server has said whether it knows deflate, and repeats the message if not."""
    text = b"the wheel turns while the water runs; " * 100
    raw, tcp = len(text), transport == "tcp"
    repeated: list[bytes] = []

    async def behave(stranger: Stranger) -> None:
        await stranger.hear(3)
        stranger.say(octets("80 80 20"))
        packed = zlib.compress(text, 1)
        head = octets("09") + (varint(len(packed)) if tcp else b"")
        assert await stranger.hear(len(head) + len(packed) + 1) == head + packed + octets("80")
        # Messages come too; nobody wants them any more.
        stranger.say(*([octets("01 0261")] if tcp else [octets("01"), b"a"]))
        stranger.say(octets("48"), octets("88"))
        head = octets("01") + (varint(raw) if tcp else b"")
        repeated.append((await stranger.hear(len(head) + raw))[len(head) :])
        assert await stranger.hear_end() == b""

    async with host(transport, behave) as url, connect(url) as tube:
        await tube.send(text)
        await tube.close()
        assert (tube.counts.compressed_sent, tube.counts.refused) == (1, 1)
    assert repeated == [text]


async def test_closing_at_once_at_a_strange_server_that_answers_no_ping(transport: str) -> None:
    """It has everything, and the tube ends in time."""
    text = b"the wheel turns while the water runs; " * 100

    async def behave(stranger: Stranger) -> None:
        await stranger.hear(3)
        stranger.say(octets("80 80 20"))
        await stranger.hear(1 + len(zlib.compress(text, 1)))
        await stranger.hear_end()

    async with host(transport, behave) as url, connect(url, options=TubeOptions(close_seconds=0.2)) as tube:
        await tube.send(text)
        await tube.close()


def varint(number: int) -> bytes:
    out, rest = bytearray(), number * 2
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


# Refusals, each costing the one connection


REFUSED = [
    ("a code that means nothing", [octets("40")], 1002),
    ("a reserved code", [octets("90")], 1002),
    ("a negative count", [octets("00 01")], 1002),
    ("a count past five bytes", [octets("00 ffffffffff01")], 1002),
    ("2^31-1 fragments", [octets("00 feffffff0f")], 1009),
    ("damaged deflate", [octets("09 0a 7801010203")], 1002),
]


@pytest.mark.parametrize(("what", "said", "code"), REFUSED, ids=[what for what, _, _ in REFUSED])
async def test_refused_bytes(start: Start, transport: str, what: str, said: list[bytes], code: int) -> None:
    ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def handler(tube: Tube) -> None:
        try:
            assert await anext(tube, b"a") == b"a"
            await anext(tube, None)
        except HeadraceError as error:
            ended.set_result(error)

    server = await start(handler, RAW)
    async with await dial(transport, server.addresses[0]) as stranger, connect(url(server)) as other:
        stranger.say(octets("c801"))
        await stranger.hear(3)
        # What came before is still handled.
        before = octets("01 0261") if transport == "tcp" else octets("01 61")
        if transport == "websocket" and what == "damaged deflate":
            said = [octets("09 7801010203")]  # no length stands in front
        stranger.say(before, *said)
        if isinstance(stranger, WebSocketStranger):
            first, payload = await stranger.hear_frame()
            assert (first, int.from_bytes(payload[:2])) == (CLOSE, code)
            assert payload[2:].startswith(b"tube: ")
        assert await stranger.hear_end() == b""
        assert type(await ended).__name__ in ("MalformedError", "LimitError")
        assert not other.closed


@pytest.mark.parametrize("size", ["00", "01", "ffffffffff01"])
async def test_refused_fragment_sizes(start: Start, transport: str, size: str) -> None:
    ended: list[Tube] = []
    server = await start(echo, admit=lambda tube: not tube.when_closed(ended.append))
    async with await dial(transport, server.addresses[0]) as stranger:
        stranger.say(octets(size))
        await stranger.hear_end()
    await until(lambda: ended)
    assert isinstance(ended[0].error, MalformedError)
    assert ended[0].error.field == "fragment size"


async def test_a_server_that_is_no_tube(transport: str) -> None:
    async def behave(stranger: Stranger) -> None:
        await stranger.hear(3)
        stranger.say(octets("00"))
        await stranger.hear_end()

    async with host(transport, behave) as url:
        with pytest.raises(MalformedError, match="fragment size 0"):
            await connect(url)


async def test_text_messages_are_refused() -> None:
    async with websocket_client() as stranger:
        stranger.say_frame(TEXT, b"hello")
        first, payload = await stranger.hear_frame()
        assert (first, int.from_bytes(payload[:2])) == (CLOSE, 1003)


async def test_a_peer_that_refuses_is_visible_as_such() -> None:
    async def behave(stranger: Stranger) -> None:
        assert isinstance(stranger, WebSocketStranger)
        await stranger.hear_piece()
        stranger.say(octets("02"))
        stranger.say_frame(CLOSE, octets("03f1") + b"not that long")
        await stranger.hear_end()

    async with host("websocket", behave) as url, connect(url) as tube:
        with pytest.raises(RefusedError, match="not that long") as caught:
            await tube.receive()
        assert caught.value.code == "websocket-1009"
        with pytest.raises(RefusedError):
            await tube.send(b"a")


async def test_a_web_server_that_says_no() -> None:
    async def behave(stranger: Stranger) -> None:
        await stranger.reader.readuntil(b"\r\n\r\n")
        stranger.say(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await stranger.hear_end()

    async with host("tcp", behave) as url:
        with pytest.raises(RefusedError, match="Not Found") as caught:
            await connect(url.replace("tube:", "ws:"))
        assert caught.value.code == "http-404"


async def test_what_does_not_answer_in_http() -> None:
    async def babble(stranger: Stranger) -> None:
        await stranger.reader.readuntil(b"\r\n\r\n")
        stranger.say(octets("80 80 20 01 0a 68656c6c6f 0d0a 0d0a"))
        await stranger.hear_end()

    async def hang_up(stranger: Stranger) -> None:
        await stranger.reader.readuntil(b"\r\n\r\n")

    async with host("tcp", babble) as url:
        with pytest.raises(MalformedError, match="websocket handshake"):
            await connect(url.replace("tube:", "ws:"))
    async with host("tcp", hang_up) as url:
        with pytest.raises(UnreachableError):
            await connect(url.replace("tube:", "ws:"))
