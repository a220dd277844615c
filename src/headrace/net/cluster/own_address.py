"""Which of the addresses in ``cluster.peers`` is this node's own.

The list may be the same on every node, so each has to find itself in it, whatever name it goes by there. An address is
this node's if its port is that of the node's door and its host leads to where the door listens: to that very address,
or, if the door listens on all of the machine's, to any of them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_address

from headrace.config import Address


def is_own(peer: Address, door: Address) -> bool:
    """Whether whoever dials ``peer`` comes to ``door``, where this node listens.

    A name that leads nowhere (yet) is somebody else's.

    >>> is_own(Address("localhost", 7878), Address("127.0.0.1", 7878))
    True
    >>> is_own(Address("127.0.0.2", 7878), Address("127.0.0.1", 7878))
    False
    >>> is_own(Address("127.0.0.2", 7878), Address("0.0.0.0", 7878))
    True
    """
    if peer == door:
        return True
    if peer.port != door.port:
        return False
    if ip_address(door.host.partition("%")[0]).is_unspecified:
        return any(map(_is_local, _hosts(peer)))
    return door.host in _hosts(peer)


def _hosts(address: Address) -> Iterator[str]:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for _, _, _, _, where in found:
        yield str(where[0])


def _is_local(host: str) -> bool:
    """Whether an address is one of this machine's: only to those can a socket be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
    except OSError:
        return False
    return True
