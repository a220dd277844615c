"""The meaning of predicates as a plain loop: what the matcher is compared with."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.matching.message_columns import scalars
from headrace.message import Message
from headrace.wire.sdk.predicate import Any, Between, Equals, Exists, In, Not, Predicate, Prefix

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


def matches(predicates: Mapping[str, Predicate], message: Message, *, json_attributes: bool = False) -> bool:
    facts = said(message, json_attributes=json_attributes)
    return all(holds(predicate, facts.get(name)) for name, predicate in predicates.items())
