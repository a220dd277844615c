"""What the settings say about a node of a cluster: its own address and its peers.

``cluster.peers`` may be the same list on every node, so each node has to find itself in it, whatever name it goes by
there. An address is this node's if its port is that of the node's door and its host leads to where the door listens: to
that very address, or, if the door listens on all of the machine's, to any of them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_address
from typing import NamedTuple

from headrace.cluster.durable_state import MAX_NODES
from headrace.config import Address, Settings
from headrace.errors import ConfigError


class NodeAddresses(NamedTuple):
    """The host under which the others know this node, and the peers that it dials."""

    host: str
    peers: tuple[Address, ...]


def addresses_of(settings: Settings, door: Address | None, known_nodes: int) -> NodeAddresses:
    """Tell this node's own address from its peers'; ``known_nodes`` is the size of the cluster once it has begun."""
    cluster = settings.cluster
    if settings.node.upstream:
        raise _misconfigured(settings, "node.upstream", "none: a node of a cluster has no upstream hub")
    if door is None:
        raise _misconfigured(settings, "listen.parcel", "an address: the other nodes must reach this one")
    own = [peer for peer in cluster.peers if peer == cluster.address or is_own(peer, door)]
    peers = tuple(dict.fromkeys(peer for peer in cluster.peers if peer not in own))
    if len(peers) >= MAX_NODES:
        raise _misconfigured(settings, "cluster.peers", f"at most {MAX_NODES} nodes, this one included")
    if known_nodes and known_nodes != len(peers) + 1:
        expected = f"the {known_nodes} nodes that the cluster has, this one included"
        raise _misconfigured(settings, "cluster.peers", expected)
    # If the door listens on all addresses, the others know this node by the one in the list.
    return NodeAddresses(str(cluster.address or next(iter(own), door)), peers)


def is_own(peer: Address, door: Address) -> bool:
    """Whether dialling ``peer`` leads to ``door``, where this node listens.

    A name that does not resolve (yet) is another node's.

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


def _misconfigured(settings: Settings, key: str, expected: str) -> ConfigError:
    return ConfigError(key, settings.as_dict()[key], source=settings.source(key), expected=expected)


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
