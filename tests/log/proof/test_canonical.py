"""Canonical bytes: each field counts, and nothing about batches does."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.log.content import batch, columns, contents, place

from headrace.archive.parquet_file import enveloped
from headrace.log.proof import canonical as module
from headrace.log.proof.canonical import canonical
from headrace.message import Batch, Message, messages

PLAIN: dict[str, Any] = {
    "seq": 7, "time": 1_000, "origin": "tube", "node": 3, "publisher": "p", "number": 5, "topic": "t",
    "attributes": {"colour": "red"}, "numbers": {"speed": 1.5}, "payload": b"hello",
}  # fmt: skip


def plain(message: Message) -> bytes:
    """The canonical bytes of one message, written as the documentation has them."""
    attributes = b"".join(
        struct.pack("<II", len(name.encode()), len(value.encode())) + name.encode() + value.encode()
        for name, value in message.attributes.items()
    )
    numbers = b"".join(
        struct.pack("<Id", len(name.encode()), math.nan if math.isnan(value) else value) + name.encode()
        for name, value in message.numbers.items()
    )
    texts = [text.encode() for text in (message.origin, message.publisher, message.topic)]
    parts = [*texts, attributes, numbers, message.payload]
    numbered = message.number is not None
    head = (message.seq, message.time, message.number or 0, message.node, numbered)
    return struct.pack("<QqqiI6I", *head, *map(len, parts)) + b"".join(parts)


def made(rows: pa.RecordBatch) -> list[bytes]:
    return [
        bytes(data[begin:end]) for data, edges in canonical(rows) for begin, end in itertools.pairwise(edges)
    ]


@given(st.lists(contents(), min_size=1, max_size=4), st.integers(0, 3))
def test_as_documented_whatever_the_batches(drawn: Sequence[Batch], skipped: int) -> None:
    placed: list[Batch] = []
    for each in drawn:
        placed.append(
            place(each, placed[-1].last + 1 if placed else 9, placed[-1].last_time if placed else 0)
        )
    rows = pa.concat_batches([each.to_arrow() for each in placed])
    sliced = rows.slice(min(skipped, rows.num_rows - 1))
    assert made(sliced) == [plain(message) for message in messages(sliced)]


def test_large_rows_are_converted_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = batch(1, *(bytes([place]) * place for place in range(9))).to_arrow()
    whole = made(rows)
    monkeypatch.setattr(module, "MAX_BYTES", 64)
    assert len(canonical(rows)) > 1
    assert made(rows) == whole


@pytest.mark.parametrize(
    "change",
    [
        {"seq": 8}, {"time": 1_001}, {"origin": "spp"}, {"node": 4}, {"publisher": "q"}, {"number": 6},
        {"number": None}, {"topic": "u"}, {"payload": b"hellp"}, {"payload": b"hell"},
        {"attributes": {"colour": "rea"}}, {"attributes": {}}, {"attributes": {"colou": "rred"}},
        {"attributes": {"colour": "red", "": ""}}, {"numbers": {"speed": math.nextafter(1.5, 2)}},
        {"numbers": {}}, {"numbers": {"speed": -1.5}}, {"origin": "tubep", "publisher": ""},
        {"publisher": "pt", "topic": ""}, {"topic": "", "payload": b"thello"},
    ],
)  # fmt: skip
def test_every_field_counts(change: dict[str, Any]) -> None:
    one, other = Message(**PLAIN), Message(**{**PLAIN, **change})
    assert made(_row(one)) == [plain(one)]
    assert made(_row(other)) == [plain(other)]
    assert plain(one) != plain(other)


def test_every_nan_is_the_same_one() -> None:
    odd = struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\xff")[0]
    assert made(_row(Message(**{**PLAIN, "numbers": {"speed": odd}}))) == made(
        _row(Message(**{**PLAIN, "numbers": {"speed": math.nan}}))
    )


def test_an_archives_wider_types_give_the_same_bytes() -> None:
    rows = pa.Table.from_batches([_row(Message(**PLAIN))])
    wide = rows.set_column(6, "topic", rows["topic"].cast(pa.large_string()))
    wide = wide.set_column(9, "payload", rows["payload"].cast(pa.large_binary())).append_column("more", [[1]])
    (batch,) = wide.to_batches()
    assert made(enveloped(batch)) == [plain(Message(**PLAIN))]


def _row(message: Message) -> pa.RecordBatch:
    fields = {name: [getattr(message, name)] for name in PLAIN if name not in ("seq", "payload")}
    return (
        batch(message.seq, message.payload)
        .__class__(batch(message.seq, message.payload).run, first=message.seq, columns=columns(**fields))
        .to_arrow()
    )
