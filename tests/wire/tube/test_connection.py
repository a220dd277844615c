from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.golden import cut

from headrace.errors import LimitError, MalformedError, UnexpectedError
from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.connection import (
    TRANSITIONS,
    Compression,
    CompressionRefused,
    Evidence,
    Ignored,
    Opened,
    Side,
    Transport,
    TubeConnection,
    TubeEvent,
)
from headrace.wire.tube.frames import (
    COMPRESS_FROM,
    DEFLATE,
    RAW,
    Discarded,
    Message,
    NotSupported,
    Ping,
    Pong,
    stream_pieces,
    websocket_pieces,
)
from headrace.wire.tube.reassembly import TubeLimits

both_transports = pytest.mark.parametrize("transport", Transport)

PING, PONG, REFUSAL = b"\x80", b"\x88", b"\x48"
TEXT = b"the wheel turns while the water runs; " * 40
PACKED = zlib.compress(TEXT, 1)


def written(pieces: Iterable[Buffer]) -> list[bytes]:
    return [bytes(piece) for piece in pieces]


def received(connection: TubeConnection, *pieces: Buffer) -> list[TubeEvent]:
    return [event for piece in pieces for event in connection.receive(piece)]


def pair(
    transport: Transport,
    client: TubeLimits | None = None,
    server: TubeLimits | None = None,
    *,
    compress: bool = True,
) -> tuple[TubeConnection, TubeConnection]:
    """A client and a server that have exchanged their fragment sizes."""
    one = TubeConnection(Side.CLIENT, transport, client or TubeLimits(), compress=compress)
    two = TubeConnection(Side.SERVER, transport, server or TubeLimits(), compress=compress)
    assert received(two, *one.data_to_send()) == [Opened(one.limits.fragment_size)]
    assert received(one, *two.data_to_send()) == [Opened(two.limits.fragment_size)]
    return one, two


def raw(transport: Transport, message: bytes, compression: int = RAW, size: int = 1 << 18) -> list[bytes]:
    return written(
        (stream_pieces if transport is Transport.TCP else websocket_pieces)(message, size, compression)
    )


# Opening


@both_transports
def test_the_client_speaks_first_and_the_server_answers(transport: Transport) -> None:
    client = TubeConnection(Side.CLIENT, transport, TubeLimits(fragment_size=100))
    server = TubeConnection(Side.SERVER, transport, TubeLimits(fragment_size=32000))
    assert written(server.data_to_send()) == []
    first = written(client.data_to_send())
    assert first == [bytes.fromhex("c801")]
    assert received(server, *first) == [Opened(100)]
    answer = written(server.data_to_send())
    assert answer == [bytes.fromhex("80f403")]
    assert received(client, *answer) == [Opened(32000)]
    assert (client.peer_fragment_size, server.peer_fragment_size) == (32000, 100)
    assert written(client.data_to_send()) == written(server.data_to_send()) == []


@pytest.mark.parametrize("side", Side)
@both_transports
def test_nothing_is_sent_before_the_sizes_are_exchanged(side: Side, transport: Transport) -> None:
    connection = TubeConnection(side, transport)
    with pytest.raises(UnexpectedError, match="message 'before opening'"):
        connection.send(b"hello")
    with pytest.raises(UnexpectedError, match="ping 'before opening'"):
        connection.ping()


@both_transports
def test_what_a_server_sends_first_still_follows_its_size(transport: Transport) -> None:
    server = TubeConnection(Side.SERVER, transport, TubeLimits(fragment_size=100))
    out: list[bytes] = []
    for _ in server.receive(b"\x02"):
        out += written(server.send(b"a"))
    assert out == [b"\xc8\x01", *raw(transport, b"a")]


@both_transports
def test_the_sender_obeys_the_peers_size(transport: Transport) -> None:
    client, server = pair(transport, TubeLimits(fragment_size=3), TubeLimits(fragment_size=4))
    assert written(client.send(b"abcdefghij")) == raw(transport, b"abcdefghij", size=4)
    assert written(server.send(b"abcdefghij")) == raw(transport, b"abcdefghij", size=3)


@both_transports
def test_messages_over_the_limit_are_not_sent(transport: Transport) -> None:
    client, _ = pair(transport, TubeLimits(max_message=10))
    assert written(client.send(bytes(10)))
    with pytest.raises(LimitError) as refused:
        client.send(bytes(11))
    assert (refused.value.field, refused.value.value, refused.value.limit) == ("message length", 11, 10)
    assert written(client.data_to_send()) == []


def test_the_longest_websocket_message_has_a_header_in_front() -> None:
    connection = TubeConnection(Side.SERVER, Transport.WEBSOCKET, TubeLimits(fragment_size=1000))
    assert connection.max_payload == 1006


# Ping and Pong


@both_transports
def test_ping_is_answered_by_the_connection(transport: Transport) -> None:
    client, server = pair(transport)
    ping = written(client.ping())
    assert ping == [PING]
    assert received(server, *ping) == [Ping()]
    pong = written(server.data_to_send())
    assert pong == [PONG]
    assert received(client, *pong) == [Pong()]
    assert written(client.data_to_send()) == []


@both_transports
def test_answers_go_before_what_is_sent_after_them(transport: Transport) -> None:
    _, server = pair(transport)
    assert received(server, PING) == [Ping()]
    assert written(server.send(b"a")) == [PONG, *raw(transport, b"a")]


@both_transports
def test_a_pong_nobody_asked_for_is_ignored(transport: Transport) -> None:
    client, server = pair(transport)
    assert received(client, PONG) == [Ignored(Pong())]
    client.ping()
    assert received(client, PONG, PONG) == [Pong(), Ignored(Pong())]
    assert written(server.data_to_send()) == []


# Compression


@both_transports
def test_compression_is_on_trial_until_the_pong(transport: Transport) -> None:
    client, server = pair(transport)
    assert client.compression.state is Compression.UNTRIED
    first = written(client.send(TEXT))
    assert first == [*raw(transport, PACKED, DEFLATE), PING]
    assert client.compression.state is Compression.ON_TRIAL
    second = written(client.send(TEXT))
    assert second == raw(transport, TEXT)

    assert received(server, *first, *second) == [Message(TEXT, DEFLATE), Ping(), Message(TEXT)]
    assert received(client, *server.data_to_send()) == []
    assert client.compression.state is Compression.AGREED
    assert written(client.send(TEXT)) == raw(transport, PACKED, DEFLATE)


@both_transports
def test_a_refused_message_is_repeated_and_compression_ends(transport: Transport) -> None:
    client, _ = pair(transport)
    message = bytearray(TEXT)
    written(client.send(message))
    message[:] = bytes(len(message))
    assert received(client, REFUSAL) == [CompressionRefused(DEFLATE, repeated=True)]
    assert written(client.data_to_send()) == raw(transport, TEXT)
    assert client.compression.state is Compression.OFF
    assert received(client, PONG) == []
    assert client.compression.state is Compression.OFF
    assert written(client.send(TEXT)) == raw(transport, TEXT)
    assert received(client, REFUSAL) == [Ignored(NotSupported(DEFLATE))]
    assert written(client.data_to_send()) == []


@both_transports
def test_the_repeated_message_obeys_the_peers_size(transport: Transport) -> None:
    client, _ = pair(transport, server=TubeLimits(fragment_size=7))
    client.send(TEXT)
    received(client, REFUSAL)
    assert written(client.data_to_send()) == raw(transport, TEXT, size=7)


@both_transports
def test_the_trial_ends_with_its_own_pong(transport: Transport) -> None:
    """Pings of the caller's stand before and behind the trial's: only the second Pong is the trial's."""
    client, _ = pair(transport)
    client.ping()
    client.send(TEXT)
    client.ping()
    assert received(client, PONG) == [Pong()]
    assert client.compression.state is Compression.ON_TRIAL
    assert received(client, PONG) == []
    assert client.compression.state is Compression.AGREED
    assert received(client, PONG) == [Pong()]


@both_transports
def test_a_refusal_after_the_pong_ends_compression_without_repeating(transport: Transport) -> None:
    client, _ = pair(transport)
    client.send(TEXT)
    assert received(client, PONG) == []
    assert received(client, REFUSAL) == [CompressionRefused(DEFLATE, repeated=False)]
    assert written(client.data_to_send()) == []
    assert written(client.send(TEXT)) == raw(transport, TEXT)


@pytest.mark.parametrize("compression", range(1, 8))
@both_transports
def test_unsolicited_refusals_are_ignored(transport: Transport, compression: int) -> None:
    client, _ = pair(transport)
    refusal = bytes([8 + compression << 3])
    assert received(client, refusal) == [Ignored(NotSupported(compression))]
    assert client.compression.state is Compression.UNTRIED
    assert written(client.data_to_send()) == []


@pytest.mark.parametrize("compression", range(2, 8))
@both_transports
def test_other_refusals_do_not_end_the_trial(transport: Transport, compression: int) -> None:
    client, _ = pair(transport)
    client.send(TEXT)
    assert received(client, bytes([8 + compression << 3])) == [Ignored(NotSupported(compression))]
    assert client.compression.state is Compression.ON_TRIAL


@pytest.mark.parametrize("compression", range(2, 8))
@both_transports
def test_messages_in_unsupported_compressions_are_discarded_and_answered(
    transport: Transport, compression: int
) -> None:
    _, server = pair(transport)
    wire = raw(transport, b"hello tube", compression, size=3)
    assert received(server, *wire, *raw(transport, b"next")) == [Discarded(compression, 10), Message(b"next")]
    assert written(server.data_to_send()) == [bytes([(8 + compression) << 3])]


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"x",
        b"not deflate",
        zlib.compress(TEXT, wbits=-15),
        zlib.compress(TEXT, 0, wbits=-15),
        gzip.compress(TEXT),
    ],
    ids=["nothing", "a byte", "text", "raw deflate", "raw stored blocks", "gzip"],
)
@both_transports
def test_bytes_under_id_1_that_are_not_zlib_are_discarded_and_answered(
    transport: Transport, packed: bytes
) -> None:
    _, server = pair(transport)
    wire = raw(transport, packed, DEFLATE)
    assert received(server, *wire, *raw(transport, b"next")) == [
        Discarded(DEFLATE, len(packed)),
        Message(b"next"),
    ]
    assert written(server.data_to_send()) == [REFUSAL]


def test_a_peer_that_joins_headers_is_answered_so() -> None:
    client, server = pair(Transport.WEBSOCKET, client=TubeLimits(fragment_size=3))
    assert written(server.send(b"hello")) == [b"\x02", b"hel", b"lo"]
    assert received(server, b"\x01hello") == [Message(b"hello")]
    assert written(server.send(b"hello")) == [b"\x02hel", b"lo"]
    assert written(server.send(b"")) == [b"\x01", b""]
    assert received(client, b"\x02hel", b"lo", b"\x01", b"") == [Message(b"hello"), Message(b"")]
    assert written(client.send(b"hello")) == [b"\x01hello"]
    assert received(server, b"\x01", b"hello") == [Message(b"hello")]
    assert written(server.send(b"abcd")) == [b"\x02abc", b"d"]


@pytest.mark.parametrize("message", [b"", bytes(COMPRESS_FROM - 1), os.urandom(5000), os.urandom(1 << 16)])
@both_transports
def test_what_does_not_pay_goes_raw_and_starts_no_trial(transport: Transport, message: bytes) -> None:
    client, _ = pair(transport)
    assert written(client.send(message)) == raw(transport, message)
    assert client.compression.state is Compression.UNTRIED


@both_transports
def test_compression_can_be_off_and_compressed_messages_are_still_taken(transport: Transport) -> None:
    client, server = pair(transport, compress=False)
    assert written(client.send(TEXT)) == raw(transport, TEXT)
    assert received(server, *raw(transport, PACKED, DEFLATE)) == [Message(TEXT, DEFLATE)]


def test_the_compression_table() -> None:
    sent = {state for state, evidence in TRANSITIONS if evidence is Evidence.SENT}
    assert sent == {Compression.UNTRIED, Compression.AGREED}
    assert not any(state is Compression.OFF for state, _ in TRANSITIONS)


# Receiving


@both_transports
def test_a_refused_connection_stays_refused(transport: Transport) -> None:
    _, server = pair(transport)
    broken = raw(transport, PACKED[:-1], DEFLATE)
    with pytest.raises(MalformedError) as refused:
        received(server, *broken)
    with pytest.raises(MalformedError) as again:
        received(server, PING)
    assert again.value is refused.value
    assert written(server.data_to_send()) == []


@both_transports
def test_answers_to_what_came_before_a_refusal_remain(transport: Transport) -> None:
    _, server = pair(transport)
    assert received(server, PING) == [Ping()]
    with pytest.raises(MalformedError):
        received(server, b"\x90")
    assert written(server.data_to_send()) == [PONG]


@both_transports
def test_a_cut_message_is_unfinished(transport: Transport) -> None:
    client, server = pair(transport)
    *pieces, _ = raw(transport, b"hello", size=4)
    assert received(server, *pieces) == []
    assert server.unfinished
    assert not client.unfinished


# Both ends


sizes = st.integers(1, 50) | st.sampled_from([4096, 1 << 18])
messages = (
    st.binary(max_size=100)
    | st.tuples(st.binary(min_size=1, max_size=8), st.integers(1, 900)).map(lambda t: t[0] * t[1])
    | st.integers(0, 6000).map(bytes)
)
steps = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.none() | messages | st.just("deliver"))
    | st.tuples(st.sampled_from([0, 1]), st.just("deliver")),
    max_size=30,
)


@given(
    st.sampled_from(Transport), sizes, sizes, st.booleans(), steps, st.lists(st.integers(0, 5000), max_size=8)
)
def test_every_message_arrives_once_in_order(
    transport: Transport,
    client_size: int,
    server_size: int,
    compress: bool,
    steps: list[tuple[int, bytes | str | None]],
    places: list[int],
) -> None:
    """Both ends send, ping and deliver in any interleaving; ``None`` is a ping."""
    ends = pair(
        transport,
        TubeLimits(fragment_size=client_size),
        TubeLimits(fragment_size=server_size),
        compress=compress,
    )
    flying: tuple[list[bytes], list[bytes]] = ([], [])
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    arrived: tuple[list[bytes], list[bytes]] = ([], [])
    pings, pongs = [0, 0], [0, 0]

    def deliver(origin: int) -> None:
        target = 1 - origin
        wire, flying[origin][:] = flying[origin][:], []
        for chunk in cut(b"".join(wire), places) if transport is Transport.TCP else wire:
            for event in ends[target].receive(chunk):
                assert not isinstance(event, Ignored | Discarded | CompressionRefused)
                if isinstance(event, Message):
                    arrived[target].append(bytes(event.data))
                pongs[target] += isinstance(event, Pong)
        flying[target].extend(written(ends[target].data_to_send()))

    for end, action in [*steps, *[(0, "deliver"), (1, "deliver")] * 3]:
        if action is None:
            pings[end] += 1
            flying[end].extend(written(ends[end].ping()))
        elif isinstance(action, bytes):
            sent[end].append(action)
            flying[end].extend(written(ends[end].send(action)))
        else:
            deliver(end)

    assert (arrived[1], arrived[0]) == sent
    assert pongs == pings
    assert flying == ([], [])
    assert not any(end.unfinished for end in ends)
    assert all(end.compression.state is not Compression.ON_TRIAL for end in ends)
