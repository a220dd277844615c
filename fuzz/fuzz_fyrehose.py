"""fyrehose: both directions of a stream, single packets, and datagrams one by one and many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.errors import WireError
from headrace.message import Run
from headrace.wire.fyrehose.stream import (
    MAX_DATAGRAM,
    MAX_PACKET,
    BadDatagram,
    ClientDecoder,
    ClientFrame,
    Deliver,
    DeliverRun,
    Forward,
    Frame,
    LoneDatagram,
    Push,
    PushDatagrams,
    PushRun,
    Request,
    ServerDecoder,
    ServerFrame,
    deliver_packets,
    deliver_run,
    parse,
    parse_client_datagram,
    parse_datagram,
    parse_datagrams,
    push_run,
    serialize,
)

Decoder = ServerDecoder | ClientDecoder


def target(data: bytes) -> None:
    packet(data)
    pieces = list(cut(data))
    stream(ServerDecoder, data, pieces)
    stream(ClientDecoder, data, pieces)
    datagrams([data, *pieces])
    batch(pieces)


def cut(data: bytes) -> Iterable[bytes]:
    """Pieces whose sizes the data itself chooses."""
    at = 0
    while at < len(data):
        size = 1 + data[at] % 31
        yield data[at : at + size]
        at += size


def packet(data: bytes) -> None:
    try:
        frame = parse(data)
    except WireError:
        return
    same_bytes([frame], data)


def stream(make: Callable[[], Decoder], data: bytes, pieces: list[bytes]) -> None:
    whole = fed(make(), [data])
    assert fed(make(), pieces) == whole
    assert scanned(make(), data) == whole
    frames, error = whole
    taken = b"".join(map(serialize, frames))
    same_bytes(frames, data[: len(taken)])
    assert error is not None or len(data) - len(taken) < MAX_PACKET


def fed(decoder: Decoder, pieces: Iterable[bytes]) -> tuple[list[Frame], str | None]:
    frames: list[Frame] = []
    try:
        for piece in pieces:
            for frame in decoder.feed(piece):
                frames += single(frame)
    except WireError as error:
        return frames, str(error)
    return frames, None


def scanned(decoder: Decoder, data: bytes) -> tuple[list[Frame], str | None]:
    """The same, by showing the decoder first one half of its buffer and then all that it left."""
    frames: list[Frame] = []
    begin = 0
    for end in (len(data) // 2, len(data)):
        found, consumed, error = decoder.scan(data, begin, end)
        for frame in found:
            frames += single(frame)
        if error is not None:
            return frames, str(error)
        begin += consumed
    return frames, None


def single(frame: ServerFrame | ClientFrame) -> list[Frame]:
    match frame:
        case PushRun(run):
            return [Push(payload) for payload in run]
        case DeliverRun(seqs, run):
            return [Deliver(seq, payload) for seq, payload in zip(seqs.tolist(), run, strict=True)]
        case _:
            return [frame]


def same_bytes(frames: list[Frame], data: bytes) -> None:
    at = 0
    for frame in frames:
        wire = serialize(frame)
        was = data[at : at + len(wire)]
        if isinstance(frame, Request | Forward) and was[7:13] == bytes(6):
            assert frame.first == 1, "FROM_SEQ 0 means 1"
        else:
            assert wire == was
        at += len(wire)
    assert at == len(data)


def datagrams(several: list[bytes]) -> None:
    expected = [read(parse_datagram, datagram) for datagram in several]
    found: list[object] = []
    for arrival in parse_datagrams(several):
        match arrival:
            case PushDatagrams(first, counts, run):
                assert first == len(found)
                payloads = iter(run)
                found += [[Push(next(payloads)) for _ in range(count)] for count in counts.tolist()]
                assert next(payloads, None) is None
            case LoneDatagram(_, frame):
                found.append([frame])
            case BadDatagram(_, error):
                found.append(str(error))
    assert found == expected
    for datagram in several:
        read(parse_client_datagram, datagram)


def read(parser: Callable[[bytes], object], datagram: bytes) -> object:
    try:
        return parser(datagram)
    except WireError as error:
        return str(error)


def batch(payloads: list[bytes]) -> None:
    run = Run.of(payloads)
    expected = [Push(payload) for payload in payloads]
    assert fed(ServerDecoder(), [push_run(run)]) == (expected, None)
    packets, hollow = deliver_run(run, 1, max_data=16)
    delivered, error = fed(ClientDecoder(), [bytes(packets)])
    assert error is None
    assert [frame.data for frame in delivered if isinstance(frame, Deliver)] == [
        payload if len(payload) <= 16 else b"" for payload in payloads
    ]
    assert hollow == sum(len(payload) > 16 for payload in payloads)
    packets, edges, _ = deliver_packets(run, 1)
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        assert end - begin <= MAX_DATAGRAM
        [_] = parse_client_datagram(bytes(packets[begin:end]))
