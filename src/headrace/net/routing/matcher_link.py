"""A matcher's connection to a dispatcher: pushes for clients elsewhere.

The first of ``matching.dispatchers`` that answers is used. A matcher does not queue: while the connection has no room,
matching waits (it reads the log later), and without a connection, matches are counted and not pushed. If connectors
rely on the matcher, a new connection begins with a mark of how far matching is, so that they know what they have to
find in the log themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import time

from headrace.config import Address
from headrace.hub.routing.local_matcher import mark
from headrace.net.routing.outgoing_connections import Dialled, Dialling
from headrace.net.server.accepting.door import DoorContext
from headrace.wire.attribute.messages import (
    ConnectorDecoder,
    ConnectorMessage,
    Heartbeat,
    MatcherPush,
    parse_msg_id,
    serialize,
)
from headrace.wire.attribute.push_parts import split


class ToDispatcher(Dialling["MatcherLink"]):
    """The connection to the dispatcher in use, if there is one."""

    def __init__(
        self, context: DoorContext, node: int, place: Callable[[], int], go_on: Callable[[], None]
    ) -> None:
        super().__init__(
            context, "to_dispatcher", context.settings.matching.dispatchers, "dispatcher", every=False
        )
        self.node = node
        self.place = place
        """Returns the number up to which everything has been matched."""
        self.go_on = go_on

    def connection(self, _address: Address) -> MatcherLink:
        """The protocol of a new connection."""
        return MatcherLink(self)

    @property
    def full(self) -> bool:
        """Whether matching has to wait."""
        return any(stream.room <= 0 for stream in self.connections if stream.admitted)

    def push(self, pushes: Iterable[MatcherPush], upto: int) -> None:
        """Push the matches of a batch; ``upto`` is its last message."""
        links = [stream for stream in self.connections if stream.admitted]
        if not links:
            for push in pushes:
                seq, _ = parse_msg_id(push.msg_id)
                self.counters.report(
                    "undeliverable", seq, seq, "no dispatcher is connected", at_will=True, door=self.name
                )
            return
        data = b"".join(serialize(part) for push in pushes for part in split(push))
        for link in links:
            link.push(data, upto)


class MatcherLink(Dialled[ToDispatcher]):
    """The connection itself."""

    def __init__(self, door: ToDispatcher) -> None:
        super().__init__(door, ConnectorDecoder())
        self._told: int | None = None
        """The newest mark sent; ``None`` while no connector relies on marks."""

    def opened(self) -> None:
        """Ask whether connectors rely on marks."""
        self.send(self.heartbeat())

    def push(self, data: bytes, upto: int) -> None:
        """Push the matches of a batch and, if connectors rely on marks, a mark."""
        if self._told is not None:
            self._told = upto
            data += serialize(mark(upto, self.door.node))
        if data:
            self.send(data)

    def heartbeat(self) -> bytes:
        """Return a heartbeat."""
        return serialize(Heartbeat(int(time())))

    def take(self, frame: ConnectorMessage) -> None:
        """Begin to mark once the dispatcher names connectors that rely on it."""
        self.useful = self.answers = True
        if isinstance(frame, Heartbeat) and frame.relying and self._told is None:
            # Everything after this mark will be pushed.
            self._told = self.door.place()
            self.send(serialize(mark(self._told, self.door.node)))

    def drained(self) -> None:
        """Continue matching, since there is room again."""
        self.door.go_on()

    def closed(self) -> None:
        """Continue matching without a dispatcher."""
        self.loop.call_soon(self.door.go_on)
