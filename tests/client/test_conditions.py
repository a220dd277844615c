"""What can be asked for, and what it is on the wire."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace import (
    above,
    any_of,
    at_least,
    at_most,
    below,
    between,
    equals,
    exists,
    missing,
    not_,
    one_of,
    starts_with,
    where,
)
from headrace.errors import UsageError
from headrace.wire.sdk import predicate as wire
from headrace.wire.sdk.predicate import MAX_TERMS, parse_field, serialize_field

LARGEST = sys.float_info.max


@pytest.mark.parametrize(
    ("condition", "predicate", "field"),
    [
        ("Praha", wire.Equals("Praha"), b'{"use":1,"strval":"Praha"}'),
        ("", wire.Equals(""), b'{"use":1,"strval":""}'),
        (5, wire.Between(5, 5), b'{"use":2,"low":5.0,"high":5.0}'),
        (-0.5, wire.Between(-0.5, -0.5), b'{"use":2,"low":-0.5,"high":-0.5}'),
        (equals("a"), wire.Equals("a"), b'{"use":1,"strval":"a"}'),
        (equals(2), wire.Between(2, 2), b'{"use":2,"low":2.0,"high":2.0}'),
        (between(0, 10), wire.Between(0, 10), b'{"use":2,"low":0.0,"high":10.0}'),
        (["a", 7], wire.In(("a", 7.0)), rb'{"use":3,"extra":"{\"in\":[\"a\",7.0]}"}'),
        (("a",), wire.In(("a",)), rb'{"use":3,"extra":"{\"in\":[\"a\"]}"}'),
        ({"b", "a"}, wire.In(("a", "b")), rb'{"use":3,"extra":"{\"in\":[\"a\",\"b\"]}"}'),
        (one_of("a", "b"), wire.In(("a", "b")), rb'{"use":3,"extra":"{\"in\":[\"a\",\"b\"]}"}'),
        (starts_with("pre"), wire.Prefix("pre"), rb'{"use":3,"extra":"{\"prefix\":\"pre\"}"}'),
        (exists(), wire.Exists(True), rb'{"use":3,"extra":"{\"exists\":true}"}'),
        (missing(), wire.Exists(False), rb'{"use":3,"extra":"{\"exists\":false}"}'),
        (not_("a"), wire.Not(wire.In(("a",))), rb'{"use":3,"extra":"{\"not\":{\"in\":[\"a\"]}}"}'),
        (not_(5), wire.Not(wire.In((5.0,))), rb'{"use":3,"extra":"{\"not\":{\"in\":[5.0]}}"}'),
        (
            any_of("a", starts_with("b"), not_(exists())),
            wire.Any((wire.In(("a",)), wire.Prefix("b"), wire.Not(wire.Exists(True)))),
            rb'{"use":3,"extra":"{\"any\":[{\"in\":[\"a\"]},{\"prefix\":\"b\"},{\"not\":{\"exists\":true}}]}"}',
        ),
    ],
)
def test_what_a_condition_is_on_the_wire(condition: Any, predicate: Any, field: bytes) -> None:
    assert where(x=condition) == where({"x": condition}) == {"x": predicate}
    assert serialize_field(where(x=condition)["x"]) == field


def test_no_finite_number_is_left_out_where_there_is_no_limit() -> None:
    assert at_least(5) == between(5, math.inf) == wire.Between(5, LARGEST)
    assert at_most(5) == between(-math.inf, 5) == wire.Between(-LARGEST, 5)
    for predicate in (at_least(-LARGEST), at_most(LARGEST), between(-math.inf, math.inf)):
        assert parse_field(serialize_field(predicate)) == wire.Between(-LARGEST, LARGEST)


def test_names_and_their_order() -> None:
    asked = where({"unit-price": 1, "größe": "a"}, city="b")
    assert list(asked) == ["unit-price", "größe", "city"]
    assert where(asked) == asked
    assert where() == {}


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda: where(x=None), r"where x: None is not a condition; missing\(\)"),
        (lambda: where(x=True), "where x: True and False"),
        (lambda: where(x=b"a"), "where x: bytes is not a condition"),
        (lambda: where(x={"a": 1}), "where x: dict is not a condition"),
        (lambda: where(x=[]), r"where x: one_of\(\) of nothing"),
        (lambda: where(x=["a", None]), "where x: one_of takes texts and numbers, not NoneType"),
        (lambda: where(x=[["a"]]), "where x: one_of takes texts and numbers, not list"),
        (lambda: where(x=math.nan), "where x: equals: nan cannot be the value"),
        (lambda: where(x=math.inf), "where x: equals: inf cannot be the value"),
        (lambda: where(x=10**400), "where x: equals: a number that is too large"),
        (lambda: where(x="\ud800"), "where x: attribute field is malformed: strings in UTF-8"),
        (lambda: where(x=[str(n) for n in range(MAX_TERMS)]), "where x: terms of extra is over the limit"),
        (lambda: where({"x": 1}, x=2), "'x' is given twice"),
        (lambda: where({1: "a"}), "an attribute's name is text, not int"),
        (lambda: where("x=1"), "where takes a mapping"),
        (lambda: between(2, 1), r"between\(2, 1\): the first is above"),
        (lambda: between(math.nan, 1), "between: nan"),
        (lambda: between("a", "b"), "between takes numbers, not str"),
        (lambda: at_least(math.inf), "at_least: inf"),
        (lambda: at_most(True), "at_most takes numbers, not bool"),
        (lambda: starts_with(5), "starts_with takes text, not int"),
        (any_of, "of nothing is never true"),
        (one_of, "of nothing is never true"),
        (lambda: not_(between(0, 1)), "a range cannot stand in not_"),
        (lambda: any_of("a", at_least(1)), "a range cannot stand in any_of"),
        (lambda: not_(None), "None is not a condition"),
    ],
)
def test_what_cannot_be_asked(ask: Callable[[], object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        ask()


def test_a_condition_that_is_too_deep() -> None:
    deep: Any = "a"
    for _ in range(8):
        deep = not_(deep)
    with pytest.raises(UsageError, match="where x: depth of extra is over the limit"):
        where(x=deep)


VALUES = st.one_of(st.text(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False))


@given(VALUES)
def test_any_value_that_an_attribute_can_be_is_a_condition(value: str | float) -> None:
    (predicate,) = where(x=value).values()
    assert parse_field(serialize_field(predicate)) == predicate
    assert where(x=not_(value)) == where(x=not_(headrace.equals(value))) == where(x=not_([value]))


def test_alternatives_are_not_read_as_both() -> None:
    one, two, three = where(city="Praha"), where(x=5), where(y=7)
    assert tuple(one | two) == (one, two)
    assert tuple(one | two | three) == tuple(one | (two | three)) == (one, two, three)
    assert tuple({"x": 5} | three) == tuple(two | {"y": 7}) == (two, three)
    assert tuple((one | two) & three) == (one & three, two & three)
    either = one
    either |= two  # type: ignore[assignment]
    assert tuple(either) == (one, two)
    with pytest.raises(UsageError, match="true of everything"):
        {} | where(x=5)


def test_conditions_on_different_attributes_are_joined() -> None:
    assert where(city="Praha") & where(x=5) == where(city="Praha", x=5)
    assert where(city="Praha") & {"unit price": at_most(5)} == where(
        {"city": "Praha", "unit price": at_most(5)}
    )
    with pytest.raises(UsageError, match="'x' is given twice"):
        where(x=5) & where(x=6)


def test_a_number_above_or_below_leaves_out_the_number_itself() -> None:
    low, high = above(5), below(5)
    assert isinstance(low, wire.Between)
    assert isinstance(high, wire.Between)
    assert 5 < low.low < 5.000001
    assert 4.999999 < high.high < 5
    with pytest.raises(UsageError, match="no number is"):
        above(sys.float_info.max)
    with pytest.raises(UsageError, match="no number is"):
        below(-sys.float_info.max)
