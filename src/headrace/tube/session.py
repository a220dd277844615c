"""One tube's life between its connection and its receiver: open, carry messages, keep alive, close.

A session is driven from both sides and runs no task of its own. The connection reports what came
(:meth:`TubeSession.receive`, :meth:`~TubeSession.end`, :meth:`~TubeSession.lose`) and whether there is room; the owner
sends, pauses and closes; one timer handles silence and deadlines.

::

    opening ──fragment sizes──> open ──close(), refusal──> closing ──connection lost──> gone
       └──────────────── deadline, refusal, connection lost ────────────────────────────┘

Invariants
    - ``on_end`` is called once, after the last message, whatever ends the tube.
    - Every wait for the peer has a deadline.
    - Memory for what goes to the peer (:mod:`~headrace.tube.outgoing`) and comes from it
      (:mod:`~headrace.tube.incoming`) is bounded; the rest waits on the other side of the network.
    - A client is a stranger until the owner trusts it: its messages may be only so long.
    - What carries no message (Pings, answers without a question) may come :data:`TRIFLES_A_SECOND` times a second.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace.config import Address
from headrace.errors import ClosedError, HeadraceError, LimitError, UnreachableError, WireError
from headrace.tube.compression import TubeCodec
from headrace.tube.fair_turns import FEW_READS, FairTurns
from headrace.tube.incoming import Incoming
from headrace.tube.liveness import Ask, GiveUp, Liveness, Wait
from headrace.tube.message_parts import Parts, steady
from headrace.tube.options import TubeCounts, TubeOptions
from headrace.tube.outgoing import Outgoing
from headrace.tube.receiver import Receiver
from headrace.tube.unfinished import UnfinishedBytes
from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.connection import CompressionRefused, Ignored, Opened, Side, Transport, TubeEvent
from headrace.wire.tube.frames import Discarded, Message, Ping

if TYPE_CHECKING:
    from headrace.tube.transport import TubeTransport


MAX_TRIFLES = 4096
"""Control codes and the like that may come at once."""

TRIFLES_A_SECOND = 256
"""The same in the long run. An honest peer sends one in many seconds; each costs a step, however short it is."""


class Phase(Enum):
    """How far a tube has come."""

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    GONE = "gone"


class TubeSession:
    """One end of one tube."""

    def __init__(
        self,
        side: Side,
        transport: Transport,
        options: TubeOptions,
        unfinished: UnfinishedBytes | None = None,
        turns: FairTurns | None = None,
    ) -> None:
        self.options = options
        self.side = side
        self.transport = transport
        self.phase = Phase.OPENING
        self.counts = TubeCounts()
        self.error: HeadraceError | None = None
        """What broke the tube."""
        self.ended = False
        """Whether nothing more will be received."""
        self.receiver: Receiver
        self.admit: Callable[[], bool] = lambda: True
        """Asked once, when the connection is connected."""
        self.on_open: Callable[[], None] = lambda: None
        self.on_gone: list[Callable[[], None]] = []
        limits = options.stranger_limits if side is Side.SERVER else options.limits
        self._codec = TubeCodec(side, transport, limits, compress=options.compress is not False)
        self._unfinished = unfinished
        self._turns = turns
        self._held = 0
        """Bytes of an unfinished message, as reported."""
        self._trifles = float(MAX_TRIFLES)
        """Control codes that may come now."""
        self._loop = asyncio.get_running_loop()
        self._trifle_at = self._loop.time()
        self._liveness = Liveness(options, self._trifle_at)
        self._timer: asyncio.TimerHandle | None = None
        self._connection: TubeTransport
        self._outgoing: Outgoing
        self._incoming: Incoming
        self._peer = Address("somebody", 0)
        self._opened = False
        self._closed_here = False
        self._finished = False
        """Whether the connection was told that we send no more."""
        self._peer_ended = False
        self._goodbye: HeadraceError | None = None
        """The error raised because the tube has ended."""
        self._moving = 0
        """Bytes taken by the network when a closing tube was last checked."""
        self._waiters: set[asyncio.Future[None]] = set()

    # Called by the owner

    @property
    def peer(self) -> Address:
        """The peer's address."""
        return self._peer

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The certificate that the peer has shown."""
        return self._connection.certificate

    @property
    def first_bytes(self) -> bytes:
        """The first two bytes that the peer sent."""
        return self._connection.first_bytes

    @property
    def local(self) -> Address:
        """Our own address."""
        return self._connection.local

    @property
    def fragment_size(self) -> int:
        """The longest fragment the peer takes."""
        return self._codec.peer_fragment_size or 0

    @property
    def max_payload(self) -> int:
        """The longest WebSocket message a peer may send."""
        return self._codec.max_payload

    @property
    def paused(self) -> bool:
        """Whether senders should wait."""
        return self._outgoing.paused

    @property
    def unsent(self) -> int:
        """Bytes of ours that the network has not taken, at most."""
        return self._outgoing.waiting_bytes + self._connection.unsent

    @property
    def origin(self) -> str:
        """The host that the peer is at."""
        return self._peer.host

    def trust(self) -> None:
        """Accept messages of full length: the peer has shown who it is."""
        self._codec.keep_limits(self.options.limits)

    def write(self, message: Buffer) -> None:
        """Send a message, which waits in memory if there is no room."""
        if self.phase is not Phase.OPEN or not self._outgoing.send_lone(message):
            self.write_parts((steady(message),))

    def write_parts(self, parts: Parts) -> None:
        """Send a message that is in parts."""
        self.check_open()
        length = sum(map(len, parts))
        if length > self.options.longest_sent:
            raise LimitError("tube", "message length", length, self.options.longest_sent)
        self._outgoing.send(parts)

    async def drain(self) -> None:
        """Wait until there is room."""
        while self.phase is Phase.OPEN and self._outgoing.paused:
            await self._something_happens()
        self.check_open()

    async def wait_open(self) -> None:
        """Wait until the tube is open, even if it has ended since."""
        while self.phase is Phase.OPENING and not self.ended:
            await self._something_happens()
        if not self._opened:
            raise self.reason()

    async def wait_gone(self) -> None:
        """Wait until the connection is gone."""
        while self.phase is not Phase.GONE:
            await self._something_happens()

    def check_open(self) -> None:
        """Refuse to send on a tube that cannot."""
        if self.phase is not Phase.OPEN:
            raise self.reason()

    def reason(self) -> HeadraceError:
        """Say why nothing can be sent or received any more."""
        if self._closed_here:
            return ClosedError("the tube is closed")
        if self._goodbye is None:
            self._goodbye = self.error or UnreachableError(str(self._peer), "the peer closed the tube")
        # It may be raised many times, and must not gather a traceback of each.
        return self._goodbye.with_traceback(None)

    @property
    def broken(self) -> bool:
        """Whether the tube ended otherwise than by being closed."""
        return self.error is not None and not self._closed_here

    def explains(self, error: BaseException) -> bool:
        """Whether an error says no more than that this tube has ended."""
        return error is self._goodbye or isinstance(error, ClosedError)

    def pause_reading(self) -> None:
        """Deliver no more messages for now."""
        self._incoming.hold()

    def resume_reading(self) -> None:
        """Deliver messages again, beginning at once with those that were read already."""
        if self._incoming.let_go():
            self._liveness.resume(self._loop.time())

    def stop_receiving(self) -> None:
        """Take no more messages than were read already; sending goes on."""
        if not self.ended:
            self._connection.pause_reading()
            self._end(None)

    def close(self) -> None:
        """Send what was written, then close; discard what is still received.

        If the peer has yet to say whether it supports our compression, wait for that, and repeat the message if not.
        """
        if self.phase is Phase.OPENING:
            self.abort()
        elif self.phase is Phase.OPEN:
            self._closed_here = True
            self._begin_closing(None)
            if self._verdict_due:
                # What was read before the verdict comes first; messages are not wanted any more.
                self._incoming.let_go()
            # To see the verdict, and the peer close as well.
            self._connection.resume_reading()
            self._finish_when_idle()

    def abort(self) -> None:
        """Close at once."""
        if self.phase is Phase.OPENING or self.phase is Phase.OPEN:
            self._closed_here = True
            self._begin_closing(None)
        if self.phase is not Phase.GONE:
            self._connection.abort()

    # Called by the connection

    def connect(self, connection: TubeTransport) -> None:
        """Begin on a connection just made."""
        self._connection = connection
        self._peer = connection.peer
        self._outgoing = Outgoing(self._codec, connection.write, self._move, self.options, self.counts)
        self._incoming = Incoming(self._codec, self._outgoing, connection, self._take, self.refuse)
        if self._turns is not None:
            self._incoming.share(self._turns, connection.peer.host)
        if self.admit():
            self._look()
        else:
            self.abort()

    def ready(self) -> None:
        """Begin to send: the connection carries pieces from now on."""
        self._outgoing.pump()

    def hear(self) -> None:
        """Note that the peer sent something."""
        self._liveness.hear(self._loop.time())
        if self._turns is not None:
            self._turns.reads += 1
        self._incoming.begin()

    def read(self, data: memoryview) -> bool:
        """Take what was read from TCP; return whether its memory is free again."""
        live = self._liveness
        live.heard, live.asked = self._loop.time(), None
        turns, late = self._turns, False
        if turns is not None:
            turns.reads += 1
            late = turns.reads >= FEW_READS and turns.over
        message = None if self.ended or late else self._codec.take_lone(data)
        if message is None:
            self._incoming.begin()
            free = self.receive(data)
            self.hold_unfinished()
            return free
        live.whole = live.heard
        self.counts.messages_received += 1
        if self._held:
            self.hold_unfinished()
        try:
            self.receiver.on_message(message)
        except WireError as error:
            self.refuse(error)
        return True

    def receive(self, data: Buffer) -> bool:
        """Take bytes, or one WebSocket message; return whether their memory is free again."""
        if self.ended:
            return self._receive_verdict(data)
        free = self._incoming.receive(data)
        if not self._codec.unfinished:
            self._liveness.whole = self._liveness.heard
        return free

    def owe(self) -> None:
        """Note that the peer is to get an answer."""
        if self.count_trifle():
            self._incoming.owe()

    def count_trifle(self) -> bool:
        """Note that the peer sent something that carries no message; return whether it may go on."""
        self._trifles -= 1
        if self._trifles < 0:
            earned = (self._liveness.heard - self._trifle_at) * TRIFLES_A_SECOND
            self._trifles = min(MAX_TRIFLES, self._trifles + earned)
            self._trifle_at = self._liveness.heard
            if self._trifles < 0:
                # What was read with them is not looked at: it may be a hundred thousand more.
                self._incoming.drop()
                self.refuse(LimitError("tube", "control codes", f"over {MAX_TRIFLES}", MAX_TRIFLES))
                return False
        return True

    def hold_unfinished(self) -> None:
        """Report how much memory an unfinished message takes now."""
        if self._unfinished is not None and not self.ended:
            held = self._codec.held + self._connection.unfinished
            if held != self._held:
                self._hold(self._unfinished, held)

    def _hold(self, unfinished: UnfinishedBytes, size: int) -> None:
        self._held = size
        unfinished.hold(self, size)

    def wait_for_room(self) -> None:
        """Read nothing until there is room for an unfinished message."""
        self._incoming.wait_for_room()

    def go_on(self) -> None:
        """Read again: there is room."""
        if self._incoming.has_room():
            self._liveness.resume(self._loop.time())

    def give_up(self, held: int, bound: int) -> None:
        """Cut off the peer: the unfinished messages of all take too much memory."""
        self._held = 0
        self._codec.forget()
        self._incoming.drop()
        self.refuse(LimitError("tube", "bytes of unfinished messages of all peers", held, bound))
        self._connection.abort()

    @property
    def taking(self) -> bool:
        """Whether more may be given to :meth:`receive` now."""
        return self._incoming.taking

    def end(self, error: HeadraceError | None = None, *, sending: bool = True) -> bool:
        """Note that the peer sends no more; return whether we may still send (if ``sending`` is possible at all)."""
        self._peer_ended = True
        if self.phase is Phase.OPENING:
            reason = "the connection ended before the tube was open"
            error = error or UnreachableError(str(self._peer), reason)
        elif self.phase is Phase.CLOSING:
            # What we still have goes out first, but no verdict comes any more.
            self._finish_when_idle()
            return sending and self._closed_here and not self._finished
        elif error is None and self._codec.unfinished:
            cut = f"the connection ended {self._codec.unfinished} bytes into a message"
            error = UnreachableError(str(self._peer), cut)
        elif error is None and sending and self.side is Side.SERVER:
            # A client may shut its side down and wait for the answers; a server that says goodbye goes away.
            self._end(None)
            self._watch_closing()
            return True
        self._begin_closing(error)
        return False

    def refuse(self, error: WireError) -> None:
        """Close because of bytes that break the protocol."""
        if not self.ended:
            self._begin_closing(error)
            self._connection.refuse(error)

    def lose(self, error: Exception | None) -> None:
        """Note that the connection is gone."""
        reason = UnreachableError(str(self._peer), str(error or "the connection was lost"))
        if not self.ended:
            self._end(reason)
        elif error is not None and not self._finished:
            self.error = self.error or reason
        self.phase = Phase.GONE
        self._codec.forget()
        if self._timer is not None:
            self._timer.cancel()
        self._outgoing.stop()
        self._wake()
        for callback in self.on_gone:
            callback()

    def fill(self) -> None:
        """Note that the connection takes no more for now."""
        self._outgoing.fill()

    def make_room(self) -> None:
        """Note that the connection takes more again."""
        self._outgoing.make_room()

    # Receiving

    def _take(self, event: TubeEvent) -> None:
        match event:
            case Message() if self._closed_here:
                return
            case Message(data):
                self.counts.messages_received += 1
                self._liveness.whole = self._liveness.heard
                self.receiver.on_message(data)
            case Ping():
                self.owe()
            case Discarded():
                self.counts.discarded += 1
                self.owe()
            case Opened():
                self._open()
            case CompressionRefused():
                self.counts.refused += 1
            case Ignored():
                self.counts.ignored += 1
                self.count_trifle()

    def _open(self) -> None:
        self.phase = Phase.OPEN
        self._opened = True
        self._liveness.open(self._loop.time())
        self._outgoing.open(min(self.fragment_size, self.options.longest_sent))
        self._look()
        self._outgoing.pump()
        self._wake()
        self.on_open()

    # Ending

    def _begin_closing(self, error: HeadraceError | None) -> None:
        self.phase = Phase.CLOSING
        self._codec.forget()
        if self._closed_here and not self._verdict_due:
            self._incoming.drop()
        self._end(error)
        self._watch_closing()

    def _end(self, error: HeadraceError | None) -> None:
        self.error = self.error or error
        if not self.ended:
            if self._unfinished is not None and self._held:
                self._hold(self._unfinished, 0)
            self.ended = True
            self._wake()
            self.receiver.on_end(error)

    @property
    def _verdict_due(self) -> bool:
        """Whether a closing tube waits for the peer to say if it supports our compression."""
        tried = self._codec.on_trial or (self._codec.may_compress and not self._outgoing.idle)
        return tried and self._closed_here and not self._peer_ended

    def _receive_verdict(self, data: Buffer) -> bool:
        """Take bytes that come to an ended tube: only what the peer says of our compression still counts."""
        if self.phase is not Phase.CLOSING or not self._verdict_due:
            return True
        free = self._incoming.receive(data)
        self._finish_when_idle()
        return free

    def _finish_when_idle(self) -> None:
        if self._outgoing.idle and not self._verdict_due:
            self._finish()

    def _finish(self) -> None:
        if not self._finished:
            self._finished = True
            if self._peer_ended:
                self._connection.close()
            else:
                self._connection.finish()

    # Waiting

    def _move(self) -> None:
        """React to something having been handed to the connection."""
        if self.phase is Phase.CLOSING:
            self._finish_when_idle()
        if self._outgoing.paused:
            return
        if self._incoming.settle():
            self._liveness.resume(self._loop.time())
        self._wake()
        if self.phase is Phase.OPEN:
            self.receiver.on_room()

    def _look(self) -> None:
        """Do what is due, and set the timer for what may be due next."""
        if self.ended:
            self._look_closing()
            return
        while True:
            verdict = self._liveness.look(
                self._loop.time(),
                reading=self.taking,
                unfinished=bool(self._codec.unfinished or self._connection.unfinished),
                taken=self._connection.written - self._connection.unsent,
            )
            match verdict:
                case Ask():
                    self._outgoing.ping()
                case GiveUp(reason):
                    self._begin_closing(UnreachableError(str(self._peer), reason))
                    self._connection.abort()
                    return
                case Wait(until):
                    self._set_timer(until - self._loop.time())
                    return

    def _watch_closing(self) -> None:
        self._moving = self._connection.written - self._connection.unsent
        closing = self.phase is Phase.CLOSING
        self._set_timer(self.options.close_seconds if closing else self.options.pong_seconds)

    def _look_closing(self) -> None:
        """Cut off a peer that takes nothing or, once it has all, does not close as well."""
        if self._connection.written - self._connection.unsent != self._moving:
            self._watch_closing()
        elif unsent := self.unsent:
            self.error = self.error or UnreachableError(str(self._peer), f"{unsent} bytes were never taken")
            self._connection.abort()
        elif self.phase is Phase.CLOSING and self._verdict_due and not self._finished:
            # A peer that does not even answer Pings has at least got everything.
            self._finish()
            self._watch_closing()
        elif self.phase is Phase.CLOSING:
            self._connection.abort()
        else:
            self._watch_closing()

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if seconds < math.inf:
            self._timer = self._loop.call_later(seconds, self._look)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _something_happens(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
