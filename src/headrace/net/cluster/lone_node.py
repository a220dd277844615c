"""A node without a cluster: it answers whoever speaks the parcel document, and has no say anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cluster.membership import Effect, Membership
from headrace.hub.sequence import Hub
from headrace.net.cluster.parcel_door import ParcelStream
from headrace.net.cluster.peer_connections import DialledStream
from headrace.wire.parcel.body import Mode, NodeInfo
from headrace.wire.parcel.stream import Parcel


class Lone:
    """The circle of a node that is alone: it "goes straight into WRK"."""

    def __init__(self, hub: Hub, name: str, host: str, now: float) -> None:
        self._hub = hub
        self.membership = Membership(NodeInfo(hub.node, Mode.DSC, name, host), ())
        self.obey(self.membership.start(now))

    @property
    def seq(self) -> int:
        """This node's sequence number."""
        return self._hub.log.head

    def obey(self, effects: Sequence[Effect]) -> None:
        """Nobody is asked, nor told: neighbours of a lone node are those that ask it."""

    def take(self, stream: ParcelStream, parcel: Parcel) -> None:
        """Nothing is taken beyond the document; the membership refuses it before it comes here."""

    def joined(self, stream: DialledStream, info: NodeInfo) -> None:
        """Nobody is dialled."""

    def is_at(self, node: int, seq: int) -> None:
        """Nobody is asked."""

    def tick(self, now: float) -> None:
        """Forget who has fallen silent."""
        self.membership.tick(now)

    def left(self, stream: ParcelStream) -> None:
        """A connection is over; the neighbour is forgotten when it has been silent for long enough."""
