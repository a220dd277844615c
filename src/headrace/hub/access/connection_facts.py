"""The facts of a connection that operators see."""

from __future__ import annotations

from itertools import count
from typing import Final, NamedTuple

CONNECTION_NUMBERS: Final = count(1)
"""Gives each connection a number while the hub runs."""


class ConnectionFacts(NamedTuple):
    """One connection at any door."""

    connection: int
    """Its number, by which it can be closed."""
    door: str
    peer: str
    principal: str
    seconds: float
    """Since it began."""
    silent: float
    """Seconds since something was received."""
    received: int
    """Bytes received, and bytes sent."""
    sent: int
    queued: int
    """Bytes that wait for the peer to take them."""
    streams: int
    """Streams of the link; 0 elsewhere."""
