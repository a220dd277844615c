"""Arbitrary SPP clients and servers.

The input's first byte chooses who speaks and how the rest is chunked; the rest is what they send.
"""

from __future__ import annotations

from headrace.errors import WireError
from headrace.wire.spp import ClientDecoder, ClientFrame, Ignored, ServerDecoder, ServerFrame, serialize

MAX_PACKET = 600
MAX_SERVICE = 40

Outcome = tuple[list[ServerFrame | ClientFrame | Ignored], tuple[object, ...] | None, int]


def target(data: bytes) -> None:
    choice, wire = data[0] if data else 0, data[1:]
    reader = ClientDecoder if choice & 1 else ServerDecoder
    outcome = read(reader, [wire])
    step = (choice >> 1) + 1
    chunks = [wire[i : i + step] for i in range(0, len(wire), step)]
    assert read(reader, chunks) == outcome, "chunking matters"
    check(wire, outcome)


def read(reader: type[ClientDecoder | ServerDecoder], chunks: list[bytes]) -> Outcome:
    """The frames, the refusal's facts, and how much of a packet is left unfinished."""
    decoder = reader(max_packet=MAX_PACKET, max_service=MAX_SERVICE)
    frames: list[ServerFrame | ClientFrame | Ignored] = []
    try:
        for chunk in chunks:
            for frame in decoder.feed(chunk):
                frames.append(frame)  # noqa: PERF402  those before a refusal count
            assert len(decoder.inbox) <= 8 + MAX_PACKET
    except WireError as error:
        return frames, (type(error), error.protocol, error.field, error.value, error.limit, error.offset), 0
    return frames, None, decoder.unfinished


def check(wire: bytes, outcome: Outcome) -> None:
    """Each frame is written as the very bytes it was read from, and nothing is lost between frames."""
    frames, refusal, unfinished = outcome
    at = 0
    for frame in frames:
        if isinstance(frame, Ignored):
            assert wire[at : at + 4] == frame.msgtype.to_bytes(4)
            at += 8 + frame.length
        else:
            again = serialize(frame)
            assert wire[at : at + len(again)] == again
            at += len(again)
    if refusal is None:
        assert at + unfinished == len(wire)
