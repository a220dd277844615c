"""The SDK's text protocol: framing, commands, replies, pushes and the session."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.golden import Golden, check_golden, cut, read_bytewise, read_whole
from tests.wire.outcome import outcome, traced_peak

from headrace.errors import LimitError, MalformedError, UnexpectedError, UsageError, WireError
from headrace.message import MAX_SEQUENCE, Run
from headrace.wire.receive_buffer import Decoder
from headrace.wire.sdk.auth import Auth, sign
from headrace.wire.sdk.commands import (
    TRANSITIONS,
    UNPLACED,
    AuthSuccess,
    ClientDecoder,
    Command,
    CommandError,
    ConnectorFrame,
    Heartbeat,
    HeartbeatReply,
    Push,
    SdkEvent,
    SdkLimits,
    SdkState,
    ServerDecoder,
    event_of,
    new_session,
    parse_command,
    parse_elements,
    parse_push,
    serialize,
    serialize_elements,
    serialize_pushes,
)
from headrace.wire.sdk.predicate import Between, Equals, In, Not, Predicate, Prefix
from headrace.wire.sdk.subscribe import Subscribe

CLIENT = bytes.fromhex("5f3c0a10b1e24d7780c1a201")
KEY = b"mill stone"

GOLDEN = [
    Golden("sdk", "auth", Auth(CLIENT, "1700000000.50", sign(KEY, CLIENT, "1700000000.50"), after=1000)),
    Golden(
        "sdk", "auth with a number", Auth(CLIENT, "1700000000.50", sign(KEY, CLIENT, "1700000000.50", "sha1"))
    ),
    Golden("sdk", "hb", Heartbeat()),
    Golden("sdk", "sub", Subscribe({"city": Equals("Oslo"), "degrees": Between(-40.0, 0.0)})),
    Golden("sdk", "sub with extra", Subscribe({"city": Not(In(("Oslo", 7.0)))})),
    Golden("sdk", "sub withdrawing", Subscribe({})),
    Golden("sdk", "subn", Subscribe({"city": Equals("Oslo")}, "home")),
    Golden(
        "sdk", "sub with alternatives", Subscribe({"city": Equals("Oslo")}, "", ({"country": Equals("NO")},))
    ),
    Golden("sdk", "unsubn", Subscribe({}, "home")),
    Golden("sdk", "heartbeat reply", HeartbeatReply()),
    Golden("sdk", "auth success", AuthSuccess()),
    Golden("sdk", "command error", CommandError()),
    Golden("sdk", "push", Push(1000, b"snow")),
    Golden("sdk", "push of bytes", Push(1001, b"\xff\x00\xfe")),
    Golden("sdk", "push with names", Push(1000, b"snow", ("home", "north"))),
    Golden("sdk", "push with events", Push(1000, b"snow", ("home",), {"home": ("enter",)})),
    Golden("sdk", "push of the original", Push(UNPLACED, b"snow")),
]

FROM_CLIENT = (
    "auth",
    "auth with a number",
    "hb",
    "sub",
    "sub with extra",
    "sub withdrawing",
    "subn",
    "unsubn",
    "sub with alternatives",
)


def reader(golden: Golden) -> Callable[[], Decoder[Any]]:
    return ServerDecoder if golden.name in FROM_CLIENT else ClientDecoder


def refusal(make: Callable[[], Decoder[Any]], wire: bytes) -> tuple[Any, ...]:
    """The facts of the error with which a decoder meets these bytes, read whole and byte by byte."""
    frames, error = outcome(make(), [wire])
    assert frames == []
    assert error is not None
    assert outcome(make(), (wire[i : i + 1] for i in range(len(wire)))) == ([], error)
    return error


def command(body: bytes) -> bytes:
    return b"#%d\r\n%b" % (len(body), body)


def push(**content: object) -> bytes:
    return command(json.dumps(content).encode() + b"\r\n")


# Golden bytes


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden(golden: Golden) -> None:
    check_golden(golden, reader(golden), following=golden.wire[:3])
    assert read_bytewise(reader(golden)(), golden.wire * 3) == [golden.frame] * 3


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden_is_what_we_write(golden: Golden) -> None:
    if golden.name == "auth with a number":
        # We write timestamps as strings.
        assert read_whole(ServerDecoder(), serialize(golden.frame)) == [golden.frame]
    elif golden.name == "push of the original":
        # We write a number in every push.
        assert read_whole(ClientDecoder(), serialize(golden.frame)) == [golden.frame]
    else:
        assert serialize(golden.frame) == golden.wire


def test_the_heartbeat_of_the_document() -> None:
    assert serialize(Heartbeat()) == b"#12\r\n*1\r\n$2\r\nhb\r\n"


# Framing


@pytest.mark.parametrize(
    "wire",
    [
        b"GET / HTTP/1.1\r\n",
        b"*1\r\n$2\r\nhb\r\n",
        b"\r\n#12\r\n",
        b"#\r\n",
        b"#x\r\n",
        b"# 12\r\n",
        b"#+12\r\n",
        b"#-12\r\n",
        b"#012\r\n",
        b"#00\r\n",
        b"#1_2\r\n",
        b"#12 \r\n",
        b"#12\n*1\r\n$2\r\nhb\r\n",
        b"#12\r*1\r\n$2\r\nhb\r\n",
        "#\u0661\u0662\r\n".encode(),
        b"#12345678901234567890",
        b"#" * 13,
    ],
)
def test_a_first_line_that_is_none(wire: bytes) -> None:
    kind, protocol, field, _, _, offset = refusal(ServerDecoder, wire)
    assert (kind, protocol, field, offset) == (MalformedError, "sdk", "message length", 0)


def test_what_cannot_be_a_message_is_refused_by_its_first_byte() -> None:
    assert refusal(ServerDecoder, b"G")[2] == "message length"
    assert refusal(ClientDecoder, b"H")[2] == "reply"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\r\n",
        b"hb\r\n",
        b"*1\r\n",
        b"*1\r\n$2\r\nhb",
        b"*1\r\n$2\r\nhb\r",
        b"*1\r\n$2\r\nhb\n\n",
        b"*1\r\n$1\r\nhb\r\n",
        b"*1\r\n$3\r\nhb\r\n",
        b"*1\r\n$2\r\nhb\r\n\r\n",
        b"*1\r\n$2\r\nhb\r\n$2\r\nhb\r\n",
        b"*2\r\n$2\r\nhb\r\n",
        b"*01\r\n$2\r\nhb\r\n",
        b"*1\r\n$02\r\nhb\r\n",
        b"*-1\r\n$2\r\nhb\r\n",
        b"*1\r\n$-2\r\nhb\r\n",
        b"$1\r\n*2\r\nhb\r\n",
        b"#1\r\n$2\r\nhb\r\n",
        b"*1\r\n$2\r\n\r\n",
        b"*1 \r\n$2\r\nhb\r\n",
        b"*99999999999\r\n$2\r\nhb\r\n",
    ],
)
def test_elements_that_are_not_exactly_the_message(body: bytes) -> None:
    kind, protocol, _, _, _, offset = refusal(ServerDecoder, command(body))
    assert (kind, protocol, offset) == (MalformedError, "sdk", 0)


def test_a_length_that_cuts_into_the_next_message_is_refused() -> None:
    assert (
        refusal(ServerDecoder, b"#13\r\n*1\r\n$2\r\nhb\r\n" + serialize(Heartbeat()))[2] == "message length"
    )
    assert refusal(ServerDecoder, b"#11\r\n*1\r\n$2\r\nhb\r\n")[2] == "element"


def test_data_may_hold_any_bytes() -> None:
    elements = [b"", b"\r\n", b"$2\r\nhb\r\n", b"#12\r\n", bytes(range(256))]
    wire = serialize_elements(elements)
    length, body = wire.split(b"\r\n", 1)
    assert int(length[1:]) == len(body)
    assert parse_elements(body) == elements


@pytest.mark.parametrize(
    ("wire", "field", "value", "limit"),
    [
        (b"#101\r\n", "message length", 101, 100),
        (b"#4294967295\r\n", "message length", 4294967295, 100),
        (b"#9999999999\r\n", "message length", 9999999999, 100),
        (command(b"*5\r\n"), "number of elements", 5, 4),
        (command(b"*9999999999\r\n"), "number of elements", 9999999999, 4),
        (command(b"*1\r\n$21\r\n" + b"x" * 21 + b"\r\n"), "element length", 21, 20),
        (command(b"*1\r\n$4294967295\r\n"), "element length", 4294967295, 20),
    ],
)
def test_limits(wire: bytes, field: str, value: int, limit: int) -> None:
    limits = SdkLimits(message=100, elements=4, element=20)
    error = refusal(lambda: ServerDecoder(limits), wire)
    assert error == (LimitError, "sdk", field, value, limit, 0)


def test_what_is_over_the_limits_is_not_written() -> None:
    limits = SdkLimits(message=51, elements=3, element=40)
    assert parse_elements(serialize_elements([b"x" * 40], limits)[5:], limits) == [b"x" * 40]
    for elements in ([b"x"] * 4, [b"x" * 41], [b"x" * 20] * 2):
        with pytest.raises(LimitError):
            serialize_elements(elements, limits)
    with pytest.raises(LimitError):
        serialize(Subscribe({str(n): Equals("") for n in range(200)}))


def test_an_error_names_the_byte_at_which_its_message_begins() -> None:
    good = serialize(Heartbeat())
    frames, error = outcome(ServerDecoder(), [good * 2 + command(b"*1\r\n$1\r\nx\r\n")])
    assert frames == [Heartbeat()] * 2
    assert error is not None
    assert error[2:] == (
        "command",
        "x of 1 elements",
        "auth, hb, sub, subn or unsubn, and what belongs to it",
        2 * len(good),
    )


def test_unfinished_tells_whether_a_stream_was_cut() -> None:
    for make, wire in ((ServerDecoder, serialize(Heartbeat())), (ClientDecoder, b"-command error\r\n")):
        decoder: Decoder[Any] = make()
        for count, byte in enumerate(wire[:-1], start=1):
            assert list(decoder.feed(bytes((byte,)))) == []
            assert decoder.unfinished == count
        assert len(list(decoder.feed(wire[-1:]))) == 1
        assert decoder.unfinished == 0


# Commands


@pytest.mark.parametrize(
    "elements",
    [
        [],
        [b""],
        [b"HB"],
        [b"hb", b""],
        [b"auth"],
        [b"auth", b"{}"],
        [b"auth", b"{}", b"{}"],
        [b"sub", b"city"],
        [b"sub", b"city", b'{"use":1,"strval":"a"}', b"degrees"],
        [b"sub", b"city", b"{}"],
        [b"sub", b"\xff", b'{"use":1,"strval":"a"}'],
        [b"sub", b"city", b'{"use":4}'],
        [b"sub", b"city", b'{"use":2,"low":2,"high":1}'],
        [b"sub", b"city", b'{"use":2,"low":NaN,"high":1}'],
        [b"unsub"],
        [b'"hb"'],
        [b"\xff\xfe"],
    ],
)
def test_what_is_no_command(elements: list[bytes]) -> None:
    kind, protocol, _, _, _, offset = refusal(ServerDecoder, serialize_elements(elements))
    assert (kind, protocol, offset) == (MalformedError, "sdk", 0)


def test_of_a_repeated_name_the_last_wins() -> None:
    one, two = b'{"use":1,"strval":"one"}', b'{"use":1,"strval":"two"}'
    wire = serialize_elements([b"sub", b"a", one, b"b", one, b"a", two])
    assert read_whole(ServerDecoder(), wire) == [Subscribe({"a": Equals("two"), "b": Equals("one")})]
    assert refusal(ServerDecoder, serialize_elements([b"sub", b"a", b"{}", b"a", two]))[0] is MalformedError


def test_a_name_that_is_not_utf8_is_not_written() -> None:
    with pytest.raises(MalformedError):
        serialize(Subscribe({"\ud800": Equals("a")}))


# Replies and pushes


@pytest.mark.parametrize(
    "wire",
    [b"+x", b"+hh", b"+h\n", b"+authsuccesS", b"-error", b"-command error\n\n", b"h", b"\r\n", b"+h \r\n"],
)
def test_what_is_no_reply(wire: bytes) -> None:
    kind, protocol, field, _, _, offset = refusal(ClientDecoder, wire)
    assert (kind, protocol, field, offset) == (MalformedError, "sdk", "reply", 0)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"", 1),
        (b"snow", 1),
        ("schnée ☃ 😀".encode(), 1),
        (b'"\\\x00\n\x7f', 1),
        (b"\xff", 2),
        (b"\xed\xa0\x80", 2),
    ],
)
def test_a_payload_goes_as_text_if_it_is_utf8_else_as_base64(payload: bytes, kind: int) -> None:
    wire = serialize(Push(7, payload))
    first, content, last = wire.split(b"\r\n")
    assert (int(first[1:]), last) == (len(content) + 2, b"")
    members = json.loads(content)
    assert set(members) == {"payload", "type", "seq"}
    assert (members["type"], members["seq"]) == (kind, 7)
    sent = members["payload"]
    assert (base64.b64decode(sent) if kind == 2 else sent.encode()) == payload
    assert read_bytewise(ClientDecoder(), wire) == [Push(7, payload)]


def test_a_push_may_be_spaced_ordered_and_extended_otherwise() -> None:
    wire = command(b' { "seq" : 7 , "topic": ["x"], "type":1,\r\n"payload" : "sn\\u006fw" } \r\n')
    assert read_whole(ClientDecoder(), wire) == [Push(7, b"snow")]


def test_a_push_of_the_original_has_no_sequence_number() -> None:
    assert read_whole(ClientDecoder(), push(payload="x", type=1)) == [Push(UNPLACED, b"x")]


@pytest.mark.parametrize(
    "wire",
    [
        command(b""),
        command(b"\r\n"),
        command(b'{"payload":"x","type":1,"seq":1}'),
        command(b'{"payload":"x","type":1,"seq":1}\n\n'),
        command(b"not json\r\n"),
        command(b"[]\r\n"),
        command(b'{"payload":"\xff","type":1,"seq":1}\r\n'),
        command(b'{"payload":"\\ud800","type":1,"seq":1}\r\n'),
        command(b'{"payload":"x","type":1,"seq":1,"deep":' + b"[" * 9000 + b"\r\n"),
        push(type=1, seq=1),
        push(payload="x", seq=1),
        push(payload=1, type=1, seq=1),
        push(payload="x", type=0, seq=1),
        push(payload="x", type=3, seq=1),
        push(payload="x", type="1", seq=1),
        push(payload="x", type=1, seq=-1),
        push(payload="x", type=1, seq=MAX_SEQUENCE + 1),
        push(payload="x", type=1, seq=1.5),
        push(payload="x", type=2, seq=1),
        push(payload="/wD+=", type=2, seq=1),
        push(payload="/w D+", type=2, seq=1),
        push(payload="/wD+\n", type=2, seq=1),
        push(payload="é===", type=2, seq=1),
    ],
)
def test_what_is_no_push(wire: bytes) -> None:
    kind, protocol, _, _, _, offset = refusal(ClientDecoder, wire)
    assert (kind, protocol, offset) == (MalformedError, "sdk", 0)


def test_a_push_over_the_limit_is_refused_by_its_first_line() -> None:
    assert refusal(lambda: ClientDecoder(max_push=99), b"#100\r\n") == (
        LimitError,
        "sdk",
        "message length",
        100,
        99,
        0,
    )


@pytest.mark.parametrize("seq", [-1, MAX_SEQUENCE + 1])
def test_a_push_without_a_sequence_number_is_not_written(seq: int) -> None:
    with pytest.raises(LimitError):
        serialize(Push(seq, b""))


def test_a_push_over_the_limit_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.wire.sdk.commands.MAX_PUSH", 40)
    assert len(serialize(Push(1000, b"snow"))) == 45
    with pytest.raises(LimitError):
        serialize(Push(1000, b"snow!"))


PAYLOADS = st.one_of(st.binary(max_size=60), st.text(max_size=30).map(str.encode))


@given(st.integers(0, MAX_SEQUENCE - 20), st.lists(PAYLOADS, max_size=20))
def test_many_pushes_are_single_pushes(first: int, payloads: list[bytes]) -> None:
    seqs = range(first, first + len(payloads))
    frames = [Push(seq, payload) for seq, payload in zip(seqs, payloads, strict=True)]
    run = serialize_pushes(seqs, Run.of(payloads))
    assert list(run) == [serialize(frame) for frame in frames]
    assert read_whole(ClientDecoder(), run.content.tobytes()) == frames


def test_as_many_sequence_numbers_as_payloads() -> None:
    with pytest.raises(UsageError):
        serialize_pushes([1, 2], Run.of([b"x"]))


def test_a_large_push_byte_by_byte() -> None:
    frame = Push(1, b"\x00\xff" * 50_000)
    assert read_bytewise(ClientDecoder(), serialize(frame)) == [frame]


# The session


def walk(state: SdkState, *events: SdkEvent) -> SdkState:
    session = new_session(auth_required=state is SdkState.LOCKED)
    assert session.state is state
    for event in events:
        session.step(event)
    return session.state


def test_with_auth_required() -> None:
    assert (
        walk(SdkState.LOCKED, SdkEvent.HEARTBEAT, SdkEvent.AUTH, SdkEvent.SUBSCRIBE, SdkEvent.SUBSCRIBE)
        is SdkState.KNOWN
    )
    with pytest.raises(UnexpectedError, match="only auth, command error, hb"):
        walk(SdkState.LOCKED, SdkEvent.SUBSCRIBE)


def test_with_auth_off() -> None:
    assert walk(SdkState.OPEN, SdkEvent.HEARTBEAT, SdkEvent.AUTH, SdkEvent.SUBSCRIBE) is SdkState.KNOWN
    assert walk(SdkState.OPEN, SdkEvent.SUBSCRIBE, SdkEvent.HEARTBEAT, SdkEvent.SUBSCRIBE) is SdkState.GUEST


def test_a_connection_is_one_clients() -> None:
    with pytest.raises(UnexpectedError):
        walk(SdkState.OPEN, SdkEvent.AUTH, SdkEvent.AUTH)
    with pytest.raises(UnexpectedError):
        walk(SdkState.OPEN, SdkEvent.SUBSCRIBE, SdkEvent.AUTH)


def test_nothing_follows_an_error() -> None:
    for state in SdkState:
        if state is not SdkState.CLOSED:
            assert TRANSITIONS[state, SdkEvent.ERROR] is SdkState.CLOSED
    assert not [event for state, event in TRANSITIONS if state is SdkState.CLOSED]


def test_a_heartbeat_changes_nothing() -> None:
    for (state, event), after in TRANSITIONS.items():
        assert event is not SdkEvent.HEARTBEAT or after is state


def test_every_command_is_an_event() -> None:
    commands: list[Command] = [Auth(CLIENT, "1", ""), Heartbeat(), Subscribe({})]
    assert [event_of(command) for command in commands] == [
        SdkEvent.AUTH,
        SdkEvent.HEARTBEAT,
        SdkEvent.SUBSCRIBE,
    ]


# Anything at all

PREDICATES: st.SearchStrategy[Predicate] = st.one_of(
    st.builds(Equals, st.text(max_size=9)),
    st.builds(Prefix, st.text(max_size=9)),
    st.builds(In, st.lists(st.text(max_size=5) | st.floats(-9, 9), max_size=3).map(tuple)),
    st.floats(-9, 9).map(lambda low: Between(low, low + 1)),
)
WANTED = st.dictionaries(st.text(max_size=9), PREDICATES, min_size=1, max_size=3)
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        Auth,
        st.binary(min_size=12, max_size=12),
        st.integers(0, 1 << 40).map(str),
        st.text(max_size=64),
        st.none() | st.integers(0, MAX_SEQUENCE),
    ),
    st.just(Heartbeat()),
    st.builds(Subscribe, st.dictionaries(st.text(max_size=9), PREDICATES, max_size=5), st.text(max_size=9)),
    st.builds(Subscribe, WANTED, st.text(max_size=9), st.lists(WANTED, max_size=3).map(tuple)),
)
CONNECTOR_FRAMES: st.SearchStrategy[ConnectorFrame] = st.one_of(
    st.sampled_from([HeartbeatReply(), AuthSuccess(), CommandError()]),
    st.builds(
        Push, st.integers(0, MAX_SEQUENCE), PAYLOADS, st.lists(st.text(max_size=9), max_size=3).map(tuple)
    ),
)
PLACES = st.lists(st.integers(0, 1 << 16), max_size=12)


@given(st.lists(COMMANDS, max_size=5), PLACES)
def test_commands_that_are_written_are_read_back(commands: list[Command], places: list[int]) -> None:
    wire = b"".join(map(serialize, commands))
    assert outcome(ServerDecoder(), cut(wire, places)) == (commands, None)


@given(st.lists(CONNECTOR_FRAMES, max_size=5), PLACES)
def test_frames_that_are_written_are_read_back(frames: list[ConnectorFrame], places: list[int]) -> None:
    wire = b"".join(map(serialize, frames))
    assert outcome(ClientDecoder(), cut(wire, places)) == (frames, None)


def damaged(wire: bytes, at: int, byte: int) -> bytes:
    return wire[: at % len(wire)] + bytes((byte,)) + wire[at % len(wire) + 1 :]


DAMAGE = (st.integers(0, 1 << 12), st.sampled_from(b'0123456789#*$+-\r\n"{}hbsu\x00\xff'))
STREAMS = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.one_of(COMMANDS, CONNECTOR_FRAMES).map(serialize),
        st.builds(damaged, st.one_of(COMMANDS, CONNECTOR_FRAMES).map(serialize), *DAMAGE),
        st.lists(st.binary(max_size=9), max_size=4).map(serialize_elements),
    ),
    max_size=5,
).map(b"".join)


@pytest.mark.parametrize("make", [ServerDecoder, ClientDecoder])
@given(wire=STREAMS, places=PLACES)
def test_any_chunking_reads_the_same(
    make: Callable[[], Decoder[Any]], wire: bytes, places: list[int]
) -> None:
    frames, error = outcome(make(), [wire])
    assert outcome(make(), cut(wire, places)) == (frames, error)
    for frame in frames:
        assert read_whole(make(), serialize(frame)) == [frame]


@given(st.binary(max_size=100))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    for parse in (parse_command, parse_push):
        with pytest.raises(MalformedError):
            parse(body)


@pytest.mark.parametrize("make", [ServerDecoder, lambda: ClientDecoder(max_push=1 << 16)])
@given(wire=STREAMS, step=st.integers(1, 300))
def test_memory_stays_within_the_limits(make: Callable[[], Decoder[Any]], wire: bytes, step: int) -> None:
    chunks = [wire[i : i + step] for i in range(0, len(wire), step)]
    assert traced_peak(make(), chunks) < 64 * (len(wire) + step) + 65_536


@pytest.mark.parametrize(
    ("make", "start"),
    [
        (ServerDecoder, b"#65537\r\n"),
        (ServerDecoder, b"#9999999999\r\n"),
        (lambda: ClientDecoder(max_push=1 << 16), b"#65537\r\n"),
        (ServerDecoder, command(b"*257\r\n$16385\r\n")),
    ],
)
def test_what_is_announced_and_refused_takes_no_memory(
    make: Callable[[], Decoder[Any]], start: bytes
) -> None:
    assert traced_peak(make(), [start, *[bytes(60_000)] * 20]) < 100_000


@pytest.mark.parametrize(
    "elements",
    [
        [b"subn"],
        [b"subn", b"", b"a", b'{"use":1,"strval":""}'],
        [b"subn", b"n" * 129, b"a", b'{"use":1,"strval":""}'],
        [b"subn", b"\xff", b"a", b'{"use":1,"strval":""}'],
        [b"subn", b"n", b"a"],
        [b"unsubn"],
        [b"unsubn", b"n", b"a"],
        [b"sub", b"", b"or"],
        [b"sub", b"", b"or", b"a", b'{"use":1,"strval":""}'],
        [b"sub", b"a", b'{"use":1,"strval":""}', b"", b"or"],
        [b"sub", *[b"a", b'{"use":1,"strval":""}', b"", b"or"] * 16, b"a", b'{"use":1,"strval":""}'],
    ],
)
def test_names_and_alternatives_out_of_bounds_are_refused(elements: list[bytes]) -> None:
    with pytest.raises(WireError):
        parse_command(serialize_elements(elements).partition(b"\r\n")[2])


@pytest.mark.parametrize(
    "command",
    [
        Subscribe({"a": Equals("")}, "n" * 129),
        Subscribe({"a": Equals("")}, "", ({},)),
        Subscribe({}, "", ({"a": Equals("")},)),
        Subscribe({"a": Equals("")}, "", ({"a": Equals("")},) * 16),
    ],
)
def test_what_would_be_refused_is_not_sent(command: Subscribe) -> None:
    with pytest.raises(WireError):
        serialize(command)
