"""One tube as the kit speaks it, over TCP and over WebSocket: sizes, headers and fragments in raw bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from headrace.conform.case import MismatchError, shown
from headrace.conform.probe import Probe, Stream

MAX_MESSAGE: Final = 8 << 20
PING: Final = 16
PONG: Final = 17


@dataclass(frozen=True, slots=True)
class Heard:
    """What the server sent: a control code, or a message with its fragments."""

    code: int
    fragments: tuple[bytes, ...] = ()

    @property
    def message(self) -> bytes:
        """The message, assembled."""
        return b"".join(self.fragments)

    def __str__(self) -> str:
        if self.code >= 8:
            return f"control code {self.code}"
        return f"a message of code {self.code} in {len(self.fragments)} fragments: {shown(self.message)}"


class Line(Protocol):
    """A tube under way, whatever carries it."""

    def size(self, wire: bytes) -> int:
        """Send the kit's fragment size; return the server's."""
        ...

    def say(self, header: bytes, fragments: list[bytes]) -> None:
        """Send a message, or with a control code for a header just that."""
        ...

    def hear(self, expected: str) -> Heard:
        """Return the next thing that comes."""
        ...

    def expect_end(self, why: str) -> None:
        """Wait until the server has ended the tube."""
        ...


def varint(number: int) -> bytes:
    """Return a number in Avro's form.

    >>> varint(100).hex(), varint(-1).hex()
    ('c801', '01')
    """
    left = (number << 1) ^ (number >> 31)
    out = b""
    while left > 0x7F:
        out += bytes([left & 0x7F | 0x80])
        left >>= 7
    return out + bytes([left])


def read_varint(data: bytes, expected: str) -> tuple[int, int]:
    """Return the number that data begins with, and how many bytes it has."""
    value = 0
    for at, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
    raise MismatchError(f"{expected}: an Avro number of 1 to 5 bytes", shown(data[:5]))


class TcpLine:
    """A tube over TCP: each fragment has its length in front."""

    def __init__(self, probe: Probe) -> None:
        self.stream: Stream = probe.stream()

    def size(self, wire: bytes) -> int:
        """Send the kit's fragment size; return the server's."""
        self.stream.send(wire)
        return self._number("the server's fragment size")

    def say(self, header: bytes, fragments: list[bytes]) -> None:
        """Send a message or a control code."""
        self.stream.send(header + b"".join(varint(len(each)) + each for each in fragments))

    def hear(self, expected: str) -> Heard:
        """Return the next thing that comes."""
        first = self.stream.take(1, expected)[0]
        code, count = first >> 3, first & 7
        if code >= 8:
            return Heard(code)
        if not count:
            count = self._number(f"{expected}, the number of its fragments")
        fragments = []
        for _ in range(count):
            length = self._number(f"{expected}, the length of a fragment")
            if not 0 <= length <= MAX_MESSAGE:
                raise MismatchError(expected, f"a fragment of {length} bytes")
            fragments.append(self.stream.take(length, expected))
        return Heard(code, tuple(fragments))

    def expect_end(self, why: str) -> None:
        """Wait until the server has ended the tube."""
        self.stream.expect_end(why)

    def _number(self, expected: str) -> int:
        data = self.stream.take(1, expected)
        while data[-1] >= 0x80 and len(data) < 5:
            data += self.stream.take(1, expected)
        return read_varint(data, expected)[0]


class WebSocketLine:
    """A tube over WebSocket: each fragment is a binary message, and so is the header, or it begins the first one's."""

    def __init__(self, probe: Probe, *, joined: bool = False) -> None:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self._probe = probe
        self._joined = joined
        place = probe.target.place
        try:
            self._socket = probe.enter(
                connect(
                    f"ws://{place}",
                    compression=None,
                    proxy=None,
                    open_timeout=probe.seconds_left(),
                    close_timeout=1,
                    max_size=MAX_MESSAGE,
                )
            )
        except (OSError, WebSocketException) as error:
            raise MismatchError(f"a WebSocket at ws://{place}", str(error)) from None

    def size(self, wire: bytes) -> int:
        """Send the kit's fragment size; return the server's."""
        self._send(wire)
        data = self._piece("the server's fragment size")
        number, length = read_varint(data, "the server's fragment size")
        if length != len(data):
            raise MismatchError("a fragment size alone in its binary message", shown(data))
        return number

    def say(self, header: bytes, fragments: list[bytes]) -> None:
        """Send a message or a control code."""
        pieces = [header, *fragments]
        if self._joined and fragments:
            pieces = [header + fragments[0], *fragments[1:]]
        for each in pieces:
            self._send(each)

    def hear(self, expected: str) -> Heard:
        """Return the next thing that comes."""
        piece = self._piece(expected)
        if not piece:
            raise MismatchError(expected, "an empty binary message where a header is due")
        code, count, used = piece[0] >> 3, piece[0] & 7, 1
        if code >= 8:
            return Heard(code)
        if not count:
            count, length = read_varint(piece[1:], f"{expected}, the number of its fragments")
            used += length
        fragments = [piece[used:]] if len(piece) > used else []
        while len(fragments) < count:
            fragments.append(self._piece(expected))
        return Heard(code, tuple(fragments))

    def expect_end(self, why: str) -> None:
        """Wait until the server has ended the tube."""
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                self._socket.recv(self._probe.seconds_left())
        except ConnectionClosed:
            return
        except TimeoutError:
            raise MismatchError(f"the connection is closed ({why})", "it stays open") from None

    def _send(self, piece: bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        self._probe.sent.append(f"binary message {shown(piece)}")
        try:
            self._socket.send(piece)
        except ConnectionClosed:
            # The next read reports it.
            return

    def _piece(self, expected: str) -> bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            piece = self._socket.recv(self._probe.seconds_left())
        except TimeoutError:
            raise MismatchError(expected, "silence") from None
        except ConnectionClosed as error:
            raise MismatchError(expected, f"the end of the connection ({error})") from None
        if isinstance(piece, str):
            raise MismatchError(f"{expected}, in a binary message", f"the text {piece!r}")
        return piece
