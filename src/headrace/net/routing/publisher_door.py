"""The ``publisher`` door: messages with attributes, over TCP.

This door gives no answers: a publisher only notices the end of the connection. So a publisher is not read while the hub
is congested. A message above the protocol's 2000 bytes ends the connection, with the reason counted; messages before it
are taken.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pyarrow as pa

from headrace.hub.access.principal import Action
from headrace.message import Batch, column_type, envelope_rows
from headrace.net.server.accepting.connection import DoorConnection
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tcp_door import TcpDoor
from headrace.wire.attribute.publish import Attributes, PublisherDecoder, Publishes

ORIGIN = "attribute"


class PublisherDoor(TcpDoor["PublisherStream"]):
    """The door, open on a TCP socket."""

    def __init__(self, context: DoorContext, listening: socket.socket) -> None:
        super().__init__(context, "publisher", listening)

    def connection(self) -> PublisherStream:
        """The protocol of a new connection."""
        return PublisherStream(self)

    def facts(self) -> dict[str, int]:
        """Return no subscriptions: publishers have none."""
        return {}


class PublisherStream(DoorConnection[PublisherDoor]):
    """One publisher."""

    def __init__(self, door: PublisherDoor) -> None:
        super().__init__(door, PublisherDecoder())

    def take(self, frame: Publishes) -> None:
        """Submit a run of messages."""
        if not (self.principal.publishes_everything or self.may(Action.PUBLISH)):
            self.refuse("forbidden", f"{self.principal.name} may not publish without a topic")
            return
        columns = columns_of(frame.attributes)
        batch = Batch(frame.payloads, origin=ORIGIN, publisher=self.name, columns=columns)
        self.account.receive(0, len(batch), self.heard)
        self.door.hub.submit(batch, self.settled)
        if self.door.hub.full:
            self.door.hub.take_turn()


def columns_of(attributes: Sequence[Attributes]) -> pa.RecordBatch | None:
    """Convert attributes to the envelope's two columns, one row for each message; ``None`` if there are none at all.

    >>> rows = columns_of([{"city": "Oslo", "degrees": -3.0}, {}])
    >>> rows.to_pylist()
    [{'attributes': [('city', 'Oslo')], 'numbers': [('degrees', -3.0)]}, {'attributes': [], 'numbers': []}]
    """
    if not any(attributes):
        return None
    texts: tuple[list[str], list[str], list[int]] = [], [], [0]
    numbers: tuple[list[str], list[float], list[int]] = [], [], [0]
    for each in attributes:
        for name, value in each.items():
            if isinstance(value, str):
                texts[0].append(name)
                texts[1].append(value)
            else:
                numbers[0].append(name)
                numbers[1].append(value)
        texts[2].append(len(texts[0]))
        numbers[2].append(len(numbers[0]))
    columns = {
        column: pa.MapArray.from_arrays(
            pa.array(ends, pa.int32()),
            pa.array(names, pa.string()),
            pa.array(values, column_type(column).item_type),
            type=column_type(column),
        )
        for column, (names, values, ends) in (("attributes", texts), ("numbers", numbers))
    }
    return envelope_rows(columns)
