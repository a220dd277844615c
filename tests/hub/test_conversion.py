"""What the backbone shows of what the log holds."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.conversion import backbone_run, entries
from headrace.message import NOT_A_MESSAGE, Batch, Run, merge


def message(*payloads: bytes, first: int = 1, origin: str = "fyrehose") -> Batch:
    return Batch(Run.of(payloads), first=first, origin=origin, topic="a/b")


def mixed(*rows: tuple[str, bytes], first: int = 1) -> Batch:
    """A batch whose rows have origins of their own, as sealed segments have them."""
    batches = [message(payload, first=first + at, origin=origin) for at, (origin, payload) in enumerate(rows)]
    return Batch.over(merge(batches))


def test_messages_pass_as_they_are() -> None:
    batch = message(b"a", b"", b"ccc")
    assert backbone_run(batch) is batch.run
    assert list(entries(batch)) == []


def test_a_batch_of_entries_is_hollow() -> None:
    batch = message(b"secret", b"state", origin=NOT_A_MESSAGE, first=7)
    assert list(backbone_run(batch)) == [b"", b""]
    assert [(each.seq, each.topic, each.payload) for each in entries(batch)] == [
        (7, "a/b", b"secret"),
        (8, "a/b", b"state"),
    ]


def test_entries_among_messages() -> None:
    batch = mixed(
        ("spp", b"one"), (NOT_A_MESSAGE, b"two"), ("tube", b""), (NOT_A_MESSAGE, b""), ("spp", b"five")
    )
    assert list(backbone_run(batch)) == [b"one", b"", b"", b"", b"five"]
    assert [(each.seq, each.payload) for each in entries(batch)] == [(2, b"two"), (4, b"")]


def test_a_part_of_a_batch() -> None:
    # A slice shares its parent's buffer, and so does not begin at its offset 0.
    batch = mixed(("spp", b"one"), (NOT_A_MESSAGE, b"two"), ("tube", b"three")).slice(1, 3)
    assert list(backbone_run(batch)) == [b"", b"three"]
    whole = message(b"one", b"two", b"three", origin=NOT_A_MESSAGE).slice(1, 3)
    assert list(backbone_run(whole)) == [b"", b""]
    assert [each.seq for each in entries(whole)] == [2, 3]


def test_columns_without_an_origin() -> None:
    topics = pa.record_batch({"topic": pa.array(["x", "y"])})
    batch = Batch(Run.of([b"a", b"b"]), first=1, origin=NOT_A_MESSAGE, columns=topics)
    assert list(backbone_run(batch)) == [b"", b""]
    assert [each.topic for each in entries(batch)] == ["x", "y"]


@pytest.mark.parametrize("origin", ["", "logs", "Log", "fyrehose"])
def test_only_the_one_origin_is_no_message(origin: str) -> None:
    assert list(backbone_run(message(b"a", origin=origin))) == [b"a"]


@given(
    st.lists(st.tuples(st.sampled_from(["spp", NOT_A_MESSAGE, "tube"]), st.binary(max_size=9)), min_size=1),
    st.data(),
)
def test_whatever_is_mixed(rows: list[tuple[str, bytes]], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(begin + 1, len(rows)))
    batch = mixed(*rows).slice(begin, end)
    part = rows[begin:end]
    assert list(backbone_run(batch)) == [
        b"" if origin == NOT_A_MESSAGE else payload for origin, payload in part
    ]
    assert [(each.seq, each.payload) for each in entries(batch)] == [
        (seq, payload) for seq, (origin, payload) in enumerate(part, begin + 1) if origin == NOT_A_MESSAGE
    ]
