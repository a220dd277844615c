"""The meaning of predicates as a plain loop: what the matcher is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan

from headrace.matching.message_columns import scalars
from headrace.message import Message
from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import Any, Between, Equals, Exists, In, Inside, Not, Predicate, Prefix
from headrace.wire.sdk.region import Circle, Polygon, Region, box_of

Said = Mapping[str, str | float]


def said(message: Message, *, json_attributes: bool = False) -> Said:
    """What a message says of itself."""
    envelope = {"topic": message.topic, "origin": message.origin, "publisher": message.publisher}
    found: dict[str, str | float] = {name: text for name, text in envelope.items() if text}
    found["size"] = float(len(message.payload))
    if json_attributes:
        found.update(scalars(message.payload))
    found.update(message.numbers)
    found.update(message.attributes)
    return found


def holds(predicate: Predicate, value: str | float | None) -> bool:
    match predicate:
        case Equals(text):
            return isinstance(value, str) and value == text
        case Between(low, high):
            return isinstance(value, float) and low <= value <= high
        case In(values):
            return any(isinstance(value, str) == isinstance(each, str) and value == each for each in values)
        case Prefix(text):
            return isinstance(value, str) and value.startswith(text)
        case Not(inner):
            return not holds(inner, value)
        case Exists(present):
            return (value is not None) == present
        case Any(predicates):
            return any(holds(each, value) for each in predicates)
        case Inside() | Fence():
            raise AssertionError("a region is judged by two attributes")


def within(region: Region, x: float, y: float) -> bool:
    """Whether a point is in a region, as the page on matching has it."""
    match region:
        case Circle(centre_x, centre_y, radius):
            boxed = (
                centre_x - radius <= x <= centre_x + radius and centre_y - radius <= y <= centre_y + radius
            )
            across, up = x - centre_x, y - centre_y
            return boxed and across * across + up * up <= radius * radius
        case Polygon(vertices):
            box = box_of(region)
            if not (box.west <= x <= box.east and box.south <= y <= box.north):
                return False
            crossings = 0
            for (x1, y1), (x2, y2) in zip(vertices, (*vertices[1:], vertices[0]), strict=True):
                side = (x2 - x1) * (y - y1) - (x - x1) * (y2 - y1)
                if side == 0 and min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2):
                    return True
                if (y1 <= y < y2 and side > 0) or (y2 <= y < y1 and side < 0):
                    crossings += 1
            return crossings % 2 == 1


def matches(predicates: Mapping[str, Predicate], message: Message, *, json_attributes: bool = False) -> bool:
    facts = said(message, json_attributes=json_attributes)
    return all(
        _inside(predicate, facts.get(name), facts.get(predicate.y))
        if isinstance(predicate, Inside)
        else holds(predicate, facts.get(name))
        for name, predicate in predicates.items()
    )


def event(fence: Fence, x: str, before: Sequence[Message], message: Message, window: int) -> str:
    """What a message is to a fence on the attribute ``x``, after the messages before it; nothing if nothing."""
    seen = _sighting(fence, x, message)
    if seen is None:
        return ""
    key, at = seen
    now, was = within(fence.region, *at), False
    for earlier in before:
        other = _sighting(fence, x, earlier)
        counts = earlier.seq > fence.after and earlier.seq >= message.seq - window
        if other is not None and counts and other[0] == key:
            was = within(fence.region, *other[1])
    return {(False, True): "enter", (True, True): "inside", (True, False): "exit"}.get((was, now), "")


def _sighting(fence: Fence, x: str, message: Message) -> tuple[object, tuple[float, float]] | None:
    facts = said(message)
    key, across, up = (facts.get(name) for name in (fence.key, x, fence.y))
    if key is None or isinstance(across, str) or isinstance(up, str) or across is None or up is None:
        return None
    if key != key or isnan(across) or isnan(up):
        return None
    return (message.topic, type(key), key), (across, up)


def _inside(predicate: Inside, x: str | float | None, y: str | float | None) -> bool:
    return isinstance(x, float) and isinstance(y, float) and within(predicate.region, x, y)
