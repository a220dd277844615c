"""Addresses of peers, as sockets, proxies and settings name them."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address


def parse_address(text: str) -> IPv4Address | IPv6Address:
    """Parse an address, without its zone; ``ValueError`` if it is none. IPv4 in the form of IPv6 is IPv4.

    >>> parse_address("::ffff:192.0.2.7"), parse_address("fe80::1%eth0")
    (IPv4Address('192.0.2.7'), IPv6Address('fe80::1'))
    """
    address = ip_address(text.partition("%")[0])
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


class Addresses:
    """Networks; ``address in addresses`` for an address as text.

    >>> "10.1.2.3" in Addresses([IPv4Network("10.0.0.0/8")])
    True
    """

    def __init__(self, networks: Sequence[IPv4Network | IPv6Network]) -> None:
        self._networks = tuple(networks)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: object) -> bool:
        if not self._networks or not isinstance(address, str):
            return False
        try:
            parsed = parse_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)
