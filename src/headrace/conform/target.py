"""Where the server under test is, and how much time and which other doors the cases may use."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Self

from headrace.errors import UsageError


@dataclass(frozen=True, slots=True)
class Place:
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, what: str = "the server") -> Self:
        """Read ``HOST:PORT``; an IPv6 address stands in brackets.

        >>> Place.parse("[::1]:3002")
        Place(host='::1', port=3002)
        """
        host, colon, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        valid = colon and bare and (":" not in bare or bare != host) and port.isascii() and port.isdigit()
        if not valid or not 0 < int(port) < 65536:
            raise UsageError(f"{text!r} is not the address of {what}: expected HOST:PORT")
        return cls(bare, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """The server under test."""

    place: Place
    patience: float = 5.0
    """Seconds that a case waits for an answer."""
    door: str = ""
    """Which door of the attribute family ``place`` is, if it is one of them."""
    sdk: Place | None = None
    """The connector where messages can be seen to arrive (attribute)."""
    publisher: Place | None = None
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
