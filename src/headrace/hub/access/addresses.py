"""Lists of addresses, as settings name them."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Address, IPv4Network


class Addresses:
    """IPv4 addresses and networks; ``address in addresses`` for an address in dotted form.

    >>> "10.1.2.3" in Addresses([IPv4Network("10.0.0.0/8")])
    True
    """

    def __init__(self, networks: Sequence[IPv4Network]) -> None:
        self._networks = tuple(networks)

    def __contains__(self, address: object) -> bool:
        if not self._networks or not isinstance(address, str):
            return False
        try:
            parsed = IPv4Address(address)
        except AddressValueError:
            return False
        return any(parsed in network for network in self._networks)
