"""The receiving direction: decoded only as far as the receiver wants, and not at all from a peer that takes no answers.

What was read stays in its buffer until the receiver takes more. A read may hold thousands of messages, each of which
may inflate to a thousand times its length, so a message that is not wanted yet is not even put together.

A peer may ask for answers (Pings, messages in compressions we lack) faster than it takes them. While more than
:data:`MAX_OWED` wait, it is not read: a flood of questions costs its sender, not our memory. An honest peer asks once
in a while, so two that send each other at full speed never stop each other by this.

At a server, it shares the turns of the event loop with the others (:mod:`headrace.tube.fair_turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.errors import WireError
from headrace.tube.compression import TubeCodec
from headrace.tube.fair_turns import AT_ONCE, FairTurns
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
        self._in_line = False
        """Whether it waits for its turn."""
        self._owed = 0
        self._turns: FairTurns | None = None
        self._origin = ""
        self._allowed = 0
        """Events that it may take before it waits in line."""

    def share(self, turns: FairTurns, origin: str) -> None:
        """Take turns with all other connections, in the line of its address."""
        self._turns, self._origin = turns, origin

    def begin(self) -> None:
        """Note that something was read."""
        if self._turns is not None:
            self._allowed = self._turns.at_once()

    @property
    def taking(self) -> bool:
        """Whether more may be given to :meth:`receive` now."""
        return not (self._held or self._choked or self._crowded or self._in_line)

    def receive(self, data: Buffer) -> bool:
        """Take bytes, or one WebSocket message; return whether their memory is free again."""
        self._events = self._codec.receive(data)
        turns = self._turns
        if turns is not None and turns.over and self._codec.keep_rest():
            self._stand_in_line(turns)
            return True
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
        self._held = self._choked = self._crowded = self._in_line = False

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
        if not self._in_line:
            self._connection.resume_reading()
        return not self._in_line

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
                if self._turns is not None and self._is_enough(self._turns):
                    return True
            self._events = _NOTHING
        except WireError as error:
            self._events = _NOTHING
            self._refuse(error)
        finally:
            self._delivering = False
            self._outgoing.pump()
        return True

    def _is_enough(self, turns: FairTurns) -> bool:
        """Count an event; wait in line, with a copy of what is left of the read, if it has taken enough."""
        self._allowed -= 1
        turns.left -= 1
        if self._allowed > 0 or not self._codec.keep_rest():
            return False
        self._stand_in_line(turns)
        return True

    def _stand_in_line(self, turns: FairTurns) -> None:
        self._in_line = True
        self._connection.pause_reading()
        turns.wait(self._origin, self._have_turn)

    def _have_turn(self) -> None:
        if self._in_line:
            self._in_line = False
            self._allowed = AT_ONCE
            self._go_on()
