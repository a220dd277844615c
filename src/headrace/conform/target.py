"""Where the server under test is, and how much time and which other doors the cases may use."""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import dataclass

from headrace.config import Address
from headrace.errors import UsageError


def parse_address(text: str, what: str = "the server") -> Address:
    """Read ``HOST:PORT``; an IPv6 address stands in brackets.

    >>> parse_address("[::1]:3002")
    Address(host='::1', port=3002)
    """
    with contextlib.suppress(UsageError):
        if (address := Address.parse(text)).port:
            return address
    raise UsageError(f"{text!r} is not the address of {what}: expected HOST:PORT")


@dataclass(frozen=True, slots=True)
class Target:
    """The server under test."""

    place: Address
    patience: float = 5.0
    """Seconds that a case waits for an answer."""
    door: str = ""
    """Which door of the attribute family ``place`` is, if it is one of them."""
    sdk: Address | None = None
    """The connector where messages can be seen to arrive (attribute)."""
    publisher: Address | None = None
    """The door where messages can be published (sdk)."""
    websocket: bool = False
    """Whether tubes are carried by WebSocket instead of TCP."""

    @property
    def on_loopback(self) -> bool:
        """Whether the server is on this machine, where the longest datagrams always pass."""
        try:
            return ipaddress.ip_address(self.place.host).is_loopback
        except ValueError:
            return self.place.host == "localhost"
