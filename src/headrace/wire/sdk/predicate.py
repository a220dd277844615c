"""Predicates: what a subscription asks of one attribute, and the JSON field that says it.

A field is ``{"use": 1, "strval": …, "low": …, "high": …, "extra": …}``; ``use`` chooses which of the others
count, and only those are looked at. ``extra`` is a string that holds JSON of its own, a small language of
predicates in predicates. A predicate here is plain data: what it means for a value is the matcher's to say.

Invariants:

- What is parsed is usable as it stands: numbers are finite, low is not above high, nesting is at most
  ``MAX_DEPTH`` deep and has at most ``MAX_TERMS`` predicates and values.
- What parses serializes, and parses again to the same predicate.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import msgspec

from headrace.errors import LimitError, MalformedError
from headrace.wire.typed_json import Json, decode_json, shown

MAX_DEPTH = 8
"""How deep predicates may stand in predicates. Whoever matches may recurse that deep per attribute."""

MAX_TERMS = 256
"""How many predicates and values one ``extra`` may have. Each may be checked for each message."""


class Use(IntEnum):
    """Which of a field's values count."""

    STRVAL = 1
    RANGE = 2
    EXTRA = 3


@dataclass(frozen=True, slots=True)
class Equals:
    """The attribute is this string."""

    value: str


@dataclass(frozen=True, slots=True)
class Between:
    """The attribute is a number from ``low`` to ``high``, both included."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class In:
    """The attribute is one of these; a string equals strings only, a number numbers only."""

    values: tuple[str | float, ...]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The attribute is a string that begins so."""

    text: str


@dataclass(frozen=True, slots=True)
class Not:
    """The predicate does not hold. An absent attribute is in nothing and has no prefix: there this holds."""

    predicate: Extra


@dataclass(frozen=True, slots=True)
class Exists:
    """The attribute is there, or (false) is absent."""

    present: bool


@dataclass(frozen=True, slots=True)
class Any:
    """At least one of the predicates holds."""

    predicates: tuple[Extra, ...]


Extra: TypeAlias = In | Prefix | Not | Exists | Any
"""What ``extra`` can say."""

Predicate: TypeAlias = Equals | Between | Extra


def parse_field(field: bytes) -> Predicate:
    r"""The predicate that an attribute's field JSON says.

    >>> parse_field(b'{"use": 2, "low": 1, "high": 2.5}')
    Between(low=1.0, high=2.5)
    >>> parse_field(rb'{"use": 3, "extra": "{\"not\": {\"in\": [\"red\", 7]}}"}')
    Not(predicate=In(values=('red', 7.0)))
    """
    parsed = decode_json(_FIELD, field, "sdk", "attribute field", "a JSON object whose use is 1, 2 or 3")
    match parsed.use:
        case Use.STRVAL:
            return Equals(decode_json(_TEXT, parsed.strval, "sdk", "strval", "a string"))
        case Use.RANGE:
            low = decode_json(_NUMBER, parsed.low, "sdk", "low", "a finite number")
            high = decode_json(_NUMBER, parsed.high, "sdk", "high", "a finite number")
            if low > high:
                raise MalformedError("sdk", "low", low, f"not above high, which is {high}")
            return Between(low, high)
        case Use.EXTRA:
            text = decode_json(_TEXT, parsed.extra, "sdk", "extra", "a string that holds JSON")
            return _Terms().parse(text, depth=1)


def serialize_field(predicate: Predicate) -> bytes:
    r"""A predicate as an attribute's field JSON.

    >>> print(serialize_field(Prefix("ab")).decode())
    {"use":3,"extra":"{\"prefix\":\"ab\"}"}
    """
    match predicate:
        case Equals(value):
            field = _encode({"use": Use.STRVAL, "strval": value})
        case Between(low, high):
            field = _encode({"use": Use.RANGE, "low": low, "high": high})
        case _:
            field = _encode({"use": Use.EXTRA, "extra": _encode(_plain(predicate)).decode()})
    # What we would not take (too deep, too many, low above high, NaN, which is written as null) is not sent.
    parse_field(field)
    return field


class _Terms:
    """One reading of an ``extra``, which counts the predicates and values it has met."""

    def __init__(self) -> None:
        self._count = 0

    def parse(self, text: Json, depth: int) -> Extra:
        if depth > MAX_DEPTH:
            raise LimitError("sdk", "depth of extra", depth, MAX_DEPTH)
        self._take(1)
        members = decode_json(_MEMBERS, text, "sdk", "extra", "a JSON object")
        if len(members) != 1:
            raise MalformedError("sdk", "extra", shown(text), "exactly one of in, prefix, not, exists, any")
        ((word, argument),) = members.items()
        match word:
            case "in":
                values = decode_json(_VALUES, argument, "sdk", "in", "a list of strings and finite numbers")
                self._take(len(values))
                return In(tuple(values))
            case "prefix":
                return Prefix(decode_json(_TEXT, argument, "sdk", "prefix", "a string"))
            case "not":
                return Not(self.parse(argument, depth + 1))
            case "exists":
                return Exists(decode_json(_TRUTH, argument, "sdk", "exists", "true or false"))
            case "any":
                inner = decode_json(_LIST, argument, "sdk", "any", "a list of JSON objects")
                return Any(tuple(self.parse(predicate, depth + 1) for predicate in inner))
            case _:
                raise MalformedError("sdk", "extra", word, "one of in, prefix, not, exists, any")

    def _take(self, count: int) -> None:
        self._count += count
        if self._count > MAX_TERMS:
            raise LimitError("sdk", "terms of extra", self._count, MAX_TERMS)


def _plain(predicate: Extra, depth: int = 1) -> dict[str, object]:
    if depth > MAX_DEPTH:
        raise LimitError("sdk", "depth of extra", depth, MAX_DEPTH)
    match predicate:
        case In(values):
            return {"in": list(values)}
        case Prefix(text):
            return {"prefix": text}
        case Not(inner):
            return {"not": _plain(inner, depth + 1)}
        case Exists(present):
            return {"exists": present}
        case Any(predicates):
            return {"any": [_plain(inner, depth + 1) for inner in predicates]}


def _encode(value: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (ValueError, TypeError, OverflowError):
        raise MalformedError("sdk", "attribute field", value, "strings in UTF-8 and finite numbers") from None


class _Field(msgspec.Struct):
    use: Use
    strval: msgspec.Raw = msgspec.Raw()
    low: msgspec.Raw = msgspec.Raw()
    high: msgspec.Raw = msgspec.Raw()
    extra: msgspec.Raw = msgspec.Raw()


_FIELD = msgspec.json.Decoder(_Field)
_TEXT = msgspec.json.Decoder(str)
_NUMBER = msgspec.json.Decoder(float)
_TRUTH = msgspec.json.Decoder(bool)
_VALUES = msgspec.json.Decoder(list[float | str])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
