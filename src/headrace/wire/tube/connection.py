"""A tube's conversation: which side begins, what is answered, and when compression may be used.

One :class:`TubeConnection` serves either side of either transport and owns no socket::

    connection = TubeConnection(Side.CLIENT, Transport.TCP)
    write(connection.data_to_send())              # the client speaks first
    for event in connection.receive(read()):
        ...                                       # Opened, then Message, Pong …
    write(connection.data_to_send())              # answers: Pong, refusals, a repeated message
    write(connection.send(b"hello"))

Everything that goes out passes one queue, so what is written is in the protocol's order whichever call
returned it: :meth:`TubeConnection.send` and :meth:`TubeConnection.ping` return the answers that wait, then their
own. On TCP what is returned are buffers to write back to back, on WebSocket the payloads of binary messages.
The caller writes all of it, in the order it was returned, before anything else.

Compression is on trial first. A Ping follows the first compressed message, and until its Pong all others go
uncompressed: so if the peer refuses the compression, the one message to repeat is the one that was kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain

from headrace.errors import LimitError, UnexpectedError
from headrace.wire.receive_buffer import Buffer
from headrace.wire.state_machine import StateMachine
from headrace.wire.tube.frames import (
    DEFLATE,
    MAX_HEADER,
    RAW,
    Discarded,
    FragmentSize,
    Frame,
    Message,
    NotSupported,
    Ping,
    Pong,
    deflate,
    join_header,
    serialize,
    stream_pieces,
    websocket_pieces,
)
from headrace.wire.tube.reassembly import (
    DEFAULT_LIMITS,
    Reassembly,
    StreamDecoder,
    TubeLimits,
    WebSocketDecoder,
)


class Side(Enum):
    """Which end this is; the client speaks first.

    >>> Side("client") is Side.CLIENT
    True
    """

    CLIENT = "client"
    SERVER = "server"


class Transport(Enum):
    """What carries the tube.

    >>> Transport("websocket")
    <Transport.WEBSOCKET: 'websocket'>
    """

    TCP = "tcp"
    WEBSOCKET = "websocket"


@dataclass(frozen=True, slots=True)
class Opened:
    """Both fragment sizes are known: messages may be sent from now on."""

    fragment_size: int
    """The longest fragment the peer wants to receive."""


@dataclass(frozen=True, slots=True)
class CompressionRefused:
    """The peer lacks a compression we used, and we no longer use it on this connection."""

    compression: int
    repeated: bool
    """Whether the message was still kept, and waits in the queue to go again uncompressed."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """An answer without a question; it changes nothing."""

    answer: NotSupported | Pong


TubeEvent = Opened | Message | Discarded | CompressionRefused | Ping | Pong | Ignored


class Compression(Enum):
    """What is known of the peer's support of deflate."""

    UNTRIED = "untried"
    ON_TRIAL = "on trial"
    AGREED = "agreed"
    OFF = "off"


class Evidence(Enum):
    """What shows it."""

    SENT = "compressed message sent"
    PONG = "pong of the trial"
    NOT_SUPPORTED = "not supported"


TRANSITIONS = {
    (Compression.UNTRIED, Evidence.SENT): Compression.ON_TRIAL,
    (Compression.ON_TRIAL, Evidence.PONG): Compression.AGREED,
    (Compression.ON_TRIAL, Evidence.NOT_SUPPORTED): Compression.OFF,
    (Compression.AGREED, Evidence.SENT): Compression.AGREED,
    # Its Pong said otherwise; whatever this peer means, raw messages are safe from now on.
    (Compression.AGREED, Evidence.NOT_SUPPORTED): Compression.OFF,
}
"""Our sending direction. A compressed message may be sent exactly where the table has a move for it."""


class TubeConnection:
    """One end of one tube.

    ``compress`` allows compression of what is sent, where it pays; what is received may be compressed
    either way. Bytes that break the protocol raise a :class:`~headrace.errors.WireError` out of
    :meth:`receive`, and from then on every further byte does.
    """

    def __init__(
        self, side: Side, transport: Transport, limits: TubeLimits = DEFAULT_LIMITS, *, compress: bool = True
    ) -> None:
        self.side = side
        self.transport = transport
        self.limits = limits
        self.compression = StateMachine(
            "tube", TRANSITIONS, Compression.UNTRIED if compress else Compression.OFF
        )
        self.peer_fragment_size: int | None = None
        self._decoder: Reassembly
        if transport is Transport.TCP:
            self._decoder = StreamDecoder(limits)
            self._pieces = stream_pieces
        else:
            self._decoder = WebSocketDecoder(limits)
            self._pieces = websocket_pieces
        self.take_lone = self._decoder.take_lone
        """Takes what was received if it is one whole message, and nothing else is under way; see the decoder."""
        self.outbox: list[Iterable[Buffer]] = []
        """What waits to be written; :meth:`data_to_send` hands it out."""
        self._kept = b""
        """The message on trial, to repeat if its compression is refused."""
        self._pings = 0
        self._pongs = 0
        self._trial = 0
        """Which of our Pings follows the message on trial, counted from 1."""
        if side is Side.CLIENT:
            self._queue_fragment_size()

    @property
    def max_payload(self) -> int:
        """The longest WebSocket message a peer may send: a fragment with the header in front."""
        return self.limits.fragment_size + MAX_HEADER

    @property
    def unfinished(self) -> int:
        """Bytes of an incomplete message; not 0 when the connection ends means that it was cut."""
        return self._decoder.unfinished

    @property
    def held(self) -> int:
        """Bytes of memory that the message under way takes."""
        return self._decoder.held

    def keep_limits(self, limits: TubeLimits) -> None:
        """Keep other limits from the next message on; the fragment size, which the peer was told, stays."""
        self.limits = self._decoder.limits = limits

    def keep_rest(self) -> bool:
        """Copy what was received and not read yet, freeing its memory; return whether more may follow."""
        return self._decoder.keep_rest()

    def forget(self) -> None:
        """Free the message under way: the connection is over."""
        self._decoder.forget()

    def receive(self, data: Buffer) -> Iterator[TubeEvent]:
        """Take bytes (TCP, in any chunks) or one binary message (WebSocket) and yield what they complete.

        Exhaust the iterator before the memory of ``data`` is reused, then write :meth:`data_to_send`.
        """
        return self._events(self._decoder.feed(data))

    def send(self, message: Buffer) -> Iterator[Buffer]:
        """Queue a message, compressed where that is allowed and pays; return all there is to write.

        The memory of ``message`` must stay as it is until that has been written.
        """
        self._opened("message")
        length = memoryview(message).nbytes
        if length > self.limits.max_message:
            raise LimitError("tube", "message length", length, self.limits.max_message)
        packed = deflate(message) if self.compression.allows(Evidence.SENT) else None
        if packed is None:
            self._queue_message(message, RAW)
        else:
            self._queue_message(packed, DEFLATE)
            if self.compression.state is Compression.UNTRIED:
                self._kept = bytes(message)
                self._queue_ping()
                self._trial = self._pings
            self.compression.step(Evidence.SENT)
        return self.data_to_send()

    def ping(self) -> Iterator[Buffer]:
        """Queue a Ping, whose answer will be a :class:`Pong` event; return all there is to write."""
        self._opened("ping")
        self._queue_ping()
        return self.data_to_send()

    def data_to_send(self) -> Iterator[Buffer]:
        """Return all there is to write, and forget it."""
        waiting, self.outbox = self.outbox, []
        return chain.from_iterable(waiting)

    def _events(self, frames: Iterator[Frame]) -> Iterator[TubeEvent]:
        for frame in frames:
            match frame:
                case Message():
                    yield frame
                case FragmentSize(size):
                    self.peer_fragment_size = size
                    if self.side is Side.SERVER:
                        self._queue_fragment_size()
                    yield Opened(size)
                case Discarded(compression):
                    self.outbox.append((serialize(NotSupported(compression)),))
                    yield frame
                case Ping():
                    self.outbox.append(_PONG)
                    yield frame
                case Pong():
                    yield from self._take_pong(frame)
                case NotSupported():
                    yield self._take_refusal(frame)

    def _take_pong(self, pong: Pong) -> Iterator[TubeEvent]:
        if self._pongs == self._pings:
            yield Ignored(pong)
            return
        # Pongs carry nothing to tell them apart, but come in the order of their Pings.
        self._pongs += 1
        if self._pongs != self._trial:
            yield pong
        elif self.compression.allows(Evidence.PONG):
            self.compression.step(Evidence.PONG)
            self._kept = b""

    def _take_refusal(self, refusal: NotSupported) -> TubeEvent:
        if refusal.compression != DEFLATE or not self.compression.allows(Evidence.NOT_SUPPORTED):
            return Ignored(refusal)
        repeated = self.compression.state is Compression.ON_TRIAL
        self.compression.step(Evidence.NOT_SUPPORTED)
        if repeated:
            self._queue_message(self._kept, RAW)
            self._kept = b""
        return CompressionRefused(refusal.compression, repeated)

    def _opened(self, what: str) -> int:
        """Return the peer's fragment size, which must have come before anything else is sent."""
        if self.peer_fragment_size is None:
            raise UnexpectedError("tube", what, "before opening", "only after the fragment sizes")
        return self.peer_fragment_size

    def _queue_fragment_size(self) -> None:
        self.outbox.append((serialize(FragmentSize(self.limits.fragment_size)),))

    def _queue_ping(self) -> None:
        self._pings += 1
        self.outbox.append(_PING)

    def _queue_message(self, message: Buffer, compression: int) -> None:
        self.outbox.append(self._framed(self._pieces(message, self._opened("message"), compression)))

    def _framed(self, pieces: Iterator[Buffer]) -> Iterator[Buffer]:
        """Join a message's header to its first fragment for a peer that does so itself."""
        return join_header(pieces) if self._decoder.joined else pieces


_PING = (serialize(Ping()),)
_PONG = (serialize(Pong()),)
