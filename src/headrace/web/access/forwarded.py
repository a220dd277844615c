"""The header ``Forwarded``: the client that a proxy speaks for. Only proxies in ``limits.proxies`` are believed.

Each proxy on the way adds an element at the end. So the last one that a proxy of ours has added names whom it got the
request from; if that is a proxy of ours too, the one before counts. What a client may have written itself is never
reached.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from headrace.hub.access.addresses import parse_address

_PAIR: Final = re.compile(
    r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(\"(?:[^\"\\]|\\.)*\"|[!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*"
)
_MOST: Final = 32
"""Elements of the header: there are not that many proxies in a row."""


class Origin(NamedTuple):
    """Where a request comes from, and by what, as far as that is believed."""

    address: str
    scheme: str
    """As the first of our proxies got it; empty if there is none, or it does not say."""


def origin_of(headers: Sequence[str], peer: str, proxies: Container[str]) -> Origin:
    """Return where a request comes from that is asked by ``peer``; ``ValueError`` if a proxy of ours names nobody.

    >>> origin_of(['for=203.0.113.7;proto=https, for="[2001:db8::1]:99"'], "10.0.0.1", ["10.0.0.1"])
    Origin(address='2001:db8::1', scheme='')
    >>> origin_of(["for=192.0.2.1;proto=https"], "10.0.0.1", ["10.0.0.1"])
    Origin(address='192.0.2.1', scheme='https')
    >>> origin_of(["for=192.0.2.1;proto=https"], "203.0.113.7", ["10.0.0.1"])
    Origin(address='203.0.113.7', scheme='')
    """
    origin = Origin(peer, "")
    # What a stranger says is not even read.
    if peer not in proxies or not headers:
        return origin
    for element in reversed(_elements(", ".join(headers))):
        if origin.address not in proxies:
            break
        origin = Origin(_address(element.get("for", "")), element.get("proto", "").lower())
    return origin


def _elements(header: str) -> list[dict[str, str]]:
    """Split the header into its elements, each with its pairs of names and values."""
    elements: list[dict[str, str]] = [{}]
    at = 0
    while at < len(header):
        pair = _PAIR.match(header, at)
        if pair is None:
            raise ValueError("it is not name=value, with ; and , between")
        value = pair[2]
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        elements[-1][pair[1].lower()] = value
        at = pair.end()
        if at < len(header):
            if header[at] == ",":
                elements.append({})
            elif header[at] != ";":
                raise ValueError("it is not name=value, with ; and , between")
            at += 1
        if len(elements) > _MOST:
            raise ValueError(f"it has over {_MOST} elements")
    return elements


def _address(node: str) -> str:
    """Read whom an element is for, without the port."""
    host = node
    if node.startswith("["):
        host = node[1:].partition("]")[0]
    elif node.count(":") == 1:
        host = node.partition(":")[0]
    try:
        return str(parse_address(host))
    except ValueError:
        raise ValueError(f"for={node[:64]!r} is no address") from None
