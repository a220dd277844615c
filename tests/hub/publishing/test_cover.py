"""The cover of rows: the same however they are cut and ordered, and another if any of them is."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.publishing.cover import Cover, cover_of
from headrace.hub.publishing.idempotent import published
from headrace.message import Batch, Run
from headrace.wire.link.message import PUBLISHED

Row = tuple[str, list[tuple[str, str]], list[tuple[str, float]], bytes]

few = st.text("ab", max_size=2)
row_lists = st.lists(
    st.tuples(
        few,
        st.lists(st.tuples(few, few), max_size=2, unique_by=lambda entry: entry[0]),
        st.lists(st.tuples(few, st.floats()), max_size=2, unique_by=lambda entry: entry[0]),
        st.binary(max_size=20),
    ),
    min_size=1,
    max_size=12,
)


def batch_of(rows: list[Row]) -> Batch:
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
    return published(
        pa.record_batch(
            [pa.array(c, f.type) for c, f in zip(columns, PUBLISHED, strict=True)], schema=PUBLISHED
        )
    )


@given(row_lists, st.integers(1, 5), st.integers())
def test_order_and_cut_change_nothing(rows: list[Row], size: int, seed: int) -> None:
    whole = cover_of([batch_of(rows)])
    mixed = Random(seed).sample(rows, len(rows))
    parts = [batch_of(mixed[at : at + size]) for at in range(0, len(mixed), size)]
    assert cover_of(parts) == whole
    batch = batch_of(rows)
    assert cover_of([batch.slice(at, at + 1) for at in range(len(batch))]) == whole


@given(row_lists, st.data())
def test_any_other_row_changes_it(rows: list[Row], data: st.DataObject) -> None:
    topic, attributes, numbers, payload = rows[0]
    other: Row = data.draw(
        st.sampled_from(
            [
                (topic + "x", attributes, numbers, payload),
                (topic, [*attributes, ("x", "")], numbers, payload),
                (topic, attributes, [*numbers, ("x", 0.0)], payload),
                (topic, attributes, numbers, payload + b"\0"),
                (topic, attributes, numbers, b"x" + payload),
            ]
        )
    )
    assert cover_of([batch_of([other, *rows[1:]])]) != cover_of([batch_of(rows)])


def test_parts_of_rows_are_told_apart() -> None:
    covers = {
        cover_of([batch_of(rows)])
        for rows in (
            [("a", [], [], b"b")],
            [("b", [], [], b"a")],
            [("", [("a", "b")], [], b"")],
            [("", [("b", "a")], [], b"")],
            [("", [("a", "b"), ("c", "d")], [], b"")],
            [("", [("a", "d"), ("c", "b")], [], b"")],
            [("", [], [], b"ab"), ("", [], [], b"c")],
            [("", [], [], b"a"), ("", [], [], b"bc")],
            [("", [], [], b"12345678abcdefgh")],
            [("", [], [], b"abcdefgh12345678")],
        )
    }
    assert len(covers) == 10


def test_compact_batches_are_covered_like_rows() -> None:
    compact = Batch(Run.of([b"a", b"", b"123456789"]), topic="t")
    rows: list[Row] = [("t", [], [], b"a"), ("t", [], [], b""), ("t", [], [], b"123456789")]
    assert cover_of([compact]) == cover_of([batch_of(rows)])
    assert cover_of([Batch(Run.one(b"x"))]) == cover_of([Batch(Run.of([b"x"]))])
    assert cover_of([]) == Cover(0, 0)
