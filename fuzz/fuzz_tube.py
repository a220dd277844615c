"""Arbitrary peers of a tube connection, over both transports.

The input's first byte chooses the transport, whether our side has a compressed message on trial, and how the
rest is chunked; the rest is what the peer sends. On WebSocket each message is a length byte and that many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import WireError
from headrace.wire.tube.connection import Opened, Side, Transport, TubeConnection, TubeEvent
from headrace.wire.tube.frames import Discarded, Message, Ping, stream_pieces, websocket_pieces
from headrace.wire.tube.reassembly import Reassembly, StreamDecoder, TubeLimits, WebSocketDecoder

LIMITS = TubeLimits(fragment_size=300, max_message=1000, max_inflated=2000)
TRIAL = b"the wheel turns while the water runs; " * 20

Outcome = tuple[list[TubeEvent], list[bytes], tuple[object, ...] | None, int]


def target(data: bytes) -> None:
    choice, wire = data[0] if data else 0, data[1:]
    trial = bool(choice & 2)
    if choice & 1:
        outcome = converse(Transport.WEBSOCKET, list(websocket_messages(wire)), trial)
    else:
        outcome = converse(Transport.TCP, [wire], trial)
        step = (choice >> 2) + 1
        chunks = [wire[i : i + step] for i in range(0, len(wire), step)]
        assert converse(Transport.TCP, chunks, trial) == outcome, "chunking matters"
    check(outcome)


def websocket_messages(wire: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(wire):
        end = at + 1 + wire[at]
        yield wire[at + 1 : end]
        at = end


def converse(transport: Transport, pieces: list[bytes], trial: bool) -> Outcome:
    """What a server makes of a peer: events, answers, the refusal's facts, and what is left unfinished."""
    server = TubeConnection(Side.SERVER, transport, LIMITS)
    events: list[TubeEvent] = []
    answers: list[bytes] = []
    refusal = None
    try:
        for piece in pieces:
            for event in server.receive(piece):
                events.append(event)
                if trial and isinstance(event, Opened):
                    answers += map(bytes, server.send(TRIAL))
    except WireError as error:
        refusal = (type(error), error.protocol, error.field, error.value, error.limit, error.offset)
    answers += map(bytes, server.data_to_send())
    return events, answers, refusal, 0 if refusal else server.unfinished


def check(outcome: Outcome) -> None:
    events, answers, _, _ = outcome
    if events:
        assert isinstance(events[0], Opened)
    assert sum(isinstance(event, Opened) for event in events) <= 1
    expected = sum(isinstance(event, Ping | Discarded) for event in events)
    assert len(answers) >= expected
    for event in events:
        match event:
            case Message(data, compression):
                assert len(data) <= (LIMITS.max_inflated if compression else LIMITS.max_message)
                again(bytes(data))
            case Discarded(_, length):
                assert length <= LIMITS.max_message


def again(message: bytes) -> None:
    """A message that was read can be written, in fragments of another size, and is read as the same."""
    limits = TubeLimits(fragment_size=1 + len(message) // 3)
    readers: tuple[tuple[Reassembly, list[bytes]], ...] = (
        (StreamDecoder(limits), [bytes(p) for p in stream_pieces(message, limits.fragment_size)]),
        (WebSocketDecoder(limits), [bytes(p) for p in websocket_pieces(message, limits.fragment_size)]),
    )
    for decoder, pieces in readers:
        frames = [frame for piece in (b"\x02", *pieces) for frame in decoder.feed(piece)]
        assert frames[1:] == [Message(message)]
        assert decoder.unfinished == 0
