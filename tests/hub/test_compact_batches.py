"""Rows cut into compact batches: whatever they are, the messages stay what they were."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.compact_batches import compact
from headrace.message import SCHEMA, Batch, Run, merge

made = st.lists(
    st.tuples(
        st.integers(1, 20),
        st.sampled_from(["fyrehose", "tube"]),
        st.sampled_from(["", "alice", "bob"]),
        st.sampled_from(["", "t"]),
        st.integers(0, 2),
        st.none() | st.integers(0, 9),
    ),
    min_size=1,
    max_size=12,
)


def batches(steps: list[tuple[int, str, str, str, int, int | None]]) -> list[Batch]:
    found, first, time = [], 5, 100
    for count, origin, publisher, topic, later, number in steps:
        time += later
        found.append(
            Batch(Run.of([b"%d" % n for n in range(count)]), first, time, origin, 7, publisher, number, topic)
        )
        first += count
    return found


@given(made)
def test_the_messages_are_the_same(steps: list[tuple[int, str, str, str, int, int | None]]) -> None:
    before = batches(steps)
    after = compact(merge(before))
    assert [m for batch in after for m in batch] == [m for batch in before for m in batch]


def test_long_runs_share_what_they_share() -> None:
    steps = [
        (100, "fyrehose", "alice", "", 0, None),
        (1, "tube", "f", "x", 0, 1),
        (100, "fyrehose", "bob", "", 0, None),
    ]
    assert [batch.columns for batch in compact(merge(batches(steps)))] == [None, None, None]


def test_many_short_ones_stay_together() -> None:
    steps = [(1, "fyrehose", f"p{n}", "", 0, None) for n in range(100)]
    assert len(compact(merge(batches(steps)))) == 1


def test_attributes_are_kept() -> None:
    columns = pa.RecordBatch.from_arrays(
        [pa.array([[("a", "b")], []], SCHEMA.field("attributes").type)],
        schema=pa.schema([SCHEMA.field("attributes")]),
    )
    rows = Batch(Run.of([b"x", b"y"]), first=1, origin="tube", columns=columns).to_arrow()
    (batch,) = compact(rows)
    assert [m.attributes for m in batch] == [{"a": "b"}, {}]
