"""Decode one direction of a recorded WebSocket connection: its handshake, the tube's frames, and the WebSocket's own.

The ``websockets`` library, which the hub uses, needs a peer to talk to. A recording only has to be read, by the few
rules of RFC 6455 that say where a message begins and ends.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from websockets.utils import apply_mask

from headrace.errors import LimitError, MalformedError
from headrace.wire.receive_buffer import Decoder
from headrace.wire.tube.reassembly import TubeLimits, WebSocketDecoder

MAX_HEAD: Final = 64 << 10
"""Most bytes of a handshake."""
MAX_FRAME: Final = 1 << 30
"""Far more than a hub accepts: what was recorded was sent, not necessarily accepted."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """The HTTP request or answer with which a connection begins: its first line, and its headers."""

    line: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Close:
    """The WebSocket's Close."""

    code: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class WebSocketPing:
    """A ping of the WebSocket's, or its answer; the tube has its own."""

    answer: bool
    data: bytes


class WebSocketStream(Decoder[Any]):
    """One direction of a WebSocket tube; ``masked``, what a client sends."""

    def __init__(self, limits: TubeLimits, *, masked: bool) -> None:
        super().__init__()
        self._tube = WebSocketDecoder(limits)
        self._masked = masked
        self._begun = False
        self._message = bytearray()
        self._whole: deque[Any] = deque()

    @property
    def unfinished(self) -> int:
        """How many bytes of an incomplete frame or message wait."""
        return len(self.inbox) + len(self._message) + self._tube.unfinished

    def _next(self) -> Any | None:
        if not self._begun:
            return self._handshake()
        while not self._whole:
            frame = self._frame()
            if frame is None:
                return None
            self._take(*frame)
        return self._whole.popleft()

    def _handshake(self) -> Handshake | None:
        end = self.inbox.find(b"\r\n\r\n", MAX_HEAD)
        if end < 0:
            if len(self.inbox) >= MAX_HEAD:
                raise LimitError("tube", "websocket handshake", len(self.inbox), MAX_HEAD, offset=0)
            return None
        self._begun = True
        line, *rest = self.inbox.take(end + 4).decode("latin-1").split("\r\n")
        pairs = (each.partition(":") for each in rest if each)
        return Handshake(line, {name.strip().lower(): value.strip() for name, _, value in pairs})

    def _frame(self) -> tuple[int, bool, bytes] | None:
        """The next WebSocket frame: its opcode, whether its message ends with it, and what it carries."""
        head = self.inbox.peek(14)
        if len(head) < 2:
            return None
        offset = self.inbox.position
        if head[0] & 0x70 or bool(head[1] & 0x80) is not self._masked:
            raise MalformedError("tube", "websocket frame", head[:2], "RFC 6455", offset=offset)
        length, at = head[1] & 0x7F, 2
        if length >= 126:
            form = struct.Struct(">H" if length == 126 else ">Q")
            if len(head) < at + form.size:
                return None
            (length,) = form.unpack_from(head, at)
            at += form.size
        if length > MAX_FRAME:
            raise LimitError("tube", "websocket frame", length, MAX_FRAME, offset=offset)
        mask = head[at : at + 4] if self._masked else b""
        at += 4 if self._masked else 0
        if len(self.inbox) < at + length:
            return None
        self.inbox.skip(at)
        data = self.inbox.take(length)
        return head[0] & 0x0F, bool(head[0] & 0x80), apply_mask(data, mask) if self._masked else data

    def _take(self, opcode: int, last: bool, data: bytes) -> None:
        match opcode:
            case 0 | 2:  # a message, or more of it
                self._message += data
                if last:
                    message, self._message = self._message, bytearray()
                    self._whole.extend(self._tube.feed(message))
            case 8:  # goodbye
                code = struct.unpack_from(">H", data)[0] if len(data) >= 2 else None
                self._whole.append(Close(code, data[2:].decode(errors="replace")))
            case 9 | 10:  # ping, pong
                self._whole.append(WebSocketPing(opcode == 10, data))
            case _:
                raise MalformedError(
                    "tube", "websocket message", opcode, "binary", offset=self.inbox.position
                )
