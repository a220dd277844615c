"""RFC 7396: its own table of examples, its own pseudocode, and that a difference leads from one value to the other."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LimitError, MalformedError, WireError
from headrace.hub.services.merge_patch import MAX_DEPTH, apply, apply_counted, diff, encode, parse_object

RFC_TABLE = [
    ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
    ('{"a":"b"}', '{"a":null}', "{}"),
    ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
    ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
    ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
    ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
    ('["a","b"]', '["c","d"]', '["c","d"]'),
    ('{"a":"b"}', '["c"]', '["c"]'),
    ('{"a":"foo"}', "null", "null"),
    ('{"a":"foo"}', '"bar"', '"bar"'),
    ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
    ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
    ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
]
"""Appendix A: original, patch, result."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, width=16)
    | st.text(max_size=3)
)
names = st.sampled_from("abcd") | st.text(max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(names, values, max_size=4)


@pytest.mark.parametrize(("original", "patch", "result"), RFC_TABLE)
def test_the_rfcs_own_examples(original: str, patch: str, result: str) -> None:
    assert apply(json.loads(original), json.loads(patch)) == json.loads(result)


@given(values, values)
def test_apply_is_the_rfcs_pseudocode(target: Any, patch: Any) -> None:
    kept = copy.deepcopy(target), copy.deepcopy(patch)
    assert text(apply(target, patch)) == text(merge_patch(copy.deepcopy(target), patch))
    assert (text(target), text(patch)) == (text(kept[0]), text(kept[1])), "an argument was changed in place"


@given(objects, objects)
def test_a_difference_leads_from_one_object_to_the_other(old: Any, new: Any) -> None:
    old, new = apply({}, old), apply({}, new)
    assert text(apply(old, diff(old, new))) == text(new)


@given(objects, st.lists(objects, max_size=4))
def test_a_difference_stands_for_all_patches_between(old: Any, patches: list[Any]) -> None:
    old = new = apply({}, old)
    for patch in patches:
        new = apply(new, patch)
    assert text(apply(old, diff(old, new))) == text(new)


@given(objects)
def test_nothing_leads_to_the_same(value: Any) -> None:
    value = apply({}, value)
    assert diff(value, json.loads(encode(value))) == {}


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (0, False), (1, 1.0), (0.0, -0.0), ([1], [True]), ("", [])]
)
def test_what_python_takes_for_equal_is_a_difference_in_json(one: Any, other: Any) -> None:
    assert text(apply({"a": one}, diff({"a": one}, {"a": other}))) == text({"a": other})


def test_a_null_within_an_array_is_a_value() -> None:
    new = {"a": [None, {"b": None}]}
    assert diff({"a": [1]}, new) == new
    assert apply({}, new) == new


def test_a_difference_has_only_what_differs() -> None:
    old = {
        "same": {"deep": [1, 2]},
        "gone": {"x": 1},
        "inner": {"a": 1, "b": 2, "c": {"d": 1}},
        "was": {"a": 1},
    }
    new = {"same": {"deep": [1, 2]}, "inner": {"a": 1, "b": 3, "c": {}}, "was": 5, "fresh": {}}
    assert diff(old, new) == {"gone": None, "inner": {"b": 3, "c": {"d": None}}, "was": 5, "fresh": {}}


def test_what_did_not_change_is_shared() -> None:
    old = {"a": {"x": 1}, "b": {"y": 2}}
    new = apply(old, {"a": {"x": 2}})
    assert new["b"] is old["b"]
    assert old == {"a": {"x": 1}, "b": {"y": 2}}


@pytest.mark.parametrize(
    "bad", [b"", b"1", b"null", b"[]", b'"a"', b"{", b'{"a":1}}', b"\xff", b'{"a":"\xff"}', b'{"a":NaN}']
)
def test_only_an_object_is_parsed(bad: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_object(bad)


@pytest.mark.parametrize("opening", [b'{"a":', b"["])
def test_depth_is_bounded(opening: bytes) -> None:
    closing = b"}" if opening.startswith(b"{") else b"]"

    def nested(depth: int) -> bytes:
        inner = depth - 1
        return b'{"a":' + opening * inner + b"1" + closing * inner + b"}"

    assert parse_object(nested(MAX_DEPTH))
    with pytest.raises(LimitError):
        parse_object(nested(MAX_DEPTH + 1))
    with pytest.raises(WireError):
        parse_object(nested(100_000))


def test_many_brackets_are_not_depth() -> None:
    assert parse_object(b'{"a":[' + b",".join([b"{}"] * 1000) + b"]}")
    assert parse_object(b'{"a":"' + b"[{" * 1000 + b'"}')


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_but_our_errors(data: bytes) -> None:
    with contextlib.suppress(WireError):
        parse_object(data)


def merge_patch(target: Any, patch: Any) -> Any:
    """Section 2 of the RFC, word for word."""
    if isinstance(patch, dict):
        if not isinstance(target, dict):
            target = {}
        for name, value in patch.items():
            if value is None:
                if name in target:
                    del target[name]
            else:
                target[name] = merge_patch(target.get(name), value)
        return target
    return patch


def text(value: Any) -> bytes:
    """A value so that equality is JSON's, and the order of members does not count."""
    return encode(ordered(value))


def ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: ordered(value[name]) for name in sorted(value)}
    return [ordered(member) for member in value] if isinstance(value, list) else value


@given(objects, objects)
def test_the_growth_of_an_objects_text_is_counted_exactly(old: Any, patch: Any) -> None:
    old = apply({}, old)
    merged, growth = apply_counted(old, patch)
    assert text(merged) == text(apply(old, patch))
    assert len(encode(old)) + growth == len(encode(merged))
