"""Checks which doors strangers can reach, and whether those doors authenticate their peers.

A door on the loopback interface serves this machine alone. A door on any other address is opened only if it
authenticates its peers, or if the settings say that it need not: no hub is open to a network by accident.
"""

from __future__ import annotations

from headrace.config import Settings
from headrace.hub.access.addresses import parse_address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address that a socket is bound to.

    >>> is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return parse_address(host).is_loopback


def missing_guard(door: str, settings: Settings) -> str | None:
    """Return what to do before strangers may reach a door; ``None`` if it is guarded.

    The parcel door of a cluster's node has a guard of its own, since nodes have no client id.
    """
    cluster = settings.cluster
    if door == "parcel" and cluster.peers:
        if cluster.key or cluster.tls_ca is not None:
            return None
        return "cluster.key, the nodes' shared secret: whoever reaches this address could join the cluster"
    if settings.auth.required or "anonymous" in settings.access:
        return None
    return (
        "auth.required=true and a key for each client (`headrace keys new NAME` makes one), or access.anonymous.allow"
        " with what everyone may do: whoever reaches this address could read and publish"
    )
