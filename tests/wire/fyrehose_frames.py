"""Packets of the backbone's protocol for tests: the document's own, any that can be drawn, and how they are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.wire.golden import Golden

from headrace.errors import WireError
from headrace.message import MAX_SEQUENCE, Run
from headrace.wire.fyrehose.stream import (
    Challenge,
    Deliver,
    DeliverRun,
    Forward,
    Frame,
    Keepalive,
    KeepaliveAck,
    Proof,
    Push,
    PushRun,
    Request,
    parse,
    serialize,
)

EXAMPLE = Golden("fyrehose", "KEEPALIVE as the document's example has it", Keepalive("127.0.0.1", 2323))
"""On a datagram only; we write 0x10."""

FROM_ZERO = Golden("fyrehose", "REQUEST from 0", Request("127.0.0.1", 2323, 1, 9))
"""0 is read as 1."""

PUSHES = Golden("fyrehose", "PUSH twice in a datagram", [Push(b"hi"), Push(b"")])

WRITTEN = [
    Golden("fyrehose", "PUSH hello", Push(b"hello")),
    Golden("fyrehose", "PUSH of nothing", Push(b"")),
    Golden("fyrehose", "DELIVER hello", Deliver(7, b"hello")),
    Golden("fyrehose", "DELIVER hollow", Deliver(8, b"")),
    Golden("fyrehose", "DELIVER of the last number", Deliver(MAX_SEQUENCE, b"!")),
    Golden("fyrehose", "REQUEST 7 to 9", Request("127.0.0.1", 2323, 7, 9)),
    Golden("fyrehose", "FORWARD 7 to 9", Forward("192.0.2.10", 40000, 7, 9)),
    Golden("fyrehose", "KEEPALIVE", Keepalive("127.0.0.1", 2323)),
    Golden("fyrehose", "KEEPALIVE from wherever it comes", Keepalive("0.0.0.0", 0)),
    Golden("fyrehose", "KEEPALIVE-ACK", KeepaliveAck("127.0.0.1", 2323)),
    Golden("fyrehose", "CHALLENGE", Challenge(bytes.fromhex("0123456789abcdef"))),
    Golden("fyrehose", "PROOF", Proof(bytes.fromhex("0123456789abcdef"))),
]

PACKETS = [*WRITTEN, FROM_ZERO]

HUB = (Push, Request, Keepalive, Proof)
HUB_STREAM = (Push, Request, Keepalive)
CLIENT = (Deliver, Forward, KeepaliveAck, Challenge)
CLIENT_STREAM = (Deliver, KeepaliveAck)


def by_name(goldens: Iterable[Golden]) -> Any:
    return pytest.mark.parametrize("golden", list(goldens), ids=lambda golden: golden.name)


def as_streamed(frame: Frame) -> Any:
    """The frame a stream decoder makes of a packet on its own."""
    match frame:
        case Push(data):
            return PushRun(Run.of([data]))
        case Deliver(seq, data):
            return DeliverRun(np.array([seq]), Run.of([data]))
        case _:
            return frame


def flat(frames: Iterable[Any]) -> list[Any]:
    """Frames with their runs taken apart."""
    single: list[Any] = []
    for frame in frames:
        match frame:
            case PushRun(run):
                single += map(Push, run)
            case DeliverRun(seqs, run):
                single += map(Deliver, seqs.tolist(), run)
            case _:
                single.append(frame)
    return single


def fed(decoder: Any, chunks: Iterable[bytes]) -> tuple[list[Any], str | None]:
    """The single frames that feeding chunks gives, and the error that ended it."""
    frames: list[Any] = []
    try:
        for chunk in chunks:
            frames.extend(decoder.feed(chunk))
    except WireError as error:
        return flat(frames), str(error)
    return flat(frames), None


def scanned(decoder: Any, chunks: Iterable[bytes]) -> tuple[list[Any], str | None]:
    """The same by scanning a receive buffer, whose unconsumed bytes are moved to its front."""
    frames: list[Any] = []
    buffer = np.zeros(1 << 18, np.uint8)
    filled = 0
    for chunk in chunks:
        buffer[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
        found, consumed, error = decoder.scan(buffer, 0, filled)
        frames += found
        if error is not None:
            return flat(frames), str(error)
        buffer[: filled - consumed] = buffer[consumed:filled].copy()
        filled -= consumed
        buffer[filled:] = 0xEE
    return flat(frames), None


def plainly(wire: bytes, types: Iterable[int]) -> tuple[list[Frame], int | None]:
    """The single frames of a stream, and where it is refused: packet by packet, as the protocol says it."""
    frames: list[Frame] = []
    at = 0
    while at < len(wire):
        if wire[at] not in types:
            return frames, at
        size = {1: 9, 2: 3, 4: 19, 8: 19, 16: 7, 32: 7}[wire[at]]
        if wire[at] in (1, 2):
            if len(wire) - at < 3:
                break
            length = int.from_bytes(wire[at + 1 : at + 3])
            if length > 65526:
                return frames, at
            size += length
        if len(wire) - at < size:
            break
        try:
            frames.append(parse(wire[at : at + size]))
        except WireError:
            return frames, at
        at += size
    return frames, None


numbers = st.integers(1, MAX_SEQUENCE) | st.integers(1, 300)
payloads = st.binary(max_size=24) | st.integers(250, 2000).map(lambda size: bytes([size % 251]) * size)
ports = st.integers(0, 65535)
addresses = st.ip_addresses(v=4).map(str)
ranges = st.tuples(numbers, numbers).map(sorted)

pushes = st.builds(Push, payloads)
delivers = st.builds(Deliver, numbers, payloads)
requests = st.builds(lambda a, p, r: Request(a, p, *r), addresses, ports, ranges)
forwards = st.builds(lambda a, p, r: Forward(a, p, *r), addresses, ports, ranges)
keepalives = st.builds(Keepalive, addresses, ports)
acks = st.builds(KeepaliveAck, addresses, ports)
cookies = st.binary(min_size=8, max_size=8)
challenges = st.builds(Challenge, cookies)
proofs = st.builds(Proof, cookies)

hub_frames = pushes | pushes | pushes | requests | keepalives
client_frames = delivers | delivers | delivers | acks
frames = pushes | delivers | requests | forwards | keepalives | acks | challenges | proofs

wrong = st.sampled_from(
    [
        b"",
        b"\x00",
        b"\x03",
        b"\xff\xff\xff",
        b"\x02\xff\xff",
        b"\x02\xff\xf7",
        b"\x01\xff\xf7",
        b"\x01\xff\xff\x00\x00",
        b"\x01\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x01\x00\x01\x00\x00\x00\x00\x00\x00x",
        bytes.fromhex("04 7f000001 0913 000000000009 000000000007"),
        bytes.fromhex("04 7f000001 0913 000000000000 000000000000"),
    ]
)
ends = wrong | st.binary(max_size=12)
"""What may stand behind good frames in a stream: the beginning of one, or nothing good."""


def streams(of: st.SearchStrategy[Frame]) -> st.SearchStrategy[bytes]:
    """Good packets, perhaps a bad end, perhaps more good packets behind it."""
    good = st.lists(of, max_size=12).map(lambda several: b"".join(map(serialize, several)))
    return st.builds(lambda *parts: b"".join(parts), good, ends, good)


cuts = st.lists(st.integers(0, 100_000), max_size=8)
