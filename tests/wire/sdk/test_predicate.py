"""Predicates and the field JSON that says them."""

from __future__ import annotations

import json
from typing import Any as Anything

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from tests.matching import naive
from tests.matching.drawn import NUMBERS as DRAWN_NUMBERS
from tests.matching.drawn import TEXTS, of_one_attribute, predicates

from headrace.errors import LimitError, MalformedError, WireError
from headrace.wire.sdk.predicate import (
    MAX_DEPTH,
    MAX_TERMS,
    Any,
    Between,
    Equals,
    Exists,
    Extra,
    In,
    Not,
    Predicate,
    Prefix,
    compile_predicate,
    decompile,
    holds,
    parse_field,
    serialize_field,
)
from headrace.wire.sdk.program import NOTHING, NUMBER, TEXT, bits


def extra(value: object) -> bytes:
    return json.dumps({"use": 3, "extra": json.dumps(value)}).encode()


def nested(depth: int) -> Extra:
    predicate: Extra = Exists(True)
    for _ in range(depth - 1):
        predicate = Not(predicate)
    return predicate


@pytest.mark.parametrize(
    ("field", "predicate"),
    [
        (b'{"use": 1, "strval": "Oslo"}', Equals("Oslo")),
        (b'{"use": 1, "strval": ""}', Equals("")),
        (b'{"use": 2, "low": 1, "high": 2.5}', Between(1.0, 2.5)),
        (b'{"use": 2, "low": -0.5, "high": -0.5}', Between(-0.5, -0.5)),
        (extra({"in": ["red", 7, 7.5]}), In(("red", 7.0, 7.5))),
        (extra({"in": []}), In(())),
        (extra({"prefix": "ab"}), Prefix("ab")),
        (extra({"exists": True}), Exists(True)),
        (extra({"exists": False}), Exists(False)),
        (extra({"not": {"in": ["red"]}}), Not(In(("red",)))),
        (extra({"any": [{"prefix": "a"}, {"exists": False}]}), Any((Prefix("a"), Exists(False)))),
        (extra({"any": []}), Any(())),
        (extra({"any": [{"any": [{"not": {"exists": True}}]}]}), Any((Any((Not(Exists(True)),)),))),
    ],
)
def test_fields(field: bytes, predicate: Predicate) -> None:
    assert parse_field(field) == predicate
    assert parse_field(serialize_field(predicate)) == predicate


@pytest.mark.parametrize(
    "rest",
    [
        '"low": 5, "high": 1',
        '"low": "none", "high": null, "extra": {"in": 3}',
        '"extra": "no json"',
        '"mine": [[[]]]',
    ],
)
def test_only_the_fields_that_use_selects_are_checked(rest: str) -> None:
    assert parse_field(f'{{"use": 1, "strval": "Oslo", {rest}}}'.encode()) == Equals("Oslo")


def test_of_a_repeated_member_the_last_wins() -> None:
    assert parse_field(b'{"use": 2, "use": 1, "strval": "a", "strval": "b"}') == Equals("b")


@pytest.mark.parametrize(
    "field",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"not json",
        b'{"strval": "a"}',
        b'{"use": 0, "strval": "a"}',
        b'{"use": 4, "strval": "a"}',
        b'{"use": "1", "strval": "a"}',
        b'{"use": 1.0, "strval": "a"}',
        b'{"use": true, "strval": "a"}',
        b'{"use": ' + b"9" * 5000 + b"}",
        b'{"use": 1}',
        b'{"use": 1, "strval": 1}',
        b'{"use": 1, "strval": null}',
        b'{"use": 1, "strval": "\xff"}',
        b'{"use": 1, "strval": "\\ud800"}',
        b'{"use": 2}',
        b'{"use": 2, "low": 1}',
        b'{"use": 2, "high": 1}',
        b'{"use": 2, "low": 2, "high": 1}',
        b'{"use": 2, "low": NaN, "high": 1}',
        b'{"use": 2, "low": "NaN", "high": 1}',
        b'{"use": 2, "low": 1, "high": 1e999}',
        b'{"use": 2, "low": -Infinity, "high": 1}',
        b'{"use": 2, "low": true, "high": 1}',
        b'{"use": 3}',
        b'{"use": 3, "extra": {"exists": true}}',
        b'{"use": 3, "extra": ""}',
        b'{"use": 3, "extra": "[]"}',
        b'{"use": 1, "strval": "a", "mine": ' + b"[" * 9000,
        extra({}),
        extra({"in": [1], "prefix": "a"}),
        extra({"in": "red"}),
        extra({"in": [True]}),
        extra({"in": [None]}),
        extra({"in": [["red"]]}),
        extra({"prefix": 1}),
        extra({"exists": 1}),
        extra({"exists": None}),
        extra({"not": [{"exists": True}]}),
        extra({"not": {}}),
        extra({"not": "exists"}),
        extra({"any": {"exists": True}}),
        extra({"any": [1]}),
        extra({"all": [{"exists": True}]}),
        extra({"use": 1, "strval": "a"}),
        b'{"use": 3, "extra": "{\\"in\\": [1e999]}"}',
        b'{"use": 3, "extra": "{\\"in\\": [NaN]}"}',
    ],
)
def test_what_is_refused(field: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_field(field)
    assert caught.value.protocol == "sdk"


def test_nesting_is_bounded() -> None:
    assert parse_field(serialize_field(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(LimitError) as caught:
        serialize_field(nested(MAX_DEPTH + 1))
    assert (caught.value.value, caught.value.limit) == (MAX_DEPTH + 1, MAX_DEPTH)
    with pytest.raises(LimitError):
        serialize_field(nested(100_000))
    for depth in (MAX_DEPTH + 1, 100):
        value: Anything = {"exists": True}
        for _ in range(depth - 1):
            value = {"not": value}
        with pytest.raises(LimitError):
            parse_field(extra(value))


def test_the_number_of_terms_is_bounded() -> None:
    most = In(tuple(map(float, range(MAX_TERMS - 1))))
    assert parse_field(serialize_field(most)) == most
    many = Any((Exists(True),) * (MAX_TERMS - 1))
    assert parse_field(serialize_field(many)) == many
    for too_many in (
        In((*most.values, 0.0)),
        Any((*many.predicates, Exists(True))),
        Any((In(("a",) * 200), In(("a",) * 200))),
    ):
        with pytest.raises(LimitError) as caught:
            serialize_field(too_many)
        assert caught.value.limit == MAX_TERMS


@pytest.mark.parametrize(
    "predicate",
    [
        Between(2.0, 1.0),
        Between(float("nan"), 1.0),
        Between(0.0, float("inf")),
        In((float("nan"),)),
        In((10**400,)),
        Equals("\ud800"),
        Prefix("\ud800"),
        Not(In(("\udfff",))),
    ],
)
def test_what_is_not_written(predicate: Predicate) -> None:
    with pytest.raises(MalformedError):
        serialize_field(predicate)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
EXTRAS: st.SearchStrategy[Extra] = st.recursive(
    st.one_of(
        st.builds(In, st.lists(st.one_of(st.text(max_size=5), NUMBERS), max_size=4).map(tuple)),
        st.builds(Prefix, st.text(max_size=5)),
        st.builds(Exists, st.booleans()),
    ),
    lambda inner: st.one_of(st.builds(Not, inner), st.builds(Any, st.lists(inner, max_size=3).map(tuple))),
    max_leaves=6,
)
PREDICATES: st.SearchStrategy[Predicate] = st.one_of(
    st.builds(Equals, st.text(max_size=20)),
    st.tuples(NUMBERS, NUMBERS).map(lambda pair: Between(min(pair), max(pair))),
    EXTRAS,
)


@given(PREDICATES)
def test_what_is_written_is_read_back(predicate: Predicate) -> None:
    try:
        field = serialize_field(predicate)
    except LimitError:
        reject()  # deeper than we go
    assert parse_field(field) == predicate
    assert hash(parse_field(field)) == hash(predicate)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), NUMBERS, st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["in", "prefix", "not", "exists", "any", "use"]), inner, max_size=2),
    ),
    max_leaves=10,
)


@given(
    st.fixed_dictionaries(
        {"use": st.one_of(st.integers(0, 4), JSON)},
        optional={"strval": JSON, "low": JSON, "high": JSON, "extra": st.one_of(JSON, JSON.map(json.dumps))},
    )
)
def test_any_field_is_read_or_refused(field: dict[str, object]) -> None:
    try:
        predicate = parse_field(json.dumps(field).encode())
    except (MalformedError, LimitError):
        return
    assert parse_field(serialize_field(predicate)) == predicate


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(field: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_field(field)


@given(predicates)
def test_a_program_reads_back_as_the_predicate_it_was_compiled_from(predicate: Predicate) -> None:
    words: dict[str, int] = {}
    names: dict[str, int] = {}
    program = compile_predicate(
        predicate,
        5,
        lambda text: words.setdefault(text, len(words)),
        lambda name: names.setdefault(name, len(names)),
    )
    assert program[:2] == [len(program), 5]
    assert decompile(program, list(words).__getitem__, list(names).__getitem__) == predicate
    assert parse_field(serialize_field(predicate)) == predicate


@given(of_one_attribute, st.none() | TEXTS | DRAWN_NUMBERS)
def test_a_program_holds_where_the_plain_reading_does(
    predicate: Predicate, value: str | float | None
) -> None:
    words: dict[str, int] = {}
    program = np.array(compile_predicate(predicate, 0, lambda text: words.setdefault(text, len(words))))
    kind, number, text = NOTHING, -1, b""
    if isinstance(value, str):
        kind, number, text = TEXT, words.get(value, -1), value.encode()
    elif value is not None:
        kind, number = NUMBER, bits(value)
    data = np.frombuffer("".join(words).encode(), np.uint8)
    begins = np.cumsum([0, *(len(word.encode()) for word in words)])
    found = holds(program, 0, kind, number, np.frombuffer(text, np.uint8), 0, len(text), data, begins)
    assert found == naive.holds(predicate, value)


@pytest.mark.parametrize(("kind", "value"), [(NOTHING, 0), (TEXT, -1)])
def test_what_no_operand_can_equal_is_not_compared_with_each(kind: int, value: int) -> None:
    class Counted(list[int]):
        looks = 0

        def __getitem__(self, at: Anything) -> Anything:
            Counted.looks += 1
            return super().__getitem__(at)

    words = tuple(map(str, range(255)))
    program = Counted(compile_predicate(In(words), 0, words.index))
    nothing = np.zeros(0, np.uint8)
    assert not holds(program, 0, kind, value, nothing, 0, 0, nothing, np.zeros(1, np.int32))  # type: ignore[arg-type]
    assert Counted.looks < 10


def test_equal_numbers_have_the_same_bits() -> None:
    assert bits(-0.0) == bits(0.0) == 0
    assert bits(7) == bits(7.0)
    assert bits(1.0) != bits(-1.0)


@pytest.mark.parametrize(
    "inside",
    [
        {"y": "b"},
        {"circle": [0, 0, 1]},
        {"y": 7, "circle": [0, 0, 1]},
        {"y": "b", "circle": [0, 0]},
        {"y": "b", "circle": [0, 0, -1]},
        {"y": "b", "circle": [0, 0, 1e200]},
        {"y": "b", "circle": [0, 0, 1], "polygon": [[0, 0], [1, 0], [0, 1]]},
        {"y": "b", "polygon": [[0, 0], [1, 0]]},
        {"y": "b", "polygon": [[0, 0], [1, 0], [0]]},
        {"y": "b", "polygon": [[0, 0], [1, 0], [0, "1"]]},
        {"y": "b", "polygon": [[0, n] for n in range(257)]},
    ],
)
def test_a_region_that_is_none_is_refused(inside: object) -> None:
    for extra in ({"inside": inside}, {"not": {"inside": {"y": "b", "circle": [0, 0, 1]}}}):
        with pytest.raises(WireError):
            parse_field(json.dumps({"use": 3, "extra": json.dumps(extra)}).encode())
