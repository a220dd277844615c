"""Subscriptions and messages that hypothesis draws: few names and values, so that they often meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from hypothesis import strategies as st

from headrace.message import SCHEMA, Batch, Run, map_column
from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import Any, Between, Equals, Exists, In, Inside, Not, Predicate, Prefix
from headrace.wire.sdk.region import Circle, Polygon, Region

NAMES = st.sampled_from(["a", "b", "c", "d", "topic", "origin", "publisher", "size", "", "é"])
TEXTS = st.sampled_from(["", "a", "ab", "abc", "b", "ba", "A", "é", "éa", "0", "1", "spp", "log"])
BOUNDS = st.sampled_from([-1e308, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 5e-324, 1e308])
NUMBERS = BOUNDS | st.sampled_from([float("nan"), float("inf"), float("-inf")])

between = st.tuples(BOUNDS, BOUNDS).map(lambda ends: Between(*sorted(ends)))
plain = st.one_of(
    st.lists(TEXTS | BOUNDS, max_size=4).map(lambda values: In(tuple(values))),
    TEXTS.map(Prefix),
    st.booleans().map(Exists),
)
extras = st.recursive(
    plain,
    lambda inner: inner.map(Not) | st.lists(inner, max_size=3).map(lambda some: Any(tuple(some))),
    max_leaves=5,
)
COORDINATES = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 5e-324, 1e150])
regions: st.SearchStrategy[Region] = st.builds(
    Circle, COORDINATES, COORDINATES, st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e150])
) | st.lists(st.tuples(COORDINATES, COORDINATES), min_size=3, max_size=7).map(
    lambda vertices: Polygon(tuple(vertices))
)
of_one_attribute: st.SearchStrategy[Predicate] = st.one_of(
    TEXTS.map(Equals), between, TEXTS.map(Equals), between, extras
)
insides = st.builds(Inside, NAMES, regions)
predicates: st.SearchStrategy[Predicate] = of_one_attribute | insides
fences = st.builds(
    Fence,
    st.sampled_from(["b", "c", "size"]),
    regions,
    st.sampled_from(["a", "d", "topic"]),
    st.sampled_from([("enter",), ("inside",), ("exit",)]),
    st.integers(0, 6),
)
subscriptions = st.dictionaries(NAMES, predicates, min_size=1, max_size=4)
clients = st.integers(0, 30).map(lambda number: number.to_bytes(12))

Said = tuple[Mapping[str, str], Mapping[str, float], bytes, tuple[str, str, str]]

messages: st.SearchStrategy[Said] = st.tuples(
    st.dictionaries(NAMES, TEXTS, max_size=4),
    st.dictionaries(NAMES, NUMBERS, max_size=4),
    st.sampled_from([b"", b"a", b"ab", b'{"a": "ab", "b": 1, "c": true, "d": null}', b'{"a": 1', b"[1]"]),
    st.tuples(TEXTS, st.sampled_from(["", "spp", "tube", "ab"]), TEXTS),
)


def batch_of(said: Sequence[Said]) -> Batch:
    """Messages as a batch whose every column differs."""
    columns = {
        "origin": pa.array([envelope[1] for *_, envelope in said], pa.string()),
        "publisher": pa.array([envelope[2] for *_, envelope in said], pa.string()),
        "topic": pa.array([envelope[0] for *_, envelope in said], pa.string()),
        "attributes": map_column("attributes", [each[0] for each in said]),
        "numbers": map_column("numbers", [each[1] for each in said]),
    }
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    return Batch(Run.of([each[2] for each in said]), first=1, columns=rows)
