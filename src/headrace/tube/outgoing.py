"""The sending direction: messages in the order they were sent, and between them the protocol's own answers.

Fragments are made as the connection takes them, never all at once: the peer chooses their size, and eight million
fragments of one byte must cost neither memory nor a long turn of the event loop. So one message is *under way* at a
time. Its pieces are handed to the connection until that is full or the turn has had its share; later messages wait.
Pieces are handed over several at a time, about as many bytes as the connection keeps when the network takes none: each
write of its own is a packet of its own, for which the peer wakes up, and the length of a fragment is only a few bytes.
Answers (a Pong, a refusal, a repeated message) go between messages: the codec hands them out with the next message, or
when there is none.

A long message that is worth compressing stops the queue while a thread works on it: order is kept by waiting, not by
sorting afterwards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from headrace.tube.compression import CompressIn, TubeCodec, choose_place, pack
from headrace.tube.message_parts import Parts
from headrace.tube.options import TubeCounts, TubeOptions
from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.connection import Compression, Transport
from headrace.wire.tube.frames import COMPRESS_FROM, LONE_BYTES, lone_front

PIECES_A_TURN = 256
"""A WebSocket frame costs some microseconds of Python: this many are a millisecond or two."""

_NOTHING: Iterator[Buffer] = iter(())


class Outgoing:
    """The sending direction of one tube.

    ``write`` hands pieces to the line; ``moved`` is called when something that waited has gone through.
    """

    def __init__(
        self,
        codec: TubeCodec,
        write: Callable[[Sequence[Buffer]], None],
        moved: Callable[[], None],
        options: TubeOptions,
        counts: TubeCounts,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._codec = codec
        self._write = write
        self._moved = moved
        self._policy = None if isinstance(options.compress, bool) else options.compress
        self._at_once = options.write_buffer
        self._counts = counts
        self._waiting: deque[Parts] = deque()
        self._ping_due = False
        self._pieces = _NOTHING
        """The rest of what is under way."""
        self._under_way = False
        self._message: Parts = ()
        """The message that is under way; empty for an answer."""
        self._packing: Parts | None = None
        """The message that a thread is compressing."""
        self._next_turn: asyncio.Handle | None = None
        self._full = False
        self._stopped = False
        self._lone_bytes = -1
        """The longest message that is sent in one step; none before the tube is open."""

    @property
    def idle(self) -> bool:
        """Whether everything has been handed to the line, and it has not to wait for the network with it."""
        return not (self._full or self._under_way or self._waiting or self._packing is not None)

    @property
    def paused(self) -> bool:
        """Whether senders should wait: the connection is full, or earlier messages are not handed over yet."""
        return not self.idle

    @property
    def waiting_bytes(self) -> int:
        """Bytes waiting; the message under way counts in full until all of it is handed over."""
        messages = (self._message, self._packing or (), *self._waiting)
        return sum(len(part) for parts in messages for part in parts)

    def send(self, parts: Parts) -> None:
        """Send a message after those before it."""
        self._counts.messages_sent += 1
        self._waiting.append(parts)
        self.pump()

    def send_lone(self, message: Buffer) -> bool:
        """Send a short message in one step, if nothing is before it; return whether that was possible."""
        if (
            type(message) is not bytes
            or len(message) > self._lone_bytes
            or self._under_way
            or self._waiting
            or self._ping_due
            or self._blocked
            or self._codec.outbox
        ):
            return False
        self._counts.messages_sent += 1
        self._write((lone_front(len(message)) + message,))
        return True

    def open(self, longest: int) -> None:
        """Begin to send messages; ``longest`` is that of one fragment."""
        if self._codec.transport is Transport.TCP:
            short = LONE_BYTES - 1 if self._codec.compression.state is Compression.OFF else COMPRESS_FROM - 1
            self._lone_bytes = min(longest, short)

    def ping(self) -> None:
        """Send a Ping after the message under way."""
        self._ping_due = True
        self.pump()

    def fill(self) -> None:
        """Note that the connection is full."""
        self._full = True

    def make_room(self) -> None:
        """Note that the connection has room again."""
        self._full = False
        self._go_on()

    def stop(self) -> None:
        """Forget what has not gone out, since the connection is gone."""
        self._stopped = True
        self._waiting.clear()
        self._pieces = _NOTHING
        self._under_way = False
        self._message = ()
        self._packing = None
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None

    def pump(self) -> None:
        """Hand over what the connection takes and this turn allows."""
        if self._blocked:
            return
        left = PIECES_A_TURN
        while some := self._next_pieces(left):
            self._write(some)
            left -= len(some)
            if self._full:
                return
            if not left:
                self._next_turn = self._loop.call_soon(self._take_turn)
                return

    def _next_pieces(self, most: int) -> list[Buffer]:
        """The next pieces, of one message or several; none if there is nothing to be sent now."""
        some: list[Buffer] = []
        size = 0
        while self._under_way or self._begin_next():
            for piece in self._pieces:
                some.append(piece)
                size += len(piece)
                if size >= self._at_once or len(some) == most:
                    return some
            self._under_way = False
            self._message = ()
        return some

    @property
    def _blocked(self) -> bool:
        return self._full or self._packing is not None or self._next_turn is not None or self._stopped

    def _begin_next(self) -> bool:
        """Put the next thing under way; return whether there is any."""
        if self._ping_due:
            self._ping_due = False
            self._pieces = self._codec.ping()
        elif self._waiting:
            return self._begin_message(self._waiting.popleft())
        elif self._codec.outbox:
            self._pieces = self._codec.data_to_send()
        else:
            return False
        self._under_way = True
        return True

    def _begin_message(self, parts: Parts) -> bool:
        short = sum(map(len, parts)) < COMPRESS_FROM
        may = not short and self._codec.may_compress
        where = choose_place(parts, self._policy) if may else CompressIn.NOWHERE
        if where is CompressIn.THREAD:
            self._packing = parts
            self._loop.run_in_executor(None, pack, parts).add_done_callback(self._take_packed)
            return False
        self._put_under_way(parts, pack(parts) if where is CompressIn.LOOP else None)
        return True

    def _put_under_way(self, parts: Parts, packed: bytes | None) -> None:
        # A refusal may have come while a thread was at work.
        if packed is None or not self._codec.may_compress:
            self._pieces = self._codec.send_raw(parts)
        else:
            self._pieces = self._codec.send_deflated(packed, parts)
            self._counts.compressed_sent += 1
        self._under_way = True
        self._message = parts

    def _take_packed(self, result: asyncio.Future[bytes | None]) -> None:
        if self._packing is None:
            return
        parts, self._packing = self._packing, None
        self._put_under_way(parts, None if result.cancelled() else result.result())
        self._go_on()

    def _take_turn(self) -> None:
        self._next_turn = None
        self._go_on()

    def _go_on(self) -> None:
        self.pump()
        self._moved()
