"""Record batch messages by hand: byte for byte what Arrow makes, and never more than what is there."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.link.record_batch import Decoded, Layout

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("t", pa.string())])
LAYOUT = Layout(SCHEMA)

texts = st.lists(st.none() | st.text(max_size=20), min_size=1, max_size=20)


def by_arrow(values: list[str | None]) -> bytes:
    columns = [pa.array(range(len(values)), pa.int64()), pa.array(values, pa.string())]
    return bytes(memoryview(pa.RecordBatch.from_arrays(columns, schema=SCHEMA).serialize()))


def buffers_of(found: Decoded) -> list[memoryview]:
    return [buffer for name in SCHEMA.names for buffer in found.column(name)]


@given(texts)
def test_taken_apart_and_put_together_again(values: list[str | None]) -> None:
    message = by_arrow(values)
    found = LAYOUT.decode(message)
    assert found is not None
    assert found.length == len(values)
    assert found.nulls("t") == values.count(None)
    assert bytes(found.column("n")[1]) == struct.pack(f"<{len(values)}q", *range(len(values)))
    columns = {name: found.column(name) for name in SCHEMA.names}
    assert LAYOUT.encode(found.length, columns, found.nulls("t")) == message


def test_what_is_laid_out_otherwise_is_left_to_arrow() -> None:
    message = by_arrow(["a"])
    other = pa.schema([*SCHEMA, pa.field("more", pa.int32())])
    rows = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.array(["a"]), pa.array([2], pa.int32())], schema=other
    )
    assert LAYOUT.decode(bytes(memoryview(rows.serialize()))) is None
    packed = pa.ipc.IpcWriteOptions(compression="lz4")
    two = pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["a" * 999])], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=packed) as writer:
        writer.write_batch(two)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    compressed = reader.read_next_message().serialize()
    assert LAYOUT.decode(bytes(memoryview(compressed))) is None
    assert LAYOUT.decode(b"") is None
    assert LAYOUT.decode(message[:40]) is None


@pytest.mark.parametrize("size", range(0, len(by_arrow(["abc", None])), 3))
def test_cut_anywhere(size: int) -> None:
    """Whatever is found lies within what is there."""
    message = by_arrow(["abc", None])[:size]
    found = LAYOUT.decode(message)
    assert found is None or sum(map(len, buffers_of(found))) <= size


@given(st.integers(0, len(by_arrow(["abc", None])) - 1), st.integers(1, 255))
def test_any_byte_may_lie(at: int, change: int) -> None:
    message = bytearray(by_arrow(["abc", None]))
    message[at] ^= change
    found = LAYOUT.decode(message)
    if found is not None:
        assert all(len(buffer) <= len(message) for buffer in buffers_of(found))
