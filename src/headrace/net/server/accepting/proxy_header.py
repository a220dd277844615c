"""The PROXY protocol, version 2: how a proxy says for whom it has made a connection.

The header stands before everything else, TLS included: 12 bytes of signature, version and command, family and
transport, a length, then addresses and extensions (which are passed over). It is read of trusted proxies only.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from headrace.errors import LimitError, MalformedError

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"

FIXED_BYTES: Final = 16
"""The header without its addresses and extensions."""

MAX_BYTES: Final = 2048
"""The longest header: addresses take 216 bytes at most, and extensions such as a certificate's names a little more."""

_HEADER: Final = struct.Struct("!12sBBH")
_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_ADDRESSES: Final = {0x11: struct.Struct("!4s4sHH"), 0x21: struct.Struct("!16s16sHH")}
"""TCP over IPv4 and IPv6: whence, whither, and both ports."""


def length_of(fixed: bytes) -> int:
    """Return the length of a whole header by its first :data:`FIXED_BYTES`."""
    signature, command, _, more = _HEADER.unpack(fixed)
    if signature != SIGNATURE:
        raise MalformedError("proxy", "signature", signature, "PROXY protocol version 2")
    if command not in (_LOCAL, _PROXY):
        raise MalformedError("proxy", "command", command, "version 2, LOCAL or PROXY")
    if FIXED_BYTES + more > MAX_BYTES:
        raise LimitError("proxy", "length", more, MAX_BYTES - FIXED_BYTES)
    return FIXED_BYTES + int(more)


def parse_origin(header: bytes) -> tuple[str, int] | None:
    """Return the address for which a proxy connects; ``None`` if it connects for itself (LOCAL).

    >>> parse_origin(SIGNATURE + bytes.fromhex("21 11 000c 0a000007 0a000001 d431 1f91"))
    ('10.0.0.7', 54321)
    """
    _, command, family, more = _HEADER.unpack_from(header)
    if command == _LOCAL:
        return None
    addresses = _ADDRESSES.get(family)
    if addresses is None:
        raise MalformedError("proxy", "family", family, "TCP over IPv4 or IPv6")
    if more < addresses.size:
        raise MalformedError("proxy", "length", more, f"{addresses.size} bytes of addresses")
    source, _, port, _ = addresses.unpack_from(header, FIXED_BYTES)
    return str(IPv4Address(source) if len(source) == 4 else _unmapped(IPv6Address(source))), port


def _unmapped(address: IPv6Address) -> IPv4Address | IPv6Address:
    """Write an IPv4 address as such, as every rule about addresses does."""
    return address.ipv4_mapped or address
