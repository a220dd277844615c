"""What a client of the backbone has counted: every gap, repair, repeat, loss and reconnection, and the traffic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Counts since the client was made; they only grow.

    Unless said otherwise, what is counted are messages.
    """

    received: int = 0
    """In order, for the consumer."""
    received_bytes: int = 0
    missing: int = 0
    """Not there when a later one came."""
    repaired: int = 0
    """Came after they had been asked for."""
    lost: int = 0
    """Reported as lost."""
    repeated: int = 0
    """Came more than once, and were discarded."""
    dropped: int = 0
    """Came when there was no room for them, or nobody to take them; asked for again when there is."""
    unasked: int = 0
    """Came from somebody other than the hub, and had not been asked for."""
    requests: int = 0
    """REQUESTs sent."""
    forwards: int = 0
    """FORWARDs taken from the hub."""
    forwarded: int = 0
    """Sent to other clients in answer to FORWARDs."""
    refused: int = 0
    """Streams cut, and datagrams dropped, for bytes that break the protocol."""
    pushed: int = 0
    pushed_bytes: int = 0
    connects: int = 0
    """Connections that were made, the first one included."""
    disconnects: int = 0
    """Connections that were lost."""
    rests: int = 0
    """Times the client unsubscribed because its consumer took nothing."""
    unsent: int = 0
    """Datagrams that the system did not take."""
