"""The syntax of attributes on a command line: ``NAME=VALUE``, and conditions on them, which ``docs/cli.md`` lists.

A name ends at the first ``=``, ``^``, ``!``, ``<``, ``>`` or ``~``. A value is a number if it
looks like one, unless it is in double quotes. Text that could be taken for something else needs them: what has ``..``
in it, ends with ``*``, or goes on with another condition. Regions are written as in Python, without quotes:
``inside(lon, lat, circle(14.42, 50.09, 0.05))`` and ``fence(taxi, lon, lat, polygon((0, 0), (4, 0), (0, 3)), enter)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace.client.conditions import (
    AnyConditions,
    Condition,
    Conditions,
    above,
    alternatives_of,
    at_least,
    at_most,
    below,
    between,
    circle,
    exists,
    fence,
    inside,
    missing,
    not_,
    polygon,
    starts_with,
    where,
)
from headrace.errors import UsageError
from headrace.wire.sdk.predicate import Predicate
from headrace.wire.sdk.region import Region

_DECIMAL: Final = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_NUMBER: Final = re.compile(_DECIMAL, re.ASCII)
_RANGE: Final = re.compile(rf"(?P<low>{_DECIMAL})?\.\.(?P<high>{_DECIMAL})?", re.ASCII)
_CONDITION: Final = re.compile(r"(?P<name>[^=^!<>~]+)(?P<sign>\^=|!=|<=|>=|=|<|>)(?P<value>.*)", re.DOTALL)
_COMPARISONS: Final[Mapping[str, Callable[[float], Predicate]]] = {
    "<": below,
    "<=": at_most,
    ">": above,
    ">=": at_least,
}
_WORDS: Final = re.compile(r"\s(?:and|or|in|like|not|is)\s", re.IGNORECASE)
_JOINED: Final = re.compile(
    r'"[^"]*"|'
    r"(?:\s*(?P<sign>\|\|?|&&?|[,;])\s*|\s+(?:(?P<word>and|or)\s+)?)"
    r"(?P<second>!?[\w.-]+\s*(?:[!^<>]?=|[<>]).*|!\w.*|(?:inside|fence)\(.*)",
    re.IGNORECASE | re.DOTALL,
)
"""Where a second condition begins within the value of a first."""
_INTERVAL: Final = re.compile(rf"[\[(]\s*({_DECIMAL})\s*,\s*({_DECIMAL})\s*[\])]", re.ASCII)
_EXPECTED: Final = (
    "NAME=VALUE, NAME=A|B, NAME=LOW..HIGH, NAME<NUMBER, NAME>=NUMBER, NAME!=VALUE, NAME^=PREFIX,"
    " NAME or !NAME, inside(X, Y, REGION), fence(KEY, X, Y, REGION)"
)
_REGION: Final = re.compile(
    r"(?P<word>inside|fence)\((?P<names>[^()]+?),\s*(?P<shape>circle|polygon)\((?P<numbers>[-+.\deE,()\s]*)\)"
    r"(?P<events>(?:\s*,\s*\w+)*)\s*\)",
    re.ASCII,
)
_NAMES: Final = {"inside": 2, "fence": 3}
_PART: Final = re.compile(r'"[^"]*"|[^|"]*')


def parse_value(text: str) -> str | float:
    """Parse a value: a number if it is one, else text, without its double quotes.

    >>> parse_value("21.5"), parse_value("Bern"), parse_value('"3011"')
    (21.5, 'Bern', '3011')
    """
    if _NUMBER.fullmatch(text):
        return float(text)
    return _text(text)


def _text(text: str) -> str:
    """Return a text without its double quotes."""
    return text[1:-1] if _is_quoted(text) else text


def _is_quoted(text: str) -> bool:
    return len(text) > 1 and text[0] == text[-1] == '"'


def parse_conditions(given: Sequence[str], option: str = "--where") -> Conditions:
    """Parse the values of an ``option``, all of which must hold.

    >>> parse_conditions(["x=0..10", "city=Praha"])
    {'x': Between(low=0.0, high=10.0), 'city': Equals(value='Praha')}
    """
    found: dict[str, Condition] = {}
    for text in given:
        try:
            region = _REGION.fullmatch(text.strip())
            name, condition = _condition(text) if region is None else _region(region)
            if name in found:
                raise UsageError(f"{name} is given twice; an attribute has one condition")
        except UsageError as error:
            raise UsageError(f"{option} {text}: {error}") from None
        found[name] = condition
    return where(found)


def parse_alternatives(wheres: Sequence[str], either: Sequence[str] | None) -> AnyConditions:
    """Parse ``--where`` options, all of which must hold, and ``--or`` options, each an alternative to them.

    >>> len(parse_alternatives(["x=0..10", "city=Praha"], ["x>100"]))
    2
    """
    if either and not wheres:
        raise UsageError("--or is an alternative to --where: begin with --where")
    alternatives = alternatives_of(parse_conditions(wheres))
    for text in either or ():
        alternatives |= parse_conditions([text], "--or")
    return alternatives


def _region(parsed: re.Match[str]) -> tuple[str, Condition]:
    """Make the condition of ``inside(…)`` and ``fence(…)``."""
    names = [name.strip() for name in parsed["names"].split(",")]
    events = [event.strip() for event in parsed["events"].split(",")[1:]]
    if len(names) != _NAMES[parsed["word"]] or not all(names):
        raise UsageError("expected the attributes X, Y of inside, or KEY, X, Y of fence, and then a region")
    numbers = [float(number) for number in re.findall(_DECIMAL, parsed["numbers"])]
    if parsed["shape"] == "polygon":
        if len(numbers) % 2:
            raise UsageError("a polygon has pairs of numbers")
        region: Region = polygon(*zip(numbers[::2], numbers[1::2], strict=True))
    elif len(numbers) == 3:
        region = circle(*numbers)
    else:
        raise UsageError("a circle has three numbers: x, y and the radius")
    if parsed["word"] == "inside":
        if events:
            raise UsageError("inside has no events; fence has")
        x, y = names
        made = inside(x, y, region)
    else:
        key, x, y = names
        made = fence(x, y, region, key=key, events=events or ("enter", "exit"))
    return next(iter(made.items()))


def _condition(text: str) -> tuple[str, Condition]:
    parsed = _CONDITION.fullmatch(text)
    if parsed is None:
        name = text.removeprefix("!")
        if not name or set(name) & set("=^!<>~|") or _WORDS.search(text):
            raise UsageError(f"expected {_EXPECTED}")
        return name, exists() if name == text else missing()
    # Blanks around the sign are for the eye, as in `x > 5`.
    name, sign, value = parsed["name"].strip(), parsed["sign"], parsed["value"]
    if parsed["name"] != name:
        value = value.strip()
    _refuse_joined(text, parsed.start("value"))
    if value.startswith(("=", ">", "<")) or not name or name.startswith(("inside(", "fence(")):
        raise UsageError(f"expected {_EXPECTED}")
    match sign:
        case "^=":
            return name, starts_with(_text(value))
        case "<" | "<=" | ">" | ">=":
            return name, _compared(sign, value)
        case "!=":
            return name, not_(_one_or_several(name, sign, value))
        case _:
            return name, _range(value) or _one_or_several(name, sign, value)


def _refuse_joined(text: str, begin: int) -> None:
    """Refuse several conditions in one; the value of the first begins at ``begin``."""
    for found in _JOINED.finditer(text, begin):
        if (second := found["second"]) is None:  # In double quotes.
            continue
        first = text[: found.start()].strip()
        either = (found["sign"] or "").startswith("|") or (found["word"] or "").lower() == "or"
        option, meaning = ("--or", "either of them") if either else ("--where", "both of them")
        raise UsageError(
            f"an option has one condition: '{first}' {option} '{second}' asks for {meaning};"
            " in double quotes the value is text"
        )


def _compared(sign: str, text: str) -> Predicate:
    number = parse_value(text)
    if isinstance(number, str):
        raise UsageError(f"{text or 'nothing'} is not a number, and only numbers can be compared by {sign}")
    return _COMPARISONS[sign](number)


def _range(text: str) -> Predicate | None:
    ends = _RANGE.fullmatch(text)
    match ends and (ends["low"], ends["high"]):
        case str(low), str(high):
            return between(float(low), float(high))
        case str(low), None:
            return at_least(float(low))
        case None, str(high):
            return at_most(float(high))
        case _:
            return None


def _one_or_several(name: str, sign: str, text: str) -> Condition:
    # Blanks around the bars are for the eye, too.
    parts = [part.strip() for part in _parts(text)] if "|" in text else [text]
    for part in parts:
        if (what := _misread(name, part)) is not None:
            raise UsageError(f"{part} is {what}; as text it is quoted: '{name}{sign}\"{part}\"'")
    return parse_value(parts[0]) if len(parts) == 1 else [parse_value(part) for part in parts]


def _misread(name: str, part: str) -> str | None:
    """Return what a person may mean by a value, where that is not its text."""
    if _is_quoted(part):
        return None
    if ".." in part:
        is_range = part != ".." and _RANGE.fullmatch(part)
        return 'a range, which stands alone after "="' if is_range else "no range of numbers"
    if interval := _INTERVAL.fullmatch(part):
        return f"no range, which is {name}={interval[1]}..{interval[2]}"
    if part == "*":
        return f"no pattern: '{name}' alone takes any value"
    if part.endswith("*"):
        return f"no pattern: '{name}^={part[:-1]}' takes what begins so"
    if len(part) > 1 and part[0] == part[-1] == "'":
        return f"in single quotes, which are part of the text: leave them out, as in {name}={part[1:-1]}"
    return None


def _parts(text: str) -> list[str]:
    """Split at the bars that are not in double quotes."""
    parts: list[str] = []
    at = 0
    while True:
        part = _PART.match(text, at)
        end = at if part is None else part.end()
        if end < len(text) and text[end] != "|":
            raise UsageError('a value in double quotes ends with them, or at a "|"')
        parts.append(text[at:end])
        if end == len(text):
            return parts
        at = end + 1
