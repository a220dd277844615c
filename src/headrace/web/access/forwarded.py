"""The header ``Forwarded``: the client that a proxy speaks for. Only proxies in ``limits.proxies`` are believed.

Each proxy on the way adds an element at the end. So the last one that a proxy of ours has added names whom it got the
request from; if that is a proxy of ours too, the one before counts. What a client may have written itself is never
reached.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from ipaddress import ip_address
from typing import Final

_PAIR: Final = re.compile(
    r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(\"(?:[^\"\\]|\\.)*\"|[!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*"
)
_MOST: Final = 32
"""Elements of the header: there are not that many proxies in a row."""


def origin_of(headers: Sequence[str], peer: str, proxies: Container[str]) -> str:
    """Return the address that a request comes from, asked by ``peer``; ``ValueError`` if a proxy names none.

    >>> origin_of(['for=203.0.113.7;proto=https, for="[2001:db8::1]:99"'], "10.0.0.1", ["10.0.0.1"])
    '2001:db8::1'
    >>> origin_of(["for=192.0.2.1"], "203.0.113.7", ["10.0.0.1"])
    '203.0.113.7'
    """
    return _asked_for(headers, peer, proxies)[0]


def came_by_tls(headers: Sequence[str], peer: str, proxies: Container[str]) -> bool:
    """Whether a proxy of ours, ``peer``, got a request by TLS from a client of its own.

    >>> came_by_tls(["for=203.0.113.7;proto=https"], "10.0.0.1", ["10.0.0.1"])
    True
    >>> came_by_tls(["for=203.0.113.7;proto=https"], "203.0.113.7", ["10.0.0.1"])
    False
    """
    return _asked_for(headers, peer, proxies)[1].lower() == "https"


def _asked_for(headers: Sequence[str], peer: str, proxies: Container[str]) -> tuple[str, str]:
    """Find the address that a request comes from, and the scheme by which our outermost proxy got it."""
    origin, scheme = peer, ""
    if peer in proxies and headers:
        for element in reversed(_elements(", ".join(headers))):
            if origin not in proxies:
                break
            origin, scheme = _address(element.get("for", "")), element.get("proto", "")
    return origin, scheme


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
        found = ip_address(host)
    except ValueError:
        raise ValueError(f"for={node[:64]!r} is no address") from None
    return str(getattr(found, "ipv4_mapped", None) or found)
