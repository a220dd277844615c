"""Subscriptions as commands: ``sub``, and our own ``subn`` and ``unsubn`` for named ones.

``sub`` and pairs of an attribute's name and its field are the document's. ``subn NAME`` and such pairs add or replace a
named subscription, ``unsubn NAME`` removes it. In both, a pair of an empty name and ``or`` begins another set of
predicates: a message that satisfies all of one set satisfies the subscription.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import LimitError, MalformedError
from headrace.wire.sdk.predicate import (
    Alternatives,
    Predicate,
    Predicates,
    fence_of,
    parse_field,
    serialize_field,
)

MAX_NAME = 128
"""Bytes of a subscription's name."""

MAX_ALTERNATIVES = 16
"""Sets of predicates of one subscription: each takes a place in the index."""

_OR = (b"", b"or")
"""The pair that begins another set of predicates. No attribute's field is ``or``, which is not JSON."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Client: replaces one of its subscriptions by what satisfies all of these predicates; none withdraws it.

    The document's subscription has no name; a client may have named ones beside it.
    """

    predicates: Predicates
    name: str = ""
    others: Alternatives = ()
    """Further sets of predicates: what satisfies all of one set is wanted, too."""

    @property
    def alternatives(self) -> Alternatives:
        """Every set of predicates; none at all if the subscription is withdrawn."""
        return (self.predicates, *self.others) if self.predicates else ()


def parse_subscribe(elements: Sequence[bytes]) -> Subscribe | None:
    """Parse the elements of a command; ``None`` if they are of another."""
    match elements:
        case [b"sub", *attributes] if len(attributes) % 2 == 0:
            return _parse_pairs("", attributes)
        case [b"subn", name, *attributes] if len(attributes) % 2 == 0:
            return _parse_pairs(_parse_subscription_name(name), attributes)
        case [b"unsubn", name]:
            return Subscribe({}, _parse_subscription_name(name))
        case _:
            return None


def subscribe_elements(command: Subscribe) -> list[bytes]:
    """The elements of the command."""
    elements = [b"subn", serialize_subscription_name(command.name)] if command.name else [b"sub"]
    if not command.predicates and command.others:
        raise MalformedError("sdk", "alternatives", "or", "each alternative names an attribute")
    if not command.predicates and command.name:
        elements[0] = b"unsubn"
    for place, predicates in enumerate(command.alternatives):
        if place:
            elements += _OR
        for name, predicate in predicates.items():
            elements += (_encode_name(name), serialize_field(predicate))
    # What we would refuse is not sent.
    if len(command.alternatives) > 1:
        _parse_pairs(command.name, elements[2 if command.name else 1 :])
    return elements


def serialize_subscription_name(name: str) -> bytes:
    """Write a subscription's name as UTF-8; it is neither empty nor longer than :data:`MAX_NAME`."""
    encoded = _encode_name(name)
    if not 0 < len(encoded) <= MAX_NAME:
        raise LimitError("sdk", "length of a subscription's name", len(encoded), MAX_NAME)
    return encoded


def _parse_pairs(name: str, attributes: Sequence[bytes]) -> Subscribe:
    alternatives: list[Predicates] = []
    current: dict[str, Predicate] = {}
    for pair in zip(attributes[::2], attributes[1::2], strict=True):
        if pair != _OR:
            # Of a repeated name the last wins; each of its fields must be right nonetheless.
            current[_decode_name(pair[0])] = parse_field(pair[1])
            continue
        alternatives.append(current)
        current = {}
        if len(alternatives) >= MAX_ALTERNATIVES:
            raise LimitError("sdk", "alternatives", len(alternatives) + 1, MAX_ALTERNATIVES)
    for predicates in (*alternatives, current):
        fence_of(predicates)
    if alternatives and not all((*alternatives, current)):
        raise MalformedError("sdk", "alternatives", "or", "each alternative names an attribute")
    return (
        Subscribe(alternatives[0], name, (*alternatives[1:], current))
        if alternatives
        else Subscribe(current, name)
    )


def _parse_subscription_name(name: bytes) -> str:
    text = _decode_name(name)
    serialize_subscription_name(text)
    return text


def _encode_name(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise MalformedError("sdk", "name", ascii(name), "UTF-8") from None


def _decode_name(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise MalformedError("sdk", "name", name, "UTF-8") from None
