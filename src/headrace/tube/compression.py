"""Whether and where a message is compressed: small and incompressible ones never, long ones not in the event loop.

The rule itself is the codec's (:func:`~headrace.wire.tube.frames.deflate`): a message of some length that shrinks
enough. What is added here is that a message too long to be compressed between two turns of the event loop is first
judged by a sample, by that same rule, and only if it promises to shrink goes to a thread; zlib releases the
interpreter.
"""

from __future__ import annotations

from enum import Enum

from headrace.tube.message_parts import Parts, join
from headrace.tube.options import Policy
from headrace.wire.tube.frames import COMPRESS_FROM, deflate

INLINE_BYTES = 64 << 10
"""Compressed in the event loop up to here: about half a millisecond."""

_SAMPLE = 4 << 10


class Place(Enum):
    """Where a message is to be compressed."""

    NOWHERE = "nowhere"
    HERE = "here"
    THREAD = "in a thread"


def place(parts: Parts, policy: Policy | None) -> Place:
    """Decide for one message; a policy may only say no to what the rule allows."""
    length = sum(map(len, parts))
    if length < COMPRESS_FROM:
        return Place.NOWHERE
    longest = max(parts, key=len)
    if policy is not None and not policy(longest):
        return Place.NOWHERE
    if length <= INLINE_BYTES:
        return Place.HERE
    begin = max(0, (len(longest) - _SAMPLE) // 2)
    return Place.NOWHERE if deflate(longest[begin : begin + _SAMPLE]) is None else Place.THREAD


def pack(parts: Parts) -> bytes | None:
    """Return a message compressed, or ``None`` if it is better sent as it is."""
    return deflate(join(parts))
