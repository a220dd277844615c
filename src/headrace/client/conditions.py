"""Conditions on a message's attributes: ``where(city="Praha", x=between(0, 10), kind=one_of("a", "b"))``.

A message satisfies them if it satisfies the condition of **every** attribute named; ``where(…) | where(…)`` asks for
either. Strategy: a condition is a
:data:`~headrace.wire.sdk.predicate.Predicate`, as it goes over the wire; the functions here make one from what a
person would write, and refuse what the protocol cannot express.

The protocol limits what can be expressed:

- A range is of finite numbers. ``at_least`` and ``at_most`` have the largest finite number of their sign as the other
  end, and so has ``between`` with an infinity: no finite number is left out by that.
- Inside ``not_`` and ``any_of`` there is no range, except one of a single number.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from headrace.errors import UsageError, WireError
from headrace.wire.sdk.fence import EVENTS, Fence
from headrace.wire.sdk.predicate import (
    Any,
    Between,
    Equals,
    Exists,
    Extra,
    In,
    Inside,
    Not,
    Predicate,
    Prefix,
    serialize_field,
)
from headrace.wire.sdk.region import Circle, Polygon, Region

_LARGEST: Final = sys.float_info.max

Value: TypeAlias = str | float
"""The value of an attribute. A whole number is a number like any other."""

Condition: TypeAlias = Value | list[Value] | tuple[Value, ...] | set[Value] | frozenset[Value] | Predicate
"""The condition on an attribute: a text, a number, a list of these, or a condition made by a function here."""


class Conditions(dict[str, Predicate]):
    """Conditions by attribute, all of which must hold; ``a & b`` joins conditions on different attributes.

    >>> where(city="Praha") & where(x=5)
    {'city': Equals(value='Praha'), 'x': Between(low=5.0, high=5.0)}
    """

    __slots__ = ()

    def __and__(self, other: Mapping[str, Condition]) -> Conditions:
        return where(self, **where(other))

    def __or__(self, other: Mapping[str, Condition] | AnyConditions) -> AnyConditions:  # type: ignore[override]
        return AnyConditions((self,)) | other

    def __ror__(self, other: Mapping[str, Condition]) -> AnyConditions:  # type: ignore[override]
        return where(other) | self

    def __ior__(self, other: Mapping[str, Condition] | AnyConditions) -> AnyConditions:  # type: ignore[override]
        return self | other


class AnyConditions(tuple[Conditions, ...]):
    """Alternatives: all conditions of one of them must hold; ``a | b`` makes them.

    >>> where(city="Praha") | where(x=5, y=7)
    {'city': Equals(value='Praha')} | {'x': Between(low=5.0, high=5.0), 'y': Between(low=7.0, high=7.0)}
    """

    __slots__ = ()

    def __or__(self, other: Mapping[str, Condition] | AnyConditions) -> AnyConditions:
        more = other if isinstance(other, AnyConditions) else (where(other),)
        if not all((*self, *more)):
            raise UsageError("an alternative without a condition is true of everything: name an attribute")
        return AnyConditions((*self, *more))

    def __and__(self, other: Mapping[str, Condition]) -> AnyConditions:
        return AnyConditions(each & other for each in self)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self))


def alternatives_of(conditions: Mapping[str, Condition] | AnyConditions) -> AnyConditions:
    """Check conditions, and make a list of alternatives of them: of conditions without, the only one."""
    if isinstance(conditions, AnyConditions):
        return conditions
    made = where(conditions)
    return AnyConditions((made,) if made else ())


def where(conditions: Mapping[str, Condition] | None = None, /, **named: Condition) -> Conditions:
    """Make conditions by attribute; use a mapping for names that are not Python identifiers.

    >>> where(city="Praha", x=between(0, 10))
    {'city': Equals(value='Praha'), 'x': Between(low=0.0, high=10.0)}
    >>> where({"unit-price": at_most(9.5)}, kind=["a", "b"])["kind"]
    In(values=('a', 'b'))
    """
    given = {} if conditions is None else conditions
    if not isinstance(given, Mapping):
        raise UsageError(f"where takes a mapping of names to conditions, not {type(given).__name__}")
    for name in named:
        if name in given:
            raise UsageError(f"where: {name!r} is given twice; an attribute has one condition")
    made = Conditions(
        {_checked_name(name): _checked(name, condition) for name, condition in {**given, **named}.items()}
    )
    if sum(isinstance(each, Fence) for each in made.values()) > 1:
        raise UsageError("where: one fence at most; alternatives are where(…) | where(…)")
    return made


def equals(value: Value) -> Predicate:
    """The attribute is this text, or this number.

    >>> equals("Praha"), equals(5)
    (Equals(value='Praha'), Between(low=5.0, high=5.0))
    """
    if isinstance(value, str):
        return Equals(value)
    number = _number(value, "equals")
    return Between(number, number)


def between(low: float, high: float) -> Predicate:
    """The attribute is a number from ``low`` to ``high``, both included; an infinity stands for no limit.

    >>> between(0, 10)
    Between(low=0.0, high=10.0)
    """
    least, most = _end(low, "between"), _end(high, "between")
    if least > most:
        raise UsageError(f"between({low}, {high}): the first is above the second")
    return Between(least, most)


def above(low: float) -> Predicate:
    """The attribute is a number above ``low``.

    >>> above(5)
    Between(low=5.000000000000001, high=1.7976931348623157e+308)
    """
    number = _number(low, "above")
    if number == _LARGEST:
        raise UsageError(f"above({low}): no number is")
    return Between(math.nextafter(number, math.inf), _LARGEST)


def below(high: float) -> Predicate:
    """The attribute is a number below ``high``.

    >>> below(5)
    Between(low=-1.7976931348623157e+308, high=4.999999999999999)
    """
    number = _number(high, "below")
    if number == -_LARGEST:
        raise UsageError(f"below({high}): no number is")
    return Between(-_LARGEST, math.nextafter(number, -math.inf))


def at_least(low: float) -> Predicate:
    """The attribute is a number, and not below ``low``.

    >>> at_least(5)
    Between(low=5.0, high=1.7976931348623157e+308)
    """
    return Between(_number(low, "at_least"), _LARGEST)


def at_most(high: float) -> Predicate:
    """The attribute is a number, and not above ``high``.

    >>> at_most(5)
    Between(low=-1.7976931348623157e+308, high=5.0)
    """
    return Between(-_LARGEST, _number(high, "at_most"))


def one_of(*values: Value) -> Predicate:
    """The attribute is one of these texts and numbers.

    >>> one_of("a", 7)
    In(values=('a', 7.0))
    """
    if not values:
        raise UsageError("one_of() of nothing is never true: give it values")
    return In(tuple(_value(value, "one_of") for value in values))


def starts_with(text: str) -> Predicate:
    """The attribute is text that begins with this.

    >>> starts_with("orders/")
    Prefix(text='orders/')
    """
    if not isinstance(text, str):
        raise UsageError(f"starts_with takes text, not {type(text).__name__}")
    return Prefix(text)


def exists() -> Predicate:
    """The attribute is there, whatever it is.

    >>> where(city=exists())
    {'city': Exists(present=True)}
    """
    return Exists(True)


def missing() -> Predicate:
    """The attribute is not there.

    >>> where(city=missing())
    {'city': Exists(present=False)}
    """
    return Exists(False)


def not_(condition: Condition) -> Predicate:
    """The condition does not hold. A message without the attribute satisfies this, unless it is ``missing()``.

    >>> not_("a")
    Not(predicate=In(values=('a',)))
    """
    return Not(_inner(condition, "not_"))


def any_of(*conditions: Condition) -> Predicate:
    """At least one of the conditions holds.

    >>> any_of("a", starts_with("b"), missing())
    Any(predicates=(In(values=('a',)), Prefix(text='b'), Exists(present=False)))
    """
    if not conditions:
        raise UsageError("any_of() of nothing is never true: give it conditions")
    return Any(tuple(_inner(condition, "any_of") for condition in conditions))


def circle(x: float, y: float, radius: float) -> Circle:
    """The region within a distance of a point, for :func:`inside`.

    >>> circle(14.42, 50.09, 0.05)
    Circle(x=14.42, y=50.09, radius=0.05)
    """
    return Circle(_number(x, "circle"), _number(y, "circle"), _number(radius, "circle"))


def polygon(*vertices: tuple[float, float]) -> Polygon:
    """The region within a closed line through three or more points, for :func:`inside`.

    >>> polygon((0, 0), (4, 0), (0, 3))
    Polygon(vertices=((0.0, 0.0), (4.0, 0.0), (0.0, 3.0)))
    """
    return Polygon(tuple((_number(x, "polygon"), _number(y, "polygon")) for x, y in vertices))


def inside(x: str, y: str, region: Region) -> Conditions:
    """The attributes ``x`` and ``y`` are the coordinates of a point in the region, including its edge.

    >>> where(inside("lon", "lat", circle(14.42, 50.09, 0.05)), kind="taxi")["kind"]
    Equals(value='taxi')
    """
    if not isinstance(region, Circle | Polygon):
        raise UsageError(f"inside takes a circle(…) or a polygon(…), not {type(region).__name__}")
    return where({x: Inside(_checked_name(y), region)})


def fence(
    x: str, y: str, region: Region, *, key: str, events: str | Sequence[str] = ("enter", "exit")
) -> Conditions:
    """A key enters or leaves the region: a message of it is inside after one that was not, or the reverse.

    ``key`` is the attribute that tells what moves, ``x`` and ``y`` are its coordinates. The events are ``enter``,
    ``exit`` and ``inside``, a message that is inside after another that was; ``message.events`` says which it is.

    >>> fence("lon", "lat", circle(14.42, 50.09, 0.05), key="taxi", events="enter")["lon"].events
    ('enter',)
    """
    if not isinstance(region, Circle | Polygon):
        raise UsageError(f"fence takes a circle(…) or a polygon(…), not {type(region).__name__}")
    wanted = {events} if isinstance(events, str) else {*events}
    if not wanted or not wanted <= {*EVENTS}:
        raise UsageError(f"the events of a fence are {', '.join(EVENTS)}, not {', '.join(map(str, events))}")
    in_order = tuple(event for event in EVENTS if event in wanted)
    return where({x: Fence(_checked_name(y), region, _checked_name(key), in_order)})


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise UsageError(f"an attribute's name is text, not {type(name).__name__}")
    return name


def _checked(name: str, condition: Condition) -> Predicate:
    try:
        predicate = _predicate(condition)
        serialize_field(predicate)
    except UsageError as error:
        raise UsageError(f"where {name}: {error}") from None
    except WireError as error:
        raise UsageError(f"where {name}: {error.field} {error.problem}: {error.limit}") from None
    return predicate


def _predicate(condition: object) -> Predicate:
    match condition:
        case bool():
            raise UsageError("True and False are not attributes: publish and ask for a text or a number")
        case str() | float() | int():
            return equals(condition)
        case list() | tuple():
            return one_of(*condition)
        case set() | frozenset():
            # The same set is the same bytes.
            return one_of(*sorted(condition, key=repr))
        case Equals() | Between() | In() | Prefix() | Not() | Exists() | Any() | Inside() | Fence():
            return condition
        case None:
            raise UsageError("None is not a condition; missing() asks for messages without the attribute")
        case _:
            raise UsageError(
                f"{type(condition).__name__} is not a condition: expected text, a number, a list of them,"
                " or between(…), one_of(…), starts_with(…), exists() and the like"
            )


def _inner(condition: Condition, word: str) -> Extra:
    """Convert a condition to what ``extra`` can express."""
    match _predicate(condition):
        case Equals(value):
            return In((value,))
        case Between(low, high) if low == high:
            return In((low,))
        case Between():
            raise UsageError(f"a range cannot stand in {word}: the protocol cannot express it")
        case Inside() | Fence():
            raise UsageError(f"a region cannot stand in {word}: alternatives are where(…) | where(…)")
        case predicate:
            return predicate


def _value(value: object, word: str) -> Value:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{word} takes texts and numbers, not {type(value).__name__}")
    return _number(value, word)


def _end(value: object, word: str) -> float:
    if isinstance(value, float) and math.isinf(value):
        return math.copysign(_LARGEST, value)
    return _number(value, word)


def _number(value: object, word: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{word} takes numbers, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise UsageError(f"{word}: a number that is too large for an attribute") from None
    if not math.isfinite(number):
        raise UsageError(f"{word}: {number} cannot be the value of an attribute")
    return number
