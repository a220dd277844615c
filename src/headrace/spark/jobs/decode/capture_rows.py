"""The rows of captures: a file, a part of one, or the packets of one flow.

A file is decoded whole by one task, or, if it is large, by several:

- datagrams of a capture are rows by themselves, so any part of the file can be decoded alone;
- the two directions of a connection are decoded by a task each, which passes over the other's chunks;
- packets of a pcap file are parsed in parts; Spark brings those of a flow together, in order, and then a flow is
  decoded as if it were alone in its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BufferedReader
from itertools import groupby
from operator import itemgetter
from typing import Any, BinaryIO, Final, NamedTuple, cast

import pyarrow as pa

from headrace.archive.folder import Folder
from headrace.errors import HeadraceError
from headrace.spark.jobs.decode.frames import DecodedStream, FrameRow, datagram
from headrace.spark.jobs.decode.pcap import (
    MAX_PACKET,
    RECORD_BYTES,
    CutOffError,
    Flow,
    PcapHeader,
    Piece,
    Segment,
    assembled,
    packets,
    pieces,
    read_header,
)
from headrace.wire.capture import HEAD_BYTES, MAX_CHUNK, Capture, CaptureDecoder, Chunk, parse_chunk_head

PACKETS: Final = pa.schema(
    [
        pa.field("capture", pa.string()),
        pa.field("flow", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("time", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("flags", pa.int32()),
        pa.field("data", pa.binary()),
        pa.field("error", pa.string()),
        pa.field("kind", pa.string()),
    ]
)
"""Packets of the hub's doors; ``position`` is where each begins in its file. One without a flow is how a file ends."""

_READ: Final = 1 << 20

Row = dict[str, Any]


class FilePart(NamedTuple):
    """A file, or a part of one: one direction (0: to the hub, 1: from it), or records between two places."""

    name: str
    begin: int = 0
    end: int | None = None
    direction: int | None = None


class PcapRecords:
    """The layout of a pcap file's packets."""

    head_bytes = RECORD_BYTES
    most = RECORD_BYTES + MAX_PACKET

    def __init__(self, header: PcapHeader) -> None:
        self._header = header

    def length(self, head: bytes) -> int | None:
        """Return a packet's bytes; ``None`` if they are too many."""
        _, length, _ = self._header.lengths(head)
        return length if length <= MAX_PACKET else None

    def plausible(self, head: bytes) -> bool:
        """Whether these bytes look like the head of a packet."""
        if len(head) < RECORD_BYTES:
            return False
        fraction, length, wire = self._header.lengths(head)
        return 0 < length <= min(wire, MAX_PACKET) and fraction < 1_000_000 * self._header.divisor


class CaptureRecords:
    """The layout of a capture's chunks."""

    head_bytes = HEAD_BYTES
    most = HEAD_BYTES + MAX_CHUNK

    def length(self, head: bytes) -> int | None:
        """Return a chunk's bytes; ``None`` for what is no chunk."""
        try:
            return parse_chunk_head(head)[2]
        except HeadraceError:
            return None

    def plausible(self, head: bytes) -> bool:
        """Whether these bytes look like the head of a chunk."""
        # Nothing was captured in 1970, and many files have zeros in them.
        return len(head) == HEAD_BYTES and any(head[:9]) and self.length(head) is not None


def rows_of(folder: Folder, name: str, ports: dict[int, str]) -> Iterator[Row]:
    """Yield the rows of one file; an unreadable file is one row, and a truncated one ends with one."""
    return rows_of_part(folder, FilePart(name), ports)


def rows_of_part(folder: Folder, part: FilePart, ports: dict[int, str]) -> Iterator[Row]:
    """Yield the rows of a file, or of a part of a capture."""
    with opened(folder, part.name) as file:
        rows = of_capture(file, part) if part.name.endswith(".capture") else of_pieces(pieces(file), ports)
        try:
            for row in rows:
                yield {"capture": part.name, **row}
        except HeadraceError as error:
            # Of two directions, one tells of it.
            if not part.direction:
                yield _at_the_end(part.name, error)


def opened(folder: Folder, name: str) -> BinaryIO:
    """Open a file for many small reads."""
    return cast("BinaryIO", BufferedReader(folder.open(name), _READ))


def of_capture(file: BinaryIO, part: FilePart) -> Iterator[Row]:
    """Yield the rows of a capture, or of a part of one."""
    decoder = CaptureDecoder()
    about: Capture | None = None
    streams: dict[bool, DecodedStream] = {}
    for data in _reads(file, part):
        for item in decoder.feed(data):
            match item:
                case Capture():
                    about = item
                    # Errors say where they are in the file.
                    decoder.inbox.position = max(part.begin, decoder.inbox.position)
                    streams = {out: DecodedStream(item.door, outgoing=out) for out in (False, True)}
                case Chunk(outgoing, time, content) if about is not None:
                    if part.direction not in (None, outgoing):
                        continue
                    where = {"door": about.door, "peer": about.peer, "outgoing": outgoing, "time": time}
                    if about.datagrams:
                        frames = datagram(about.door, content, outgoing=outgoing)
                    else:
                        frames = streams[outgoing].feed(content)
                    yield from (_row(where, frame) for frame in frames)
    for outgoing, stream in streams.items():
        if about is not None and not about.datagrams and part.direction in (None, outgoing):
            where = {"door": about.door, "peer": about.peer, "outgoing": outgoing, "time": None}
            yield from (_row(where, frame) for frame in stream.end())
    # Of two directions, one tells of the file's end.
    if (about is None or decoder.unfinished) and not part.direction:
        what = "its first line" if about is None else "a chunk"
        error = f"the file ends {decoder.unfinished} bytes into {what}"
        yield {"kind": "unfinished", "fields": "{}", "error": error}


def _reads(file: BinaryIO, part: FilePart) -> Iterator[bytes]:
    """Yield a capture's bytes: all of them, or its first line and a part's chunks."""
    if part.begin:
        yield file.readline()
        file.seek(part.begin)
    left = None if part.end is None else part.end - part.begin
    while data := file.read(_READ if left is None else min(left, _READ)):
        yield data
        left = None if left is None else left - len(data)


def of_pieces(found: Iterable[Piece], ports: dict[int, str]) -> Iterator[Row]:
    """Yield the rows of flows."""
    streams: dict[Flow, DecodedStream] = {}
    for piece in found:
        flow = piece.flow
        outgoing = flow.target_port not in ports
        door = ports.get(flow.source_port if outgoing else flow.target_port)
        if door is None:
            continue
        peer = f"{flow.target}:{flow.target_port}" if outgoing else f"{flow.source}:{flow.source_port}"
        where = {"door": door, "peer": peer, "outgoing": outgoing, "time": piece.time}
        if flow.udp:
            yield from (_row(where, frame) for frame in datagram(door, piece.data, outgoing=outgoing))
            continue
        stream = streams.setdefault(flow, DecodedStream(door, outgoing=outgoing))
        if piece.lost:
            yield from (_row(where, frame) for frame in stream.lost(piece.lost))
        yield from (_row(where, frame) for frame in stream.feed(piece.data))
        if piece.ended:
            yield from (_row(where, frame) for frame in streams.pop(flow).end())


def packets_of_part(folder: Folder, part: FilePart, ports: dict[int, str]) -> Iterator[Row]:
    """Yield the packets of a part of a pcap file that are of the hub's doors, as :data:`PACKETS` has them."""
    with opened(folder, part.name) as file:
        header = read_header(file)
        file.seek(part.begin)
        try:
            for position, (flow, time, seq, flags, data) in packets(file, header, part.begin, part.end):
                if flow.source_port in ports or flow.target_port in ports:
                    # Datagrams need no order among them: one part's stay together, and no more.
                    name = " ".join(map(str, (*flow, part.begin if flow.udp else 0)))
                    packet = {"position": position, "time": time, "seq": seq, "flags": flags, "data": data}
                    yield {"capture": part.name, "flow": name, **packet}
        except HeadraceError as error:
            yield {**_at_the_end(part.name, error), "flow": "", "position": part.begin}


def rows_of_packets(batches: Iterable[pa.RecordBatch], ports: dict[int, str]) -> Iterator[Row]:
    """Yield the rows of packets that are sorted by their file, flow and position."""
    every = (row for batch in batches for row in batch.to_pylist())
    for (name, flow), found in groupby(every, itemgetter("capture", "flow")):
        if not flow:
            yield from (
                {"capture": name, "fields": "{}", "kind": row["kind"], "error": row["error"]} for row in found
            )
            continue
        for row in of_pieces(assembled(_segments(flow, found)), ports):
            yield {"capture": name, **row}


def _segments(name: str, rows: Iterable[Row]) -> Iterator[Segment]:
    source, source_port, target, target_port, udp, _ = name.split(" ")
    flow = Flow(source, int(source_port), target, int(target_port), udp == "True")
    for row in rows:
        yield Segment(flow, row["time"], row["seq"], row["flags"], row["data"])


def _at_the_end(name: str, error: HeadraceError) -> Row:
    kind = "unfinished" if isinstance(error, CutOffError) else "refused"
    return {"capture": name, "kind": kind, "fields": "{}", "error": str(error)}


def _row(where: Row, frame: FrameRow) -> Row:
    return {
        **where,
        "offset": frame.offset,
        "kind": frame.kind,
        "fields": frame.fields.decode(),
        "payload": frame.payload,
        "error": frame.error,
    }
