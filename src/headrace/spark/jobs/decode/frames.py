"""Decode the bytes of a connection to rows: one for each frame, and one for the first bytes that are not a frame.

The decoders are the hub's own (:mod:`headrace.wire`). A stream that breaks its protocol cannot be read any further:
what was refused is a row with its ``error`` and the first bytes from there on. A refused datagram is a row, and the
next is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from headrace.errors import HeadraceError, WireError
from headrace.message import Run
from headrace.spark.jobs.decode.websocket import WebSocketStream
from headrace.wire import spp
from headrace.wire.attribute import messages as attribute
from headrace.wire.attribute import publish
from headrace.wire.fyrehose import stream as fyrehose
from headrace.wire.link import message as link
from headrace.wire.parcel import stream as parcel
from headrace.wire.receive_buffer import Decoder
from headrace.wire.sdk import commands as sdk
from headrace.wire.tube import frames as tube
from headrace.wire.tube.frames import MAX_FRAGMENT_SIZE
from headrace.wire.tube.reassembly import StreamDecoder, TubeLimits

KEPT: Final = 4096
"""Most bytes of what was refused in its row."""

_PAYLOADS: Final = ("payload", "data", "value", "change", "bulk")
"""Field names of the bytes that frames carry."""

_LIMITS: Final = TubeLimits(fragment_size=MAX_FRAGMENT_SIZE, max_message=1 << 30, max_inflated=1 << 30)

STREAMS: Final[Mapping[str, tuple[Callable[[], Decoder[Any]] | None, Callable[[], Decoder[Any]] | None]]] = {
    "fyrehose": (fyrehose.ServerDecoder, fyrehose.ClientDecoder),
    "spp": (spp.ServerDecoder, spp.ClientDecoder),
    "parcel": (parcel.ParcelDecoder, parcel.ParcelDecoder),
    "sdk": (sdk.ServerDecoder, sdk.ClientDecoder),
    "router": (attribute.RouterDecoder, attribute.ConnectorDecoder),
    "dispatcher": (attribute.DispatcherDecoder, None),
    "publisher": (publish.PublisherDecoder, None),
    "status": (attribute.StatusDecoder, None),
    "tube_ws": (
        partial(WebSocketStream, _LIMITS, masked=True),
        partial(WebSocketStream, _LIMITS, masked=False),
    ),
    "tube_tcp": (partial(StreamDecoder, _LIMITS), partial(StreamDecoder, _LIMITS)),
}
"""Each door's decoders, for what comes to the hub and for what it sends. A direction without one is kept as bytes."""

DATAGRAMS: Final[Mapping[str, tuple[Callable[[bytes], list[Any]], Callable[[bytes], list[Any]]]]] = {
    "fyrehose": (fyrehose.parse_datagram, fyrehose.parse_client_datagram),
}


class FrameRow(msgspec.Struct, frozen=True):
    """One row: a frame, or what was refused."""

    kind: str
    offset: int
    """Bytes of the direction before the read that completed it."""
    fields: bytes = b"{}"
    payload: bytes | None = None
    error: str | None = None


class DecodedStream:
    """One direction of a connection."""

    def __init__(self, door: str, *, outgoing: bool) -> None:
        make = STREAMS.get(door, (None, None))[outgoing]
        self._decoder = None if make is None else make()
        self._door = door
        self._received = 0
        self._refused = False

    def feed(self, data: bytes) -> Iterator[FrameRow]:
        """Yield the frames that some bytes complete."""
        at, self._received = self._received, self._received + len(data)
        if self._refused:
            return
        if self._decoder is None:
            yield FrameRow("bytes", at, payload=data)
            return
        try:
            for frame in self._decoder.feed(data):
                yield from _described(self._door, frame, at)
        except WireError as error:
            self._refused = True
            # From the error's offset if that is in this read, else what the decoder has not taken.
            if error.offset is not None and error.offset >= at:
                rest = data[error.offset - at :][:KEPT]
            else:
                rest = self._decoder.inbox.peek(KEPT) or data[:KEPT]
            yield FrameRow("refused", at, payload=rest, error=str(error))

    def end(self) -> Iterator[FrameRow]:
        """Yield the rest of a stream that ends within a frame."""
        if self._decoder is not None and not self._refused and self._decoder.unfinished:
            rest = self._decoder.inbox.peek(KEPT)
            error = f"the stream ends {self._decoder.unfinished} bytes into a frame"
            yield FrameRow("unfinished", self._received, payload=rest, error=error)

    def lost(self, count: int) -> Iterator[FrameRow]:
        """Note bytes that the capture lacks: the stream cannot be read any further."""
        if not self._refused:
            self._refused = True
            yield FrameRow("lost", self._received, error=f"{count} bytes are not in the capture")


def datagram(door: str, data: bytes, *, outgoing: bool) -> Iterator[FrameRow]:
    """Yield the frames of a datagram."""
    parsers = DATAGRAMS.get(door)
    if parsers is None:
        yield FrameRow("bytes", 0, payload=data)
        return
    try:
        frames = parsers[outgoing](data)
    except WireError as error:
        yield FrameRow("refused", 0, payload=data[:KEPT], error=str(error))
        return
    for frame in frames:
        yield from _described(door, frame, 0)


def _described(door: str, frame: Any, at: int) -> Iterator[FrameRow]:
    match frame:
        case fyrehose.PushRun(run):
            yield from (FrameRow("Push", at, payload=payload) for payload in run)
        case fyrehose.DeliverRun(seqs, run):
            for seq, payload in zip(seqs.tolist(), run, strict=True):
                yield FrameRow("Deliver", at, msgspec.json.encode({"seq": seq}), payload)
        case publish.Publishes():
            for each in frame:
                yield from _described(door, each, at)
        case tube.Message(data):
            yield _link_message(bytes(data), at)
        case _:
            fields = _fields(frame)
            carried: bytes | None = next(
                (fields.pop(name) for name in _PAYLOADS if isinstance(fields.get(name), bytes)), None
            )
            yield FrameRow(type(frame).__name__, at, _encoded(fields), carried)


def _link_message(data: bytes, at: int) -> FrameRow:
    """Decode a tube's message as the link's, if it is one."""
    try:
        message = link.parse(data)
        return FrameRow("Message", at, _encoded(dict(message.head)), bytes(message.body))
    except HeadraceError:
        return FrameRow("Message", at, payload=data)


def _fields(frame: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(frame):
        return {field.name: getattr(frame, field.name) for field in dataclasses.fields(frame)}
    return {name: getattr(frame, name) for name in getattr(frame, "__struct_fields__", ())}


def _encoded(fields: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(fields, enc_hook=_plain)


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.name
        case np.ndarray():
            return value.tolist()
        case Run():
            return list(value)
        case memoryview() | bytearray():
            return bytes(value)
        case _ if dataclasses.is_dataclass(value):
            return _fields(value)
        case _:
            return str(value)
