"""A tube over WebSocket: each of the codec's pieces one binary message.

The handshake, frames, masks and the closing handshake are the ``websockets`` library's, in its form without I/O; the
socket is ours, so that a tube over WebSocket is driven, paused and closed exactly as one over TCP. The library's own
compression stays off, since the tube compresses; so do its keepalive Pings, since the tube has its own.

The size of a WebSocket message is bounded by the fragment size we ask for and a header, and that bound is the
library's as well: a longer one is refused at its length.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Sequence

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidStatus, PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import Event, State
from websockets.server import ServerProtocol
from websockets.typing import Origin
from websockets.uri import WebSocketURI

from headrace.errors import (
    HeadraceError,
    LimitError,
    MalformedError,
    RefusedError,
    UnexpectedError,
    UnreachableError,
    WireError,
)
from headrace.tube.session import TubeSession
from headrace.tube.transport import ReadBuffer, TubeTransport
from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.reassembly import CRUMB

Origins = Sequence[str | re.Pattern[str] | None]
"""Origins of web pages that may connect, or patterns for them; ``None`` stands for clients that send none."""

_GOODBYES = (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.NO_STATUS_RCVD)

SMALLEST_READ = 2 << 10
"""The library takes every frame of a read at once, and hundreds may be in it."""

_MAX_REASON = 123
"""A close frame holds 125 bytes, two of which are its code."""


class WebSocketTransport(TubeTransport):
    """One WebSocket connection, either side."""

    def __init__(
        self, session: TubeSession, buffer: ReadBuffer, protocol: ClientProtocol | ServerProtocol
    ) -> None:
        super().__init__(session, buffer)
        self._smallest_read = self._read_size = SMALLEST_READ
        self._protocol = protocol
        self._events: deque[Event] = deque()
        """Frames received and not yet processed."""
        self._payload = bytearray()
        """The beginning of a message that the peer sends in several frames."""
        self._reported = False
        """Whether the session knows how the connection ended."""
        self._ended = False
        self._finished = False
        """Whether our direction has ended."""
        """Whether the peer sends no more."""

    @classmethod
    def client(cls, session: TubeSession, buffer: ReadBuffer, uri: WebSocketURI) -> WebSocketTransport:
        """Make the transport of a client that connects to ``uri``."""
        protocol = ClientProtocol(uri, max_size=session.max_payload)
        return cls(session, buffer, protocol)

    @classmethod
    def server(cls, session: TubeSession, buffer: ReadBuffer, origins: Origins | None) -> WebSocketTransport:
        """Make the transport of a client that has connected to us."""
        allowed = None if origins is None else [Origin(o) if isinstance(o, str) else o for o in origins]
        protocol = ServerProtocol(origins=allowed, max_size=session.max_payload)
        return cls(session, buffer, protocol)

    # Called by the session

    @property
    def unfinished(self) -> int:
        """Bytes of a frame, or of a message in several frames, that is under way."""
        return len(self._payload) + len(self._protocol.reader.buffer)

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Send each piece as one binary message."""
        # A peer that has closed takes nothing more; the session learns of it when it gets that far.
        if self._protocol.state is State.OPEN:
            for piece in pieces:
                self._protocol.send_binary(piece)
            self._flush()

    def finish(self) -> None:
        """Begin the closing handshake."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()

    def refuse(self, error: WireError) -> None:
        """Tell the peer what was wrong, and close."""
        if self._protocol.state is State.OPEN:
            code = CloseCode.MESSAGE_TOO_BIG if isinstance(error, LimitError) else CloseCode.PROTOCOL_ERROR
            if error.field == "websocket message":
                code = CloseCode.UNSUPPORTED_DATA
            reason = str(error).encode()[:_MAX_REASON].decode(errors="ignore")
            self._protocol.fail(code, reason)
            self._flush()

    def resume_reading(self) -> None:
        """Process what was received already, then read again."""
        if self._work():
            super().resume_reading()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: a client sends its request."""
        super().connection_made(transport)
        if isinstance(self._protocol, ClientProtocol):
            self._protocol.send_request(self._protocol.connect())
            self._flush()

    def eof_received(self) -> None:
        """Pass on that the peer is gone; a WebSocket has no half-closed state."""
        self._ended = True
        self._protocol.receive_eof()
        self._flush()
        self._events.extend(self._protocol.events_received())
        self._work()

    def _take(self, data: memoryview) -> bool:
        self._session.hear()
        # The library copies what it is given into its own buffer.
        self._protocol.receive_data(data)  # type: ignore[arg-type]
        self._flush()
        self._events.extend(self._protocol.events_received())
        self._work()
        self._session.hold_unfinished()
        return True

    def _work(self) -> bool:
        """Pass on events as long as the session takes them; return whether there are no more."""
        while self._events:
            if not self._session.taking:
                return False
            self._pass_on(self._events.popleft())
        self._report_failure()
        return self._session.taking

    def _pass_on(self, event: Event) -> None:
        match event:
            case Request() if isinstance(self._protocol, ServerProtocol):
                self._answer(self._protocol, event)
            case Response():
                if self._protocol.state is State.OPEN:
                    self._session.ready()
            case Frame(opcode=Opcode.BINARY, data=data, fin=True):
                self._session.receive(data)
            case Frame(opcode=Opcode.BINARY | Opcode.CONT, data=data, fin=fin):
                if len(data) < CRUMB and not self._session.count_trifle():
                    return
                self._payload += data
                if fin:
                    payload, self._payload = self._payload, bytearray()
                    self._session.receive(payload)
            case Frame(opcode=Opcode.TEXT, data=data):
                self._session.refuse(
                    UnexpectedError("tube", "websocket message", bytes(data[:16]), "only binary messages")
                )
            case Frame(opcode=Opcode.PING):
                self._session.owe()
            case Frame(opcode=Opcode.PONG):
                self._session.count_trifle()
            case Frame(opcode=Opcode.CLOSE):
                self._reported = True
                self._session.end(self._goodbye(), sending=False)

    def _answer(self, protocol: ServerProtocol, request: Request) -> None:
        if self._finished:
            return  # What came with the request was wrong: there is no answer any more.
        protocol.send_response(protocol.accept(request))
        self._flush()
        if protocol.state is State.OPEN:
            self._session.ready()

    def _goodbye(self) -> HeadraceError | None:
        close = self._protocol.close_rcvd
        if close is None or close.code in _GOODBYES:
            return None
        return RefusedError(f"websocket-{int(close.code)}", close.reason or str(close))

    def _report_failure(self) -> None:
        """Report what ended the connection other than a Close."""
        if self._reported:
            return
        failure = self._protocol.handshake_exc or self._protocol.parser_exc
        if failure is None:
            return
        self._reported = True
        error = self._translated(failure)
        if isinstance(error, WireError) and self._protocol.handshake_exc is None:
            self._session.refuse(error)
        else:
            self._session.end(error, sending=False)

    def _translated(self, failure: Exception) -> HeadraceError:
        """Translate the library's errors into ours."""
        peer = str(self._session.peer)
        match failure:
            case InvalidStatus(response=response):
                return RefusedError(f"http-{response.status_code}", f"{peer}: {response.reason_phrase}")
            case PayloadTooBig(size=size):
                return LimitError("tube", "fragment length", size, self._session.options.fragment_size)
            case EOFError() | InvalidMessage(__cause__=EOFError()) if self._ended:
                return UnreachableError(peer, "the connection ended without a closing handshake")
            case InvalidHandshake():
                cause = failure.__cause__ or failure
                return MalformedError("tube", "websocket handshake", str(cause), "RFC 6455")
            case _:
                return MalformedError("tube", "websocket frame", str(failure), "RFC 6455")

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if self._transport.is_closing() or self._finished:
                return
            if data:
                self.written += len(data)
                self._transport.write(data)
                continue
            self._finished = True
            if self._transport.can_write_eof():
                with contextlib.suppress(OSError):  # reset already, which the loop has not reported yet
                    self._transport.write_eof()
            else:
                self._transport.close()
