"""Predicates: what a subscription, a link filter or a Spark reader asks of one attribute.

Everything about a kind of predicate is here: its data, its JSON, the program that it compiles to and the evaluator of
programs. A new kind is added here, and in the protocol's documentation.

**JSON.** A field is ``{"use": 1, "strval": …, "low": …, "high": …, "extra": …}``; ``use`` chooses which of the others
count, and the rest are ignored. ``extra`` is a string that holds JSON of its own, a small language of
predicates in predicates. What is parsed is usable as it stands: numbers are finite, low is not above high, nesting is
at most ``MAX_DEPTH`` deep and has at most ``MAX_TERMS`` predicates and values. What parses serializes, and parses
again to the same predicate.

**Programs** (:mod:`headrace.wire.sdk.program`). A program works on a stack of truth values, at most two for each level
of nesting, which fits an integer's bits, and leaves one:

================================ ==============================================================================
``EQUALS``, ``IN``, ``BETWEEN``  push whether the attribute is the operand, one of them, or between the two
``PREFIX``                       push whether it is a string that begins with the operand
``EXISTS``, ``ABSENT``           push whether it is there, or is not
``NOT``                          negate the top
``NONE``                         push false: the beginning of an ``any``
``OR``                           pop one, or it into the top: after each predicate of an ``any``
``INSIDE``                       the whole of a program: whether this attribute and another are a point in a region
``FENCE``                        the whole of a program: whether a key has entered a region, left it, or stayed
================================ ==============================================================================

:func:`holds` runs a program on one value of an attribute. It is plain Python that numba compiles: the matcher's index
calls it for the predicates it cannot settle by intervals, a filter for each row of a batch. ``INSIDE`` looks at two
attributes, so they call :func:`headrace.wire.sdk.region.within` for it. ``FENCE`` looks at two messages as well
(:mod:`headrace.wire.sdk.fence`), which only the matcher can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import LimitError, MalformedError, UsageError
from headrace.wire.sdk.fence import Fence, decompile_fence, parse_fence, plain_fence
from headrace.wire.sdk.program import (
    ABSENT,
    ATTRIBUTE,
    BETWEEN,
    EQUALS,
    EXISTS,
    FENCE,
    HEAD,
    IN,
    INSIDE,
    NONE,
    NOT,
    NOTHING,
    NUMBER,
    OR,
    PREFIX,
    TEXT,
    bits,
    number_operands,
)
from headrace.wire.sdk.region import Region, numbers_of, parse_region, plain_region, region_of, vertex_count
from headrace.wire.typed_json import Json, decode_json, shown

MAX_DEPTH = 8
"""How deep predicates may stand in predicates. Parsing and compiling recurse that deep."""

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
    """The attribute is present or, if ``present`` is false, absent."""

    present: bool


@dataclass(frozen=True, slots=True)
class Any:
    """At least one of the predicates holds."""

    predicates: tuple[Extra, ...]


@dataclass(frozen=True, slots=True)
class Inside:
    """The attribute and another, ``y``, are numbers: the coordinates of a point in a region."""

    y: str
    region: Region

    def indexed_by(self, x: str) -> tuple[str, str]:
        """The attributes whose point must be in the region; ``x`` is the one that it is filed under."""
        return x, self.y


Extra: TypeAlias = In | Prefix | Not | Exists | Any
"""The predicates that ``extra`` can hold at any depth."""

Predicate: TypeAlias = Equals | Between | Inside | Fence | Extra

Predicates: TypeAlias = Mapping[str, Predicate]
"""Predicates by attribute, all of which must hold."""

Alternatives: TypeAlias = tuple[Predicates, ...]
"""Sets of predicates, of which one must hold as a whole."""


def parse_field(field: bytes) -> Predicate:
    r"""Parse an attribute's field JSON.

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
            members = decode_json(_MEMBERS, text, "sdk", "extra", "a JSON object")
            match [*members]:
                case ["inside"]:
                    return _parse_inside(members["inside"])
                case ["fence"]:
                    return parse_fence(members["fence"])
                case _:
                    return _Terms().parse(text, depth=1)


def serialize_field(predicate: Predicate) -> bytes:
    r"""Write a predicate as an attribute's field JSON.

    >>> print(serialize_field(Prefix("ab")).decode())
    {"use":3,"extra":"{\"prefix\":\"ab\"}"}
    """
    match predicate:
        case Equals(value):
            field = _encode({"use": Use.STRVAL, "strval": value})
        case Between(low, high):
            field = _encode({"use": Use.RANGE, "low": low, "high": high})
        case Inside(y, region):
            inside: dict[str, object] = {"inside": {"y": y, **plain_region(region)}}
            field = _encode({"use": Use.EXTRA, "extra": _encode(inside).decode()})
        case Fence():
            fence: dict[str, object] = {"fence": plain_fence(predicate)}
            field = _encode({"use": Use.EXTRA, "extra": _encode(fence).decode()})
        case _:
            field = _encode({"use": Use.EXTRA, "extra": _encode(_plain(predicate)).decode()})
    # What we would refuse (too deep, too many, low above high, NaN, which is written as null) is not sent.
    parse_field(field)
    return field


def compile_predicate(
    predicate: Predicate,
    attribute: int,
    code: Callable[[str], int],
    attribute_of: Callable[[str], int] = lambda _name: 0,
) -> list[int]:
    """The program of a predicate; ``code`` gives the code of a word, ``attribute_of`` the attribute of a name."""
    program = [0, attribute]
    if isinstance(predicate, Fence):
        raise UsageError("a fence looks at earlier messages: only the matcher can do that")
    if isinstance(predicate, Inside):
        numbers = numbers_of(predicate.region)
        program += (INSIDE, 1 + len(numbers), ATTRIBUTE, attribute_of(predicate.y))
        program += number_operands(numbers)
    else:
        _write(program, predicate, code)
    program[0] = len(program)
    return program


def decompile(
    program: Sequence[int], word: Callable[[int], str], name: Callable[[int], str] = str
) -> Predicate:
    """The predicate that a program was compiled from."""
    if program[HEAD] == FENCE:
        return decompile_fence(program, name)
    if program[HEAD] == INSIDE:
        numbers = np.array(program[HEAD + 5 :: 2], np.int64).view(np.float64)
        return Inside(name(program[HEAD + 3]), region_of(tuple(numbers.tolist())))
    stack: list[Predicate] = []
    at = HEAD
    while at < len(program):
        operation, count = program[at : at + 2]
        operands = program[at + 2 : at + 2 + 2 * count]
        at += 2 + 2 * count
        if operation == NOT:
            stack.append(Not(stack.pop()))  # type: ignore[arg-type]  # Only an Extra was compiled in there.
        elif operation == OR:
            inner = stack.pop()
            stack.append(Any((*stack.pop().predicates, inner)))  # type: ignore[union-attr, arg-type]
        else:
            values = (
                word(value) if kind == TEXT else float(np.int64(value).view(np.float64))
                for kind, value in zip(operands[::2], operands[1::2], strict=True)
            )
            stack.append(_LEAVES[operation](*values))
    return stack.pop()


def holds(
    pool: npt.NDArray[np.int64],
    at: int,
    kind: int,
    value: int,
    text: npt.NDArray[np.uint8],
    begin: int,
    end: int,
    words: npt.NDArray[np.uint8],
    word_begins: npt.NDArray[np.int32] | npt.NDArray[np.int64],
) -> bool:
    """Whether the program at ``pool[at]`` holds for an attribute.

    ``kind`` is ``NOTHING`` where the message lacks it; else ``value`` is a number's bits, or the code of a string,
    ``text[begin:end]``, which is -1 if no predicate has the word. Word ``w`` begins at ``words[word_begins[w]]``.
    """
    stop = at + pool[at]
    at += HEAD
    stack = 0
    while at < stop:
        operation, count = pool[at], pool[at + 1]
        at += 2
        if operation == NOT:
            stack ^= 1
            continue
        if operation == OR:
            stack = (stack >> 1) | (stack & 1)
            continue
        truth = 0
        if operation in (EQUALS, IN):
            # A string that no predicate has equals none of the operands, however many there are.
            tried = count if kind == NUMBER or (kind == TEXT and value >= 0) else 0
            for operand in range(at, at + 2 * tried, 2):
                if pool[operand] == kind and pool[operand + 1] == value:
                    truth = 1
                    break
        elif operation == BETWEEN:
            if kind == NUMBER:
                number = np.int64(value).view(np.float64)
                low, high = np.int64(pool[at + 1]).view(np.float64), np.int64(pool[at + 3]).view(np.float64)
                truth = 1 if low <= number <= high else 0
        elif operation == PREFIX:
            word = pool[at + 1]
            first, size = word_begins[word], word_begins[word + 1] - word_begins[word]
            if kind == TEXT and end - begin >= size:
                truth = 1
                for offset in range(size):
                    if words[first + offset] != text[begin + offset]:
                        truth = 0
                        break
        elif operation == EXISTS:
            truth = 1 if kind != NOTHING else 0
        elif operation == ABSENT:
            truth = 1 if kind == NOTHING else 0
        stack = (stack << 1) | truth
        at += 2 * count
    return stack & 1 == 1


def split_events(alternatives: Alternatives) -> Alternatives:
    """Give each event of a fence a set of predicates of its own: the matcher's unit."""
    return tuple(each for predicates in alternatives for each in _by_event(predicates))


def fence_of(predicates: Predicates) -> tuple[str, Fence] | None:
    """The fence among predicates and the attribute it is filed under, if there is one; there is no more than one."""
    fences = [(name, each) for name, each in predicates.items() if isinstance(each, Fence)]
    if len(fences) > 1:
        raise MalformedError("sdk", "fence", fences[1][0], "at most one in a set of attributes")
    return fences[0] if fences else None


def weight(predicates: Predicates) -> int:
    """What predicates cost to keep and to check, beside a subscription of ordinary ones: a polygon's vertices."""
    regions = (each.region for each in predicates.values() if isinstance(each, Inside | Fence))
    return sum(map(vertex_count, regions))


def _by_event(predicates: Predicates) -> list[Predicates]:
    found = fence_of(predicates)
    if found is None:
        return [predicates]
    name, fence = found
    return [{**predicates, name: one} for one in fence.by_event()]


def _write(program: list[int], predicate: Equals | Between | Extra, code: Callable[[str], int]) -> None:
    def instruct(operation: int, *values: str | float) -> None:
        program.extend((operation, len(values)))
        for value in values:
            program.extend((TEXT, code(value)) if isinstance(value, str) else (NUMBER, bits(value)))

    match predicate:
        case Equals(value):
            instruct(EQUALS, value)
        case Between(low, high):
            instruct(BETWEEN, low, high)
        case In(values):
            instruct(IN, *values)
        case Prefix(text):
            instruct(PREFIX, text)
        case Exists(present):
            instruct(EXISTS if present else ABSENT)
        case Not(inner):
            _write(program, inner, code)
            instruct(NOT)
        case Any(predicates):
            instruct(NONE)
            for inner in predicates:
                _write(program, inner, code)
                instruct(OR)


_LEAVES: Final[dict[int, Callable[..., Predicate]]] = {
    EQUALS: Equals,
    BETWEEN: Between,
    IN: lambda *values: In(values),
    PREFIX: Prefix,
    EXISTS: lambda: Exists(True),
    ABSENT: lambda: Exists(False),
    NONE: lambda: Any(()),
}
"""The predicates of instructions that do not look at the stack."""


def _parse_inside(argument: Json) -> Inside:
    members = decode_json(_MEMBERS, argument, "sdk", "inside", "a JSON object")
    y = decode_json(_TEXT, members.pop("y", msgspec.Raw()), "sdk", "y", "the name of an attribute")
    return Inside(y, parse_region(members))


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
            raise MalformedError(
                "sdk", "extra", shown(text), "exactly one of in, prefix, not, exists, any, inside, fence"
            )
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
                raise MalformedError(
                    "sdk", "extra", word, "one of in, prefix, not, exists, any; inside and fence stand alone"
                )

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
