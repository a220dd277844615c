"""The receiving direction: decoded only as far as the receiver wants, and not at all from a peer that takes no answers.

What was read stays in its buffer until the receiver takes more. A read may hold thousands of messages, each of which
may inflate to a thousand times its length, so a message that is not wanted yet is not even put together.

A peer may ask for answers (Pings, messages in compressions we lack) faster than it takes them. While more than
:data:`MAX_OWED` wait, it is not read: a flood of questions costs its sender, not our memory. An honest peer asks once
in a while, so two that send each other at full speed never stop each other by this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.errors import WireError
from headrace.tube.compression import TubeCodec
from headrace.tube.outgoing import Outgoing
from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.connection import TubeEvent

if TYPE_CHECKING:
    from headrace.tube.transport import TubeTransport

MAX_OWED = 256
"""Most answers that may wait."""

_NOTHING: Iterator[TubeEvent] = iter(())


class Incoming:
    """The receiving direction of one tube.

    ``take`` gets each event, and may hold the rest back; ``refuse`` gets the error of bytes that break the protocol.
    """

    def __init__(
        self,
        codec: TubeCodec,
        outgoing: Outgoing,
        connection: TubeTransport,
        take: Callable[[TubeEvent], None],
        refuse: Callable[[WireError], None],
    ) -> None:
        self._codec = codec
        self._outgoing = outgoing
        self._connection = connection
        self._take = take
        self._refuse = refuse
        self._events = _NOTHING
        """The rest of what was read."""
        self._delivering = False
        self._held = False
        self._crowded = False
        """Whether there is no room for more of an unfinished message."""
        self._choked = False
        """Whether the peer does not take the answers it asked for."""
        self._owed = 0

    @property
    def taking(self) -> bool:
        """Whether more may be given to :meth:`receive` now."""
        return not (self._held or self._choked or self._crowded)

    def receive(self, data: Buffer) -> bool:
        """Take bytes, or one WebSocket message; return whether their memory is free again."""
        self._events = self._codec.receive(data)
        return self._deliver()

    def hold(self) -> None:
        """Hand over nothing more for now."""
        if not self._held:
            self._held = True
            self._connection.pause_reading()

    def let_go(self) -> bool:
        """Go on after :meth:`hold`, first with what was read already; return whether the connection is read again."""
        self._held = False
        return self._go_on()

    def drop(self) -> None:
        """Forget what was read; what still comes is not wanted either."""
        self._events = _NOTHING
        self._held = self._choked = self._crowded = False

    def wait_for_room(self) -> None:
        """Read nothing until :meth:`has_room`."""
        if not self._crowded:
            self._crowded = True
            self._connection.pause_reading()

    def has_room(self) -> bool:
        """Go on; return whether the connection is read again."""
        self._crowded = False
        return self._go_on()

    def owe(self) -> None:
        """Note that the peer is to get an answer."""
        self._owed += 1
        if self._owed >= MAX_OWED:
            self._outgoing.pump()
            if not self._outgoing.paused:
                self._owed = 0
            elif not self._choked:
                self._choked = True
                self._connection.pause_reading()

    def settle(self) -> bool:
        """Note that all answers have gone out; return whether the connection is read again because of that."""
        self._owed = 0
        if not self._choked:
            return False
        self._choked = False
        return self._go_on()

    def _go_on(self) -> bool:
        # Within a callback there is nothing to do: delivery goes on when that returns.
        if self._delivering or not self.taking:
            return False
        if self._events is not _NOTHING and not self._deliver():
            return False
        self._connection.resume_reading()
        return True

    def _deliver(self) -> bool:
        """Hand over what was read; return whether that was all."""
        events = self._events
        self._delivering = True
        try:
            for event in events:
                self._take(event)
                if self._events is not events:
                    return True
                if not self.taking:
                    return False
            self._events = _NOTHING
        except WireError as error:
            self._events = _NOTHING
            self._refuse(error)
        finally:
            self._delivering = False
            self._outgoing.pump()
        return True
