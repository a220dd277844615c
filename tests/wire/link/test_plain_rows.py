"""Plain rows are read and written just as Arrow reads and writes them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.link.rows import plain_rows, published_rows
from headrace.hub.publishing.idempotent import published
from headrace.message import SCHEMA, Batch, Message, Run, merge, messages
from headrace.wire.link.message import PUBLISHED, body_of, rows_of
from headrace.wire.link.plain_rows import (
    batches_body,
    parse_messages,
    parse_published,
    published_body,
    published_parts,
    published_size,
)

payloads = st.lists(st.binary(max_size=30), min_size=1, max_size=20)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


def wire(rows: pa.RecordBatch) -> bytes:
    return bytes(body_of(rows))


@given(payloads, names)
def test_published_rows_are_arrows(given_payloads: list[bytes], topic: str) -> None:
    body = published_body(given_payloads, topic)
    assert body == wire(plain_rows(given_payloads, topic))
    found = parse_published(body)
    assert found is not None
    assert found[0] == topic
    assert list(found[1]) == given_payloads


@given(st.lists(payloads, min_size=1, max_size=4), names, st.integers(0, 3))
def test_runs_are_published_as_their_payloads_are(runs: list[list[bytes]], topic: str, before: int) -> None:
    # A run may begin anywhere in its buffer.
    given_runs = [Run.of([b"other"] * before + run).slice(before, before + len(run)) for run in runs]
    parts = published_parts(given_runs, topic)
    every = [payload for run in runs for payload in run]
    whole = published_body(every, topic)
    assert b"".join(parts) == whole
    # The metadata, what is in a column without rows, and up to seven bytes behind each buffer.
    assert 0 <= len(whole) - published_size(len(every), sum(map(len, every)), topic) < 1000


def test_runs_are_published_from_where_they_lie() -> None:
    run = Run.of([bytes(1000)] * 3)
    [found] = [part for part in published_parts([run], "t") if len(part) == 3000]
    assert np.shares_memory(np.frombuffer(found, np.uint8), run.data)
    assert isinstance(found, memoryview)
    assert found.readonly


@pytest.mark.parametrize(
    "rows",
    [
        published_rows([b"a"], attributes={"x": "y"}),
        published_rows([b"a", b"b"], numbers={"x": 1.0}),
        published_rows([{"payload": b"a", "topic": "t"}, {"payload": b"b", "topic": "u"}]),
        published_rows([{"payload": b"a", "topic": "ab"}, {"payload": b"b", "topic": "cd"}]),
        plain_rows([], ""),
    ],
    ids=["attributes", "numbers", "topics", "topics of one length", "none"],
)
def test_what_is_not_plain_is_left_to_arrow(rows: pa.RecordBatch) -> None:
    assert parse_published(wire(rows)) is None


def test_a_slice_of_rows() -> None:
    rows = plain_rows([b"a", b"bb", b"ccc"], "t").slice(1)
    found = parse_published(wire(rows))
    assert found is not None
    assert list(found[1]) == [b"bb", b"ccc"]


def flipped(body: bytes) -> Iterator[bytes]:
    """The same with one byte changed, for each byte."""
    for at in range(len(body)):
        for change in (1, 0x80, 0xFF):
            yield body[:at] + bytes([body[at] ^ change]) + body[at + 1 :]


@pytest.mark.parametrize("some", [[b"abc"], [b"ab", b"", b"c"]])
@pytest.mark.parametrize("topic", ["", "größe"])
def test_whatever_a_byte_becomes_arrow_would_say_the_same(some: list[bytes], topic: str) -> None:
    """What is taken without Arrow is what Arrow takes, and it refuses nothing of it."""
    for body in flipped(published_body(some, topic)):
        found = parse_published(body)
        if found is not None:
            batch = published(rows_of(body, PUBLISHED), origin="tube")
            assert (batch.topic, list(batch.run)) == (found[0], list(found[1]))
            assert batch.columns is None


batch_of = st.builds(
    lambda payload, origin, publisher, topic, number, time: Batch(
        Run.of(payload), time=time, origin=origin, node=60396, publisher=publisher, number=number, topic=topic
    ),
    payloads,
    st.sampled_from(["tube", "fyrehose", "spark"]),
    names,
    names,
    st.none() | st.integers(0, 1 << 62),
    st.integers(0, 1 << 50),
)


@given(st.lists(batch_of, min_size=1, max_size=4))
def test_batches_are_arrows(batches: list[Batch]) -> None:
    first, numbered = 7, []
    for batch in batches:
        numbered.append(batch.numbered(first, first, batch.time, batch.node))
        first += len(batch)
    body = batches_body(numbered, 1 << 20)
    assert body is not None
    assert rows_of(body, SCHEMA).equals(merge(numbered))
    found = parse_messages(body)
    numbers = {batch.number is None for batch in batches}
    if len(numbers) == 2:
        assert found is None, "some have a number and some have none"
    else:
        assert found == [message for batch in numbered for message in batch]
    assert parse_messages(wire(merge(numbered))) == found


def test_a_lone_message() -> None:
    batch = Batch(Run.one(b"x"), first=9, time=5, origin="tube", publisher="me", topic="t", node=1)
    body = batches_body([batch], 1 << 20)
    assert body == wire(merge([batch]))
    assert parse_messages(body) == [Message(9, b"x", 5, "tube", 1, "me", None, "t")]


def test_too_many_or_not_plain() -> None:
    many = Batch(Run.of([b""] * 1000), first=1, origin="ö", topic="größe")
    size = len(batches_body([many], 1 << 20) or b"")
    assert batches_body([many], size) is None, "that it fits must be known before anything is made"
    for most in range(0, 1 << 20, 9973):
        assert len(batches_body([many], most) or b"") <= most + 1200, "the metadata aside"
    rows = merge([Batch(Run.of([b"a"]), first=1)])
    assert batches_body([Batch.over(rows)], 1 << 20) is None


@pytest.mark.parametrize("number", [None, 4])
@pytest.mark.parametrize("count", [1, 2])
def test_whatever_a_byte_becomes_messages_are_arrows(number: int | None, count: int) -> None:
    run = Run.of([b"abc", b"d"][:count])
    batch = Batch(run, first=9, time=5, origin="tube", publisher="me", topic="größe", number=number)
    for body in flipped(batches_body([batch], 1 << 20) or b""):
        found = parse_messages(body)
        if found is not None:
            assert found == list(messages(rows_of(body, SCHEMA)))


@pytest.mark.parametrize("offsets", [(1, 0, 3), (-1, 2, 4), (0, 2, 5), (0, 9, 4)])
def test_offsets_that_lie(offsets: tuple[int, ...]) -> None:
    body = bytearray(published_body([b"ab", b"cd"], ""))
    honest = struct.pack("<3i", 0, 2, 4)
    at = body.rindex(honest)
    body[at : at + len(honest)] = struct.pack("<3i", *offsets)
    assert parse_published(body) is None


@pytest.mark.parametrize("count", [0, -1, 2, 1 << 40, (1 << 63) - 1])
def test_a_number_of_rows_that_lies(count: int) -> None:
    """It says the same in every place, and takes no memory for it."""
    published_one = bytearray(published_body([b"x"], ""))
    envelope_one = bytearray(batches_body([Batch(Run.one(b"x"), first=1)], 1 << 20) or b"")
    for body, parse in ((published_one, parse_published), (envelope_one, parse_messages)):
        one, lie = struct.pack("<q", 1), struct.pack("<q", count)
        head = bytes(body[:944]) if parse is parse_messages else bytes(body[:624])
        assert head.count(one) >= 4
        assert parse(head.replace(one, lie) + body[len(head) :]) is None
