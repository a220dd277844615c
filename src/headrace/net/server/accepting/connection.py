"""The common part of all TCP connections of a hub, accepted or dialled.

A :class:`DoorConnection` is admitted or refused, decodes frames and refuses bad ones. It is not read while the
hub is congested or while its own answers pile up. A subclass acts on its frames. All connections of a door
receive into one buffer that belongs to the door.

How a slow peer is cut off is decided here, for every door: one that takes no byte for ``limits.slow_seconds``, or
leaves a frame unfinished for as long, is refused at once (:meth:`DoorConnection.tick`); one that retention has passed
gets what is buffered and then the end of the stream (:meth:`DoorConnection.cut_off`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from headrace.errors import StorageError, WireError
from headrace.hub.access.accounts import Resource
from headrace.hub.access.connection_facts import CONNECTION_NUMBERS, ConnectionFacts
from headrace.hub.access.principal import Action, Principal
from headrace.hub.access.principals import Principals
from headrace.hub.sequence_ranges import Range
from headrace.message import Batch
from headrace.net.server.accepting.entrance import TLS_AT_PLAIN, TLS_HELLO, Refusal
from headrace.net.server.accepting.tcp_door import OWN, OWN_ACCOUNT, ConnectionGroup
from headrace.net.server.accepting.tls import certificate_names
from headrace.tube.fair_turns import AT_ONCE, FEW_READS, FRAME_BYTES
from headrace.wire.receive_buffer import Decoder

FEW_FRAMES: Final = 4
"""Frames of a read that are not worth counting: what a peer brings that sends something now and then."""

SMALL_REST: Final = 4 << 10
"""Bytes of an unfinished frame that are not counted: nearly every read ends with some."""

LITTLE_READ: Final = 16 << 10
"""Bytes of a read in a turn that has brought enough: what is left of it has to be kept, by everybody who waits."""

LONGEST_KEEPALIVE: Final = 32767
"""Longest keepalive setting, in seconds, that Linux takes."""

D = TypeVar("D", bound="ConnectionGroup[Any]")


class DoorConnection(asyncio.BufferedProtocol, Generic[D]):
    """One connection. Its decoder's frames go to :meth:`take`."""

    max_frames: ClassVar[int] = AT_ONCE
    """Frames taken from it before others have their turn."""

    def __init__(self, door: D, decoder: Decoder[Any]) -> None:
        self.door = door
        self.counters = door.counters
        self.limits = door.settings.limits
        self.name = ""
        """The peer as the log names it: its address, or its client id once it has given one."""
        self.admitted = False
        self.since = self.heard = 0.0
        """When it began, and when something last came."""
        self.reading_paused = False
        self.endpoint = ("", 0)
        """The peer's address and port; those that a trusted proxy has named are there before the connection is."""
        self.certificate_name = ""
        """The subject name of the peer's certificate, if it has shown one."""
        self.certificate_names: tuple[str, ...] = ()
        """All names in it."""
        self.principal = OWN
        """Who the peer is."""
        self._logged_in = False
        """Whether it has proven that in its protocol, not by its address or certificate."""
        self.number = next(CONNECTION_NUMBERS)
        self._received = 0
        self.account = OWN_ACCOUNT
        """The account of the peer, over all its connections."""
        self._over_rate = False
        """Whether the peer waits because it sends too much a second."""
        self._no_room = False
        """Whether the peer waits until there is room for more of an unfinished frame."""
        self._owed = False
        """Whether the peer waits for more because it is sent too much a second."""
        self._decoder = decoder
        self._where = ""
        self._spoke = False
        """Whether the peer has sent anything."""
        self._speaks_tls = False
        """Whether it began with a TLS hello, which is not part of any protocol here."""
        self._crowded = False
        """Whether frames of the last read may be left; nothing more is read before them."""
        self._rest_due = False
        self._has_more = False
        """Whether its last read brought as much as it could: there may be more."""
        self._full = False
        self._ended = False
        """Whether the peer has ended its direction."""
        self._leaving = False
        """Whether the peer gets only what is buffered, and everything it sends is dropped."""
        self._sent = 0
        self._taken = 0
        self._taken_at = 0.0
        self._frame_at = -1
        """Where in the stream the unfinished frame begins, and since when it has been unfinished."""
        self._frame_since = 0.0
        self._held = 0
        """Bytes of a long unfinished frame, as reported."""

    # For subclasses to override.

    def opened(self) -> None:
        """Begin: the connection is admitted."""

    def take(self, frame: Any) -> None:
        """Act on a frame; a :class:`~headrace.errors.WireError` refuses it and closes the connection."""
        raise NotImplementedError

    def cost(self, _frame: Any) -> int:
        """Return how many frames cost as much as this one."""
        return 1

    def bound(self, most: int) -> None:
        """Note how many frames may be taken next; most decoders make each only when it is asked for."""

    def received(self, size: int) -> memoryview:
        """Return what was just read into the buffer."""
        return self.door.view[:size]

    def done_taking(self) -> None:
        """Act on the frames of one read; the connection is still open."""

    def drained(self) -> None:
        """Continue sending: the peer has taken enough of what it was sent."""

    def judge(self, now: float) -> None:
        """Enforce the protocol's own deadlines."""

    def unsent(self) -> Range | None:
        """Return the messages that are not sent yet, to be reported if the peer is cut off."""
        return None

    def account_changes(self) -> None:
        """Give back what is charged to the account before another takes its place."""

    def closed(self) -> None:
        """Clean up; called once, and only if the connection was admitted."""

    def judge_silence(self, now: float, idle: float) -> None:
        """Cut off a peer that has been silent for ``idle`` seconds while the hub was reading from it."""
        if now - self.heard >= idle and not self.reading_paused:
            self.refuse("idle", f"silent for {idle:g} s")

    @property
    def held_back(self) -> bool:
        """Whether what the peer sends has to wait for the hub, for its own rate, or for room."""
        return self.door.hub.congested or self.door.stopping or self._over_rate or self._no_room

    def must_wait(self) -> bool:
        """Return whether what the peer sends has to wait."""
        return self.held_back or self._full

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or refuse a new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self.loop = asyncio.get_running_loop()
        self.since = self.heard = self._taken_at = self.loop.time()
        peer = transport.get_extra_info("peername")
        if peer is None:
            # It was closed before it was accepted.
            self._transport.abort()
            return
        if not self.endpoint[0]:
            self.endpoint = peer[:2]
        self.name = self._where = f"{self.endpoint[0]}:{self.endpoint[1]}"
        self.certificate_names = certificate_names(transport.get_extra_info("peercert"))
        self.certificate_name = next(iter(self.certificate_names), "")
        self._transport.set_write_buffer_limits(high=self.limits.queue_bytes - 1)
        self._probe(transport.get_extra_info("socket"))
        refusal = self.door.admit(self.endpoint[0])
        if refusal is not None:
            self.refuse(*refusal)
            return
        self.principal = self.door.principal_of(self.endpoint[0], self.certificate_name)
        if (refusal := self._judge_peer()) is not None:
            self.door.release(self.endpoint[0])
            self.refuse(*refusal)
            return
        self.admitted = True
        self.door.connections.add(self)
        self.door.empty.clear()
        if self.principal is not OWN:
            self.door.context.access.join(self)
            if not self.principal.anonymous:
                self.door.context.access.let_in(self.principal, self.door.name, self.name)
        self.opened()

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget the connection."""
        self._release()
        if self in self.door.connections:
            self.door.connections.discard(self)
            self.door.release(self.endpoint[0])
            self.account.give_back(Resource.CONNECTIONS)
        if not self.door.connections:
            self.door.empty.set()

    def get_buffer(self, _size: int) -> memoryview:
        """Offer the door's buffer."""
        return self.door.view[: self.room_to_read]

    @property
    def room_to_read(self) -> int:
        """Bytes that the next read may bring."""
        return len(self.door.view) if self.door.context.turns.left > 0 else LITTLE_READ

    def buffer_updated(self, received: int) -> None:
        """Decode received bytes and act on the frames."""
        if self.admitted:
            if not self._spoke:
                self._spoke = True
                self._speaks_tls = bytes(self.door.view[:2]) == TLS_HELLO
            self.heard = self.loop.time()
            self._has_more = received == self.room_to_read
            self._received += received
            account = self.account
            account.received_bytes += received
            if account.rated:
                account.rate(received, 0, self.heard)
            turns = self.door.context.turns
            if received >= FRAME_BYTES:
                turns.spend(received // FRAME_BYTES)
            turns.reads += 1
            late = turns.reads >= FEW_READS and turns.over
            most = 0 if late else max(1, min(self.max_frames, turns.left))
            self._take_all(self.received(received), most)

    def eof_received(self) -> bool:
        """Note that the peer sends no more; return whether to keep our direction open."""
        self._ended = True
        if self.admitted and self._decoder.unfinished:
            self.counters.refuse(self.door.name, "cut_short", self.name, "the stream ended inside a frame")
        return False

    def pause_writing(self) -> None:
        """Note that the peer takes less than it is sent: its requests have to wait, too."""
        self._full = True
        if self.must_wait():
            self.pause_reading()

    def resume_writing(self) -> None:
        """Note that the peer has room again."""
        self._full = False
        if self.admitted:
            self.drained()
            self.resume_reading()

    def _judge_peer(self) -> Refusal | None:
        """Charge the connection to its peer's account; or return why this peer may not have it."""
        door, principal = self.door, self.principal
        if not (principal.known or door.has_login):
            door.context.access.turned_away(door.name, self.name, principal.name, "unknown")
            unknown = "auth.required is on, and no principal has this address or certificate"
            return Refusal("not-allowed", unknown)
        if door.needs is not None and not self.may(door.needs):
            return Refusal("forbidden", f"{principal.name} may not {door.needs}")
        account = door.account_of(principal, self.endpoint[0])
        # Last: whoever is refused has nothing that must be given back.
        if (detail := account.take(Resource.CONNECTIONS)) is not None:
            return Refusal("connections", detail)
        self.account = account
        return None

    def _take_all(self, data: memoryview | bytes, most: int) -> None:
        """Take the frames that are complete, but not so many at once that others wait; keep the rest."""
        left = most
        self.bound(most)
        try:
            frames = self._decoder.feed(data)
            for frame in frames if most else ():
                self.take(frame)
                if not self.admitted:
                    return
                left -= self.cost(frame)
                if left <= 0:
                    break
        except WireError as error:
            # Frames before the bad one have been acted on.
            if self.admitted:
                self.done_taking()
                self.refuse(error.reason, error)
            return
        self.done_taking()
        if not self.admitted:
            return
        if most - left > FEW_FRAMES:
            self.door.context.turns.spend(most - left)
        # An event loop may read one socket many times in a turn.
        self._crowded = left <= 0 or (self._has_more and self.door.context.turns.left <= 0)
        if self.account.rated:
            self._keep_rate()
        waits = self._crowded or self.must_wait()
        # Waiting for the hub is not the peer's fault.
        held = 0 if waits else self._decoder.unfinished
        if held > SMALL_REST or self._held:
            self._held = held if held > SMALL_REST else 0
            self.door.context.unfinished.hold(self, self._held)
        if waits:
            self.pause_reading()
        if self.reading_paused:
            self.resume_reading()

    def _probe(self, sock: socket.socket) -> None:
        """Have the kernel find a peer that vanished, within ``limits.idle_seconds``.

        Where a protocol has no heartbeats, or rare ones, it would otherwise stay until it is sent something.
        """
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            idle = min(max(int(self.limits.idle_seconds), 8), LONGEST_KEEPALIVE)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle // 2)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, idle // 8)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)

    def _keep_rate(self) -> None:
        """Make the peer wait while it sends more a second than it may."""
        wait = self.account.wait(self.loop.time())
        if wait and not self._over_rate:
            self._over_rate = True
            self.account.paused += 1
            self.counters.add("rate_pauses", door=self.door.name)
            self.loop.call_later(wait, self._within_rate)

    def _within_rate(self) -> None:
        self._over_rate = False
        if self.admitted:
            self._keep_rate()
            self.resume_reading()

    def _take_rest(self) -> bool:
        """Go on when it is its turn; return whether it is read from again and has much to bring."""
        self._rest_due = False
        if not self.admitted or self.must_wait():
            return False
        has_more, self._has_more = self._has_more, False
        self._take_all(b"", self.max_frames)
        self._has_more = has_more
        return has_more and not self.reading_paused

    # Common to all.

    @property
    def buffered(self) -> int:
        """Bytes that wait for the peer to take them."""
        return self._transport.get_write_buffer_size()

    @property
    def room(self) -> int:
        """Bytes that may still be sent before the peer takes some."""
        if self.account.rated and self.account.wait_to_send(self.loop.time()):
            self._owed = True
            return 0
        return 0 if self._full else self.limits.queue_bytes - self.buffered

    def may(self, action: Action, what: str = "") -> bool:
        """Whether the peer may do an action to the thing of this name; a refusal is counted and noted."""
        return self.door.context.access.may(self.principal, action, self.door.name, what, self.name)

    def may_any(self, action: Action) -> bool:
        """Whether there is anything that the peer may do an action to; a refusal is counted and noted."""
        return self.principal.may_something(action) or self.may(action)

    def identified(self, principal: Principal) -> None:
        """Note who the peer has proven to be."""
        self.principal, self._logged_in = principal, True
        self.door.context.access.let_in(principal, self.door.name, self.name)
        account = self.door.account_of(principal, self.endpoint[0])
        if account is not self.account:
            if (detail := account.take(Resource.CONNECTIONS)) is not None:
                self.refuse("connections", detail)
                return
            self.account_changes()
            self.account.give_back(Resource.CONNECTIONS)
            self.account = account

    def known_as(self, principals: Principals) -> Principal | None:
        """Return who the peer is among the hub's new principals."""
        if self._logged_in:
            return principals.named(self.principal.name)
        return self.door.principal_of(self.endpoint[0], self.certificate_name)

    def facts(self, now: float) -> ConnectionFacts:
        """Describe the connection for an operator."""
        return ConnectionFacts(
            self.number,
            self.door.name,
            self.name,
            self.principal.name,
            now - self.since,
            now - self.heard,
            self._received,
            self._sent,
            self.buffered,
            0,
        )

    def revoked(self, detail: str) -> None:
        """End the connection: the peer's rights have been withdrawn."""
        self.refuse("revoked", detail)

    def is_called(self, who: str) -> None:
        """Name the peer in the log by its client id, beside its address."""
        self.name = f"{self._where} ({who})"

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes."""
        if self._transport.is_closing():
            return
        size, account = len(data), self.account
        self._sent += size
        account.sent_bytes += size
        if account.rated:
            account.rate_sent(size, self.loop.time())
        self._transport.write(data)

    def settled(self, outcome: Batch | StorageError) -> None:
        """Close the connection if the peer's messages were refused and its protocol has no error reply."""
        if isinstance(outcome, StorageError) and not self._transport.is_closing():
            # Already counted where it was refused.
            self.abort()

    def tick(self, now: float) -> None:
        """Cut off a peer that takes nothing, or does not finish what it began, for too long."""
        slow = self.limits.slow_seconds
        waiting = self.buffered
        taken = self._sent - waiting
        if taken != self._taken or not (waiting or self._leaving):
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at >= slow:
            if self._leaving:
                self._transport.abort()
                return
            if (unsent := self.unsent()) is not None:
                self.counters.report("cut_off", *unsent, f"not sent to {self.name}", door=self.door.name)
            self.refuse("slow", f"took nothing for {slow:g} s; {waiting} bytes are lost")
            return
        if not self.admitted:
            return  # It is closing, as fast as the peer takes the rest.
        if self._owed and not self.account.wait_to_send(now):
            self._owed = False
            self.drained()
        place = self._decoder.frame_at
        if not self._decoder.unfinished or place != self._frame_at or self.reading_paused or self._ended:
            self._frame_at, self._frame_since = place, now
        elif now - self._frame_since >= slow:
            self.refuse("stalled", f"left a frame unfinished for {slow:g} s")
            return
        if not self._spoke and self.door.silent_seconds <= now - self.since:
            self.refuse("idle", f"has not sent anything for {self.door.silent_seconds:g} s")
            return
        self.judge(now)

    def cut_off(self, reason: str, detail: object) -> None:
        """End a peer that the log can feed no further: retention has passed it, or the log is damaged.

        It gets what is buffered, then the end of the stream. What it still sends is read and dropped: closing a socket
        with unread bytes would reset the connection, and lose data on its way.
        """
        self.counters.refuse(self.door.name, reason, self.name, detail)
        self._release()
        self._leaving = True
        self._taken_at = self.loop.time()
        if self._ended or not self._transport.can_write_eof():
            self._transport.close()  # Nothing is left to be read, or TLS, which ends both directions at once.
        elif not self._transport.is_closing():
            self._transport.write_eof()
        if self.reading_paused:
            self.reading_paused = False
            with contextlib.suppress(RuntimeError):
                self._transport.resume_reading()

    def pause_reading(self) -> None:
        """Stop reading from the peer."""
        if not self.reading_paused and not self._transport.is_closing():
            self.reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the peer again, unless it still has to wait."""
        if not self.reading_paused or not self.admitted or self.must_wait():
            return
        if self._crowded:
            # Frames that were read before come first, after the others' turn.
            if not self._rest_due:
                self._rest_due = True
                self.door.context.turns.wait(self.endpoint[0], self._take_rest)
        else:
            self.reading_paused = False
            # It was not read from meanwhile.
            self.heard = self.loop.time()
            with contextlib.suppress(RuntimeError):
                self._transport.resume_reading()

    def refuse(self, reason: str, detail: object) -> None:
        """Count why, and close at once."""
        self.note_refusal(reason, detail)
        self.abort()

    def note_refusal(self, reason: str, detail: object) -> None:
        """Count and log a refusal; bytes after a TLS hello at a door without TLS are not a second mistake."""
        if self._speaks_tls:
            reason, detail = TLS_AT_PLAIN
        self.counters.refuse(self.door.name, reason, self.name, detail)

    def close(self) -> None:
        """Send what is buffered and close."""
        self._release()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._release()
        self._transport.abort()

    @property
    def origin(self) -> str:
        """The address that the peer comes from."""
        return self.endpoint[0]

    def wait_for_room(self) -> None:
        """Read nothing until there is room for an unfinished frame."""
        self._no_room = True
        self.pause_reading()

    def go_on(self) -> None:
        """Read again: there is room."""
        self._no_room = False
        self.resume_reading()

    def give_up(self, held: int, bound: int) -> None:
        """Cut off the peer: the unfinished messages of all take too much memory."""
        self._held = 0
        self.refuse("unfinished", f"all peers' unfinished messages take {held} bytes, over {bound}")

    def _release(self) -> None:
        """Take nothing more from the connection, and clean up."""
        if self._held:
            self._held = 0
            self.door.context.unfinished.hold(self, 0)
        if self.admitted:
            self.admitted = False
            self.door.context.access.leave(self)
            self.closed()
