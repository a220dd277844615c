from __future__ import annotations

import itertools
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.golden import Golden, check_golden, cut, read_bytewise, read_whole
from tests.wire.outcome import outcome_and_rest, traced_peak

from headrace.errors import LimitError, MalformedError
from headrace.wire.receive_buffer import Decoder
from headrace.wire.spp import (
    MAX_AUTH,
    MAX_PACKET,
    MAX_SERVICE,
    Auth,
    Authenticated,
    ClientDecoder,
    ClientFrame,
    Ignored,
    Info,
    Offer,
    Publish,
    Removed,
    ServerDecoder,
    ServerFrame,
    Subscribe,
    Unsubscribe,
    serialize,
    serialize_infos,
)

FROM_SERVER = [
    Golden("spp", "Offer load", Offer("load")),
    Golden("spp", "Offer größe", Offer("größe")),
    Golden("spp", "Removed load", Removed("load")),
    Golden("spp", "Info load", Info("load", b'{"cpu":7}')),
    Golden("spp", "Info empty", Info("load", b"")),
    Golden("spp", "Authenticated accepted", Authenticated(True)),
    Golden("spp", "Authenticated refused", Authenticated(False)),
    Golden("spp", "Authenticated with a challenge", Authenticated(False, b"once")),
    Golden("spp", "32 from a server", Ignored(32, 4)),
    Golden("spp", "reserved 17 from a server", Ignored(17, 1)),
]

FROM_CLIENT = [
    Golden("spp", "Subscribe load", Subscribe("load")),
    Golden("spp", "Unsubscribe load", Unsubscribe("load")),
    Golden("spp", "Auth", Auth(b'{"token":"a"}')),
    Golden("spp", "Publish load", Publish("load", b'{"cpu":8}')),
    Golden("spp", "test value", Ignored(0, 3)),
    Golden("spp", "empty test value", Ignored(0, 0)),
    Golden("spp", "16 from a client", Ignored(16, 4)),
    Golden("spp", "32 from a client", Ignored(32, 6)),
    Golden("spp", "33 with a user name and a password", Ignored(33, 21)),
    Golden("spp", "type 4294967295", Ignored(0xFFFFFFFF, 1)),
]

GOLDEN = FROM_SERVER + FROM_CLIENT

AUTH, PUBLISH = 0x48520001, 0x48520002
FOREIGN_TYPES = [0, *range(3, 16), *range(17, 36), 99, 1 << 31, AUTH - 1, PUBLISH + 1, 0xFFFFFFFF]
"""Msgtypes that nobody reads, in either direction."""


def packet(msgtype: int, data: bytes) -> bytes:
    return struct.pack("!II", msgtype, len(data)) + data


def string(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


@pytest.mark.parametrize("golden", FROM_SERVER, ids=lambda golden: golden.name)
def test_golden_from_server(golden: Golden) -> None:
    check_golden(golden, ClientDecoder, following=serialize(Offer("next"))[:-1])


@pytest.mark.parametrize("golden", FROM_CLIENT, ids=lambda golden: golden.name)
def test_golden_from_client(golden: Golden) -> None:
    check_golden(golden, ServerDecoder, following=serialize(Subscribe("next"))[:-1])


@pytest.mark.parametrize(
    "golden", [g for g in GOLDEN if not isinstance(g.frame, Ignored)], ids=lambda golden: golden.name
)
def test_golden_is_what_we_write(golden: Golden) -> None:
    assert serialize(golden.frame) == golden.wire


# What is refused


@pytest.mark.parametrize("decoder", [ServerDecoder, ClientDecoder])
@pytest.mark.parametrize("msgtype", [1, 2])
@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "at least 4 bytes"),
        (b"\0\0\0", "at least 4 bytes"),
        (b"\0\0\0\5load", "only 4 bytes"),
        (b"\xff\xff\xff\xffload", "only 4 bytes"),
        (b"\0\0\0\4load!", "1 bytes trail"),
        (b"\0\0\0\0load", "4 bytes trail"),
        (b"\0\0\0\1\xff", "UTF-8"),
        (b"\0\0\0\3\xed\xa0\x80", "UTF-8"),
    ],
)
def test_services_are_exactly_one_string(
    decoder: type[Decoder[Any]], msgtype: int, data: bytes, rule: str
) -> None:
    for read in (read_whole, read_bytewise):
        with pytest.raises(MalformedError, match=rule) as caught:
            read(decoder(), packet(msgtype, data))
        assert (caught.value.protocol, caught.value.field, caught.value.offset) == ("spp", "service", 8)


@pytest.mark.parametrize(
    ("data", "field", "rule"),
    [
        (b"", "service", "at least 4 bytes"),
        (string(b"load"), "message", "at least 4 bytes"),
        (string(b"load") + b"\0\0\0", "message", "at least 4 bytes"),
        (string(b"load") + b"\0\0\0\2a", "message", "only 1 bytes"),
        (string(b"load") + b"\0\0\0\1ab", "message", "1 bytes trail"),
        (string(b"\xff") + string(b"a"), "service", "UTF-8"),
    ],
)
def test_infos_are_exactly_two_strings(data: bytes, field: str, rule: str) -> None:
    for read in (read_whole, read_bytewise):
        with pytest.raises(MalformedError, match=rule) as caught:
            read(ClientDecoder(), packet(16, data))
        assert caught.value.field == field


@pytest.mark.parametrize("decoder", [ServerDecoder, ClientDecoder])
@pytest.mark.parametrize("msgtype", [1, 2, AUTH])
def test_a_length_over_the_limit_is_refused_by_its_header(
    decoder: type[ServerDecoder | ClientDecoder], msgtype: int
) -> None:
    header = struct.pack("!II", msgtype, 101)
    with pytest.raises(LimitError) as caught:
        read_bytewise(decoder(max_packet=100), header)
    assert (caught.value.field, caught.value.value, caught.value.limit) == ("length", 101, 100)
    with pytest.raises(LimitError):
        read_whole(decoder(), struct.pack("!II", msgtype, MAX_PACKET + 1))


def test_a_service_over_the_limit_is_refused_by_its_length() -> None:
    begun = struct.pack("!III", 1, 4 + MAX_SERVICE + 1, MAX_SERVICE + 1)
    with pytest.raises(LimitError) as caught:
        read_whole(ServerDecoder(), begun)
    assert (caught.value.field, caught.value.value, caught.value.limit) == ("service", 1025, 1024)
    longest = serialize(Subscribe("x" * MAX_SERVICE))
    assert read_whole(ServerDecoder(), longest) == [Subscribe("x" * MAX_SERVICE)]
    with pytest.raises(LimitError):
        read_whole(ServerDecoder(max_service=3), serialize(Subscribe("load")))


def test_what_came_before_a_refusal_counts_and_nothing_after_it() -> None:
    decoder = ServerDecoder()
    wire = serialize(Subscribe("a")) + packet(1, b"") + serialize(Subscribe("b"))
    frames, error, _ = outcome_and_rest(decoder, [wire])
    assert frames == [Subscribe("a")]
    assert error is not None
    assert outcome_and_rest(decoder, [serialize(Subscribe("c"))]) == ([], error, 0)


@pytest.mark.parametrize(
    "data", [b"", b"abc", string(b"{}") + b"!", b"\xff\xff\xff\xff{}", string(b"x" * (MAX_AUTH + 1))]
)
def test_an_auth_is_exactly_one_string(data: bytes) -> None:
    for read in (read_whole, read_bytewise):
        with pytest.raises((MalformedError, LimitError), match="json"):
            read(ServerDecoder(), packet(AUTH, data))


@pytest.mark.parametrize("text", [b"", b"hello", b"[1]", b'{"a":"\xff"}', b"[" * MAX_AUTH])
def test_what_an_auth_says_is_not_judged_here(text: bytes) -> None:
    assert read_whole(ServerDecoder(), packet(AUTH, string(text))) == [Auth(text)]


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "answer"),
        (b"\0\0\0", "answer"),
        (b"\0\0\0\2" + string(b""), "answer"),
        (b"\0\0\0\0", "challenge"),
        (b"\0\0\0\1" + string(b"") + b"!", "challenge"),
        (b"\0\0\0\1" + string(b"x" * (MAX_AUTH + 1)), "challenge"),
    ],
)
def test_the_answer_to_auth_is_exactly_an_integer_and_a_string(data: bytes, field: str) -> None:
    for read in (read_whole, read_bytewise):
        with pytest.raises((MalformedError, LimitError)) as caught:
            read(ClientDecoder(), packet(AUTH, data))
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "service"),
        (string(b"load"), "change"),
        (string(b"load") + b"\0\0\0\2a", "change"),
        (string(b"load") + b"\0\0\0\0a", "change"),
        (string(b"\xff") + string(b"a"), "service"),
        (string(b"x" * (MAX_SERVICE + 1)) + string(b"a"), "service"),
        (b"\xff\xff\xff\xffload", "service"),
    ],
)
def test_a_publish_is_exactly_two_strings(data: bytes, field: str) -> None:
    for read in (read_whole, read_bytewise):
        with pytest.raises((MalformedError, LimitError)) as caught:
            read(ServerDecoder(), packet(PUBLISH, data))
        assert caught.value.field == field


# What is ignored


@pytest.mark.parametrize("msgtype", FOREIGN_TYPES)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        string(b"load"),
        string(b"{}"),
        string(b"anna") + string(b"cat8dog9!"),
        b"\xff\xff\xff\xff",
    ],
)
def test_other_types_are_ignored_whatever_they_hold(msgtype: int, data: bytes) -> None:
    for read in (read_whole, read_bytewise):
        wire = packet(msgtype, data)
        ignored = Ignored(msgtype, len(data))
        assert read(ServerDecoder(), wire + serialize(Subscribe("a"))) == [ignored, Subscribe("a")]
        assert read(ClientDecoder(), wire + serialize(Offer("a"))) == [ignored, Offer("a")]


def test_types_of_one_direction_are_ignored_in_the_other() -> None:
    assert read_whole(ServerDecoder(), packet(16, string(b"load"))) == [Ignored(16, 8)]
    assert read_whole(ClientDecoder(), packet(PUBLISH, string(b"load"))) == [Ignored(PUBLISH, 8)]


@pytest.mark.parametrize("decoder", [ServerDecoder, ClientDecoder])
@pytest.mark.parametrize("msgtype", [0, 7, 32, 33, 99])
def test_ignored_data_of_any_length_is_dropped_as_it_arrives(
    decoder: type[ServerDecoder | ClientDecoder], msgtype: int
) -> None:
    reader, length, chunk = decoder(), MAX_PACKET + 3, bytes(64 * 1024)
    assert list(reader.feed(struct.pack("!II", msgtype, length))) == []
    left = length
    tracemalloc.start()
    while left > len(chunk):
        before = reader.frame_at
        assert list(reader.feed(chunk)) == []
        assert reader.frame_at > before, "a packet that comes is not one that stalls"
        left -= len(chunk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(chunk)
    assert list(reader.feed(chunk[:left])) == [Ignored(msgtype, length)]


def test_the_longest_there_can_be_is_begun() -> None:
    reader = ServerDecoder()
    assert list(reader.feed(struct.pack("!II", 33, 0xFFFFFFFF) + bytes(1000))) == []
    assert reader.unfinished == 1008


# The end of a stream


def test_unfinished_tells_whether_a_stream_was_cut() -> None:
    for wire in (serialize(Info("load", b"x" * 100)), packet(7, b"x" * 100)):
        decoder = ClientDecoder()
        for count, byte in enumerate(wire[:-1], start=1):
            assert list(decoder.feed(bytes((byte,)))) == []
            assert decoder.unfinished == count
        assert len(list(decoder.feed(wire[-1:]))) == 1
        assert decoder.unfinished == 0


def test_a_large_info_byte_by_byte() -> None:
    info = Info("load", bytes(300_000))
    assert read_bytewise(ClientDecoder(), serialize(info)) == [info]


# What we do not write


def test_what_does_not_fit_is_not_written() -> None:
    with pytest.raises(LimitError, match="service 1026"):
        serialize(Offer("é" * 513))
    with pytest.raises(MalformedError, match="UTF-8"):
        serialize(Offer("\ud800"))
    with pytest.raises(LimitError, match="json"):
        serialize(Auth(b'{"a":"' + b"x" * MAX_AUTH + b'"}'))
    with pytest.raises(LimitError, match="challenge"):
        serialize(Authenticated(False, bytes(MAX_AUTH + 1)))
    with pytest.raises(LimitError, match="length"):
        serialize(Info("load", bytes(MAX_PACKET)))
    with pytest.raises(LimitError, match="message"):
        serialize_infos([("load", bytes(MAX_PACKET + 1))])


# Properties

SERVICES = st.text(st.characters(codec="utf-8"), max_size=20)
DATA = st.binary(max_size=60)
SERVER_FRAMES: st.SearchStrategy[ServerFrame] = st.one_of(
    st.builds(Offer, SERVICES),
    st.builds(Removed, SERVICES),
    st.builds(Info, SERVICES, DATA),
    st.builds(Authenticated, st.booleans(), DATA),
)
CLIENT_FRAMES: st.SearchStrategy[ClientFrame] = st.one_of(
    st.builds(Subscribe, SERVICES),
    st.builds(Unsubscribe, SERVICES),
    st.builds(Auth, DATA),
    st.builds(Publish, SERVICES, DATA),
)
FOREIGN = st.builds(packet, st.sampled_from([0, 3, 16, 17, 31, 32, 33, 34, AUTH, PUBLISH]), DATA)
PLACES = st.lists(st.integers(0, 10_000), max_size=12)


def noisy(frames: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Streams of frames, packets for others, and now and then plain noise."""
    packets = st.one_of(frames.map(serialize), FOREIGN, st.binary(max_size=30))
    return st.lists(packets, max_size=6).map(b"".join)


@given(st.lists(SERVER_FRAMES, max_size=8), PLACES)
def test_what_servers_write_is_read_back(frames: list[ServerFrame], places: list[int]) -> None:
    wire = b"".join(map(serialize, frames))
    assert outcome_and_rest(ClientDecoder(), cut(wire, places)) == (frames, None, 0)


@given(st.lists(CLIENT_FRAMES, max_size=8), PLACES)
def test_what_clients_write_is_read_back(frames: list[ClientFrame], places: list[int]) -> None:
    wire = b"".join(map(serialize, frames))
    assert outcome_and_rest(ServerDecoder(), cut(wire, places)) == (frames, None, 0)


@given(st.lists(st.tuples(SERVICES, DATA), max_size=20))
def test_many_infos_at_once_are_the_same_bytes(changes: list[tuple[str, bytes]]) -> None:
    assert serialize_infos(changes) == b"".join(serialize(Info(*change)) for change in changes)


@given(noisy(CLIENT_FRAMES), PLACES)
def test_any_chunking_of_a_clients_bytes_reads_the_same(wire: bytes, places: list[int]) -> None:
    whole = outcome_and_rest(ServerDecoder(max_packet=100, max_service=30), [wire])
    assert outcome_and_rest(ServerDecoder(max_packet=100, max_service=30), cut(wire, places)) == whole
    single = (wire[i : i + 1] for i in range(len(wire)))
    assert outcome_and_rest(ServerDecoder(max_packet=100, max_service=30), single) == whole


@given(noisy(SERVER_FRAMES), PLACES)
def test_any_chunking_of_a_servers_bytes_reads_the_same(wire: bytes, places: list[int]) -> None:
    whole = outcome_and_rest(ClientDecoder(max_packet=100, max_service=30), [wire])
    assert outcome_and_rest(ClientDecoder(max_packet=100, max_service=30), cut(wire, places)) == whole
    single = (wire[i : i + 1] for i in range(len(wire)))
    assert outcome_and_rest(ClientDecoder(max_packet=100, max_service=30), single) == whole


def plain_strings(data: bytes) -> list[bytes] | None:
    """The STRINGs that data is made of, if it is made of STRINGs and nothing else."""
    strings = []
    while data:
        if len(data) < 4 or len(data) - 4 < int.from_bytes(data[:4]):
            return None
        end = 4 + int.from_bytes(data[:4])
        strings.append(data[4:end])
        data = data[end:]
    return strings


def plain_client_packet(msgtype: int, data: bytes) -> ClientFrame | Ignored | None:
    """The rules of the client's packets in the plainest words; ``None`` is a refusal."""
    strings = plain_strings(data)
    try:
        match msgtype, strings:
            case 1, [service]:
                return Subscribe(service.decode())
            case 2, [service]:
                return Unsubscribe(service.decode())
            case ((1 | 2), _):
                return None
            case 0x48520001, [json]:
                return Auth(json)
            case 0x48520002, [service, change]:
                return Publish(service.decode(), change)
            case ((0x48520001 | 0x48520002), _):
                return None
            case _:
                return Ignored(msgtype, len(data))
    except UnicodeDecodeError:
        return None


STRINGS = st.one_of(
    st.binary(max_size=6), SERVICES.map(str.encode), st.sampled_from([b"{}", b'{"a":1}', b"[]", b"{"])
)
PACKET_DATA = st.one_of(
    st.binary(max_size=12),
    st.lists(STRINGS.map(string), max_size=3).map(b"".join),
    st.tuples(STRINGS.map(string), st.binary(max_size=3)).map(b"".join),
)


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 16, 32, 33, AUTH, PUBLISH]), PACKET_DATA), max_size=6))
def test_the_servers_decoder_agrees_with_the_plain_rules(packets: list[tuple[int, bytes]]) -> None:
    expected = [plain_client_packet(*each) for each in packets]
    frames, error, _ = outcome_and_rest(ServerDecoder(), [b"".join(itertools.starmap(packet, packets))])
    assert frames == list(itertools.takewhile(lambda frame: frame is not None, expected))
    assert (error is not None) == (None in expected)


@given(
    st.lists(
        st.one_of(
            st.builds(
                struct.Struct("!II").pack,
                st.sampled_from([1, 2, 7, 16, 33, AUTH, PUBLISH]),
                st.integers(0, 5000),
            ),
            st.builds(struct.Struct("!I").pack, st.integers(0, 2**32 - 1)),
            st.binary(max_size=4000),
        ),
        max_size=12,
    )
)
def test_memory_stays_within_the_limits(chunks: list[bytes]) -> None:
    limit = 2048
    for decoder in (ServerDecoder(max_packet=limit), ClientDecoder(max_packet=limit)):
        peak = traced_peak(decoder, chunks)
        # a packet, what came behind it in its chunk, the frame made of it, and the objects' own size
        assert peak < 4 * (limit + max(map(len, chunks), default=0)) + 16_384
