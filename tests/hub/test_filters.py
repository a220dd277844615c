"""Filters against a plain loop over messages."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.matching.naive import holds

from headrace.hub.filters import Filter
from headrace.hub.topic_test import topic_pattern
from headrace.message import SCHEMA, Batch, Message, Run, messages
from headrace.wire.sdk.predicate import Any, Between, Equals, Exists, In, Not, Predicate, Prefix

names = st.sampled_from(["a", "b", "ü"])
texts = st.sampled_from(["", "x", "xy", "ü", "7"])
values = st.sampled_from([0.0, 7.0, -1.5, 1e300])
topics = st.sampled_from(["", "a", "a/b", "a/b/c", "a.b", "a\nb", "ab/ü", "*"])


def rows_of(rows: list[tuple[str, str, dict[str, str], dict[str, float]]]) -> pa.RecordBatch:
    count = len(rows)
    columns = {
        "seq": pa.array(np.arange(1, count + 1)),
        "time": pa.array([0] * count, pa.int64()).cast(SCHEMA.field("time").type),
        "origin": pa.array([row[0] for row in rows], pa.string()),
        "node": pa.array([1] * count, pa.int32()),
        "publisher": pa.array([""] * count, pa.string()),
        "number": pa.nulls(count, pa.int64()),
        "topic": pa.array([row[1] for row in rows], pa.string()),
        "attributes": pa.array([list(row[2].items()) for row in rows], SCHEMA.field("attributes").type),
        "numbers": pa.array([list(row[3].items()) for row in rows], SCHEMA.field("numbers").type),
        "payload": pa.array([b""] * count, pa.binary()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=SCHEMA)


batches = st.lists(
    st.tuples(
        st.sampled_from(["tube", "spp", "spark"]),
        topics,
        st.dictionaries(names, texts, max_size=3),
        st.dictionaries(names, values, max_size=3),
    ),
    min_size=1,
    max_size=12,
).map(rows_of)

extras = st.recursive(
    st.builds(In, st.lists(texts | values, max_size=3).map(tuple))
    | st.builds(Prefix, texts)
    | st.builds(Exists, st.booleans()),
    lambda inner: st.builds(Not, inner) | st.builds(Any, st.lists(inner, max_size=3).map(tuple)),
    max_leaves=5,
)
predicates = (
    st.builds(Equals, texts)
    | st.tuples(values, values).map(lambda pair: Between(min(pair), max(pair)))
    | extras
)


def wanted(message: Message, where: Mapping[str, Predicate]) -> bool:
    return all(
        holds(predicate, message.attributes.get(name, message.numbers.get(name)))
        for name, predicate in where.items()
    )


@given(batches, st.dictionaries(names, predicates, max_size=2), st.integers(0, 5))
def test_attributes_are_judged_as_a_plain_loop_does(
    rows: pa.RecordBatch, where: dict[str, Predicate], cut: int
) -> None:
    rows = rows.slice(min(cut, rows.num_rows - 1))
    passed = Filter(where=where).apply(rows).column("seq").to_pylist()
    assert passed == [m.seq for m in messages(rows) if wanted(m, where)]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a", ["a"], ["", "ab", "a/b"]),
        ("*", ["", "a", "a.b", "a\nb"], ["a/b", "/"]),
        ("**", ["", "a", "a/b", "a\n/b"], []),
        ("a/*", ["a/", "a/b"], ["a", "a/b/c"]),
        ("a/**", ["a/", "a/b", "a/b/c"], ["a", "b/a/b"]),
        ("**/c", ["/c", "a/b/c"], ["c", "a/c/d"]),
        ("a.b", ["a.b"], ["axb"]),
        ("a*c", ["ac", "abc"], ["a/c", "abcd"]),
        ("ü[1]", ["ü[1]"], ["ü1"]),
    ],
)
def test_topic_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    rows = rows_of([("tube", topic, {}, {}) for topic in matching + others])
    assert Filter(topic=pattern).apply(rows).column("topic").to_pylist() == matching


@given(st.lists(topics | st.text(max_size=6), min_size=1, max_size=8), st.text("ab/*.\n", max_size=6))
def test_topic_patterns_as_a_plain_matcher_has_them(given_topics: list[str], pattern: str) -> None:
    rows = rows_of([("tube", topic, {}, {}) for topic in given_topics])
    expression = re.compile(topic_pattern(pattern).replace(r"\z", r"\Z"))
    passed = [topic for topic in given_topics if expression.match(topic)]
    assert Filter(topic=pattern).apply(rows).column("topic").to_pylist() == passed
    if "/" not in "".join(given_topics):
        assert passed == [t for t in given_topics if fnmatch.fnmatchcase(t, pattern)]


def test_origins() -> None:
    rows = rows_of([(origin, "t", {}, {}) for origin in ("tube", "spp", "spark")])
    assert Filter().apply(rows) is rows
    assert Filter(origins=["spp", "tube"]).apply(rows).column("origin").to_pylist() == ["tube", "spp"]


def test_rows_that_all_pass_are_not_copied() -> None:
    rows = rows_of([("tube", "t", {}, {})] * 3)
    assert Filter(topic="t").apply(rows) is rows


def test_of_two_values_under_one_name_the_last_counts() -> None:
    rows = rows_of([("tube", "", {}, {})])
    twice = pa.array([[("a", "x"), ("a", "y")]], SCHEMA.field("attributes").type)
    rows = rows.set_column(SCHEMA.names.index("attributes"), SCHEMA.field("attributes"), twice)
    assert Filter(where={"a": Equals("y")}).apply(rows).num_rows == 1
    assert Filter(where={"a": Equals("x")}).apply(rows).num_rows == 0


@given(
    topic=st.sampled_from([None, "**", "a", "a/*", "*"]),
    origins=st.sampled_from([None, ["tube"], ["spark", "spp"], []]),
    where=st.booleans(),
    shared=st.tuples(st.sampled_from(["tube", "spp", "spark"]), st.sampled_from(["", "a", "a/b", "a/b/c"])),
    differing=st.booleans(),
)
def test_what_is_known_of_a_whole_batch_is_true_of_each_row(
    topic: str | None, origins: list[str] | None, where: bool, shared: tuple[str, str], differing: bool
) -> None:
    wanted = Filter(topic, origins, {"x": Between(0, 1)} if where else None)
    columns = pa.record_batch({"topic": pa.array([shared[1], "a"])}) if differing else None
    batch = Batch(Run.of([b"1", b"2"]), first=1, origin=shared[0], topic=shared[1], columns=columns)
    known = wanted.passes(batch)
    mask = wanted.mask(batch.to_arrow())
    if known is not None:
        assert mask.tolist() == [known, known]
    assert (known is None) is (differing or (where and known is not False))


def test_it_remembers_no_more_topics_than_it_may() -> None:
    wanted = Filter("a/*")
    for number in range(3000):
        batch = Batch(Run.one(b""), first=1, origin="tube", topic=f"a/{number}")
        assert wanted.passes(batch) is True
    assert len(wanted.topics._seen) <= 1000
    long = Batch(Run.one(b""), first=1, origin="tube", topic="a/" + "b" * 60_000)
    assert wanted.passes(long) is True
    assert long.topic not in wanted.topics._seen
