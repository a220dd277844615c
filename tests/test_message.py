from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import message
from headrace.errors import UsageError
from headrace.message import (
    MAX_SEQUENCE,
    NOT_A_MESSAGE,
    SCHEMA,
    Batch,
    Message,
    Run,
    map_column,
    merge,
    messages,
    node_id,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
WORDS = st.text(max_size=8)
PAYLOADS = st.lists(st.binary(max_size=40), max_size=12)
COLUMNS = {
    "time": st.integers(0, 2**53),
    "origin": st.sampled_from(["fyrehose", "spp", "link", "spark"]),
    "node": st.integers(0, 2**16 - 1),
    "publisher": WORDS,
    "number": st.none() | INT64,
    "topic": WORDS,
    "attributes": st.dictionaries(WORDS, WORDS, max_size=3),
    "numbers": st.dictionaries(WORDS, st.floats(allow_nan=False), max_size=3),
}


def column(name: str, values: list[object]) -> pa.Array:
    kind = SCHEMA.field(name).type
    return map_column(name, values) if name in ("attributes", "numbers") else pa.array(values, kind)


@st.composite
def batches(draw: st.DrawFn, least: int = 0) -> Batch:
    """Batches with any shared values and any subset of the columns message by message."""
    payloads = draw(st.lists(st.binary(max_size=40), min_size=least, max_size=12))
    count = len(payloads)
    differing = draw(st.sets(st.sampled_from(sorted(COLUMNS))))
    arrays = {
        name: column(name, draw(st.lists(COLUMNS[name], min_size=count, max_size=count)))
        for name in sorted(differing)
    }
    columns = None
    if arrays:
        schema = pa.schema([SCHEMA.field(name) for name in arrays])
        columns = pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema)
    return Batch(
        Run.of(payloads),
        first=draw(st.integers(1, MAX_SEQUENCE - 12)),
        time=draw(COLUMNS["time"]),
        origin=draw(COLUMNS["origin"]),
        node=draw(COLUMNS["node"]),
        publisher=draw(WORDS),
        number=draw(st.none() | st.integers(0, 2**63 - 13)),
        topic=draw(WORDS),
        columns=columns,
    )


@st.composite
def cuts(draw: st.DrawFn, length: int) -> tuple[int, int]:
    begin = draw(st.integers(0, length))
    return begin, draw(st.integers(begin, length))


def reference(batch: Batch) -> list[Message]:
    """What a batch holds, by its definition: a column wins over the shared value."""
    columns = {} if batch.columns is None else batch.columns.to_pydict()
    if "time" in columns:
        columns["time"] = batch.columns.column("time").cast(pa.int64()).to_pylist()
    found = []
    for index, payload in enumerate(list(batch.run)):
        facts = {
            "time": batch.time,
            "origin": batch.origin,
            "node": batch.node,
            "publisher": batch.publisher,
            "number": None if batch.number is None else batch.number + index,
            "topic": batch.topic,
            "attributes": {},
            "numbers": {},
        }
        facts |= {name: values[index] for name, values in columns.items()}
        facts["attributes"], facts["numbers"] = dict(facts["attributes"]), dict(facts["numbers"])
        found.append(Message(seq=batch.first + index, payload=payload, **facts))
    return found


def address(array: np.ndarray) -> int:
    return array.ctypes.data


class TestRun:
    @given(PAYLOADS)
    def test_holds_its_payloads(self, payloads: list[bytes]) -> None:
        run = Run.of(payloads)
        assert list(run) == payloads
        assert [run[index] for index in range(len(run))] == payloads
        assert [run[index - len(run)] for index in range(len(run))] == payloads
        assert len(run) == len(payloads)
        assert run.lengths.tolist() == [len(payload) for payload in payloads]
        assert run.content.tobytes() == b"".join(payloads)
        assert run.size == len(b"".join(payloads))

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_takes_any_bytes(self, kind) -> None:
        assert list(Run.of([kind(b"ab"), kind(b"")])) == [b"ab", b""]

    @pytest.mark.parametrize("index", [3, -4, 100])
    def test_knows_its_ends(self, index: int) -> None:
        with pytest.raises(IndexError):
            Run.of([b"a", b"b", b"c"])[index]

    @given(st.data(), PAYLOADS)
    def test_slices_share_memory(self, data: st.DataObject, payloads: list[bytes]) -> None:
        run = Run.of(payloads)
        begin, end = data.draw(cuts(len(run)))
        part = run.slice(begin, end)
        assert list(part) == payloads[begin:end]
        assert part == Run.of(payloads[begin:end])
        assert part.content.tobytes() == b"".join(payloads[begin:end])
        assert part.size == len(part.content)
        assert address(part.data) == address(run.data)
        again, end = data.draw(cuts(len(part)))
        assert list(part.slice(again, end)) == payloads[begin : begin + len(part)][again:end]

    @given(st.data(), PAYLOADS)
    def test_arrow_and_back_without_copying(self, data: st.DataObject, payloads: list[bytes]) -> None:
        whole = Run.of(payloads)
        begin, end = data.draw(cuts(len(whole)))
        run = whole.slice(begin, end)
        array = run.to_arrow()
        array.validate(full=True)
        assert array.to_pylist() == payloads[begin:end]
        assert array.buffers()[2].address == address(run.data)
        again = Run.from_arrow(array)
        assert again == run
        if len(run):
            assert address(again.data) == address(run.data)
            assert address(again.offsets) == address(run.offsets)

    @given(st.data(), PAYLOADS)
    def test_arrow_arrays_with_an_offset(self, data: st.DataObject, payloads: list[bytes]) -> None:
        array = pa.array(payloads, pa.binary())
        begin, end = data.draw(cuts(len(payloads)))
        run = Run.from_arrow(array.slice(begin, end - begin))
        assert list(run) == payloads[begin:end]
        assert run.to_arrow().to_pylist() == payloads[begin:end]

    def test_an_empty_array_may_lack_its_offset(self) -> None:
        array = pa.Array.from_buffers(pa.binary(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
        assert list(Run.from_arrow(array)) == []
        assert len(Run.from_arrow(array)) == 0

    @pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view(), pa.string()])
    def test_another_layout_is_refused(self, kind: pa.DataType) -> None:
        with pytest.raises(UsageError, match=f"payloads of type {kind}: cast them to binary"):
            Run.from_arrow(pa.array(["abc", "d"]).cast(kind))

    def test_equality_is_that_of_payloads(self) -> None:
        assert Run.of([b"ab", b"c"]) == Run.of([b"x", b"ab", b"c"]).slice(1, 3)
        assert Run.of([b"ab", b"c"]) != Run.of([b"a", b"bc"])
        assert Run.of([b"ab", b"c"]) != Run.of([b"ab"])
        assert Run.of([b"ab"]) != [b"ab"]
        with pytest.raises(TypeError):
            hash(Run.of([]))

    def test_past_32_bit_offsets_it_must_be_split(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(message, "MAX_RUN_BYTES", 4)
        assert len(Run.of([b"ab", b"cd"])) == 2
        with pytest.raises(UsageError, match="a batch of 5 payload bytes: split it, 4 is the most"):
            Run.of([b"ab", b"cde"])


class TestBatch:
    @given(batches())
    def test_arrow_has_the_one_schema(self, batch: Batch) -> None:
        rows = batch.to_arrow()
        rows.validate(full=True)
        assert rows.schema.equals(SCHEMA, check_metadata=True)
        assert rows.num_rows == len(batch)
        assert all(column.null_count == 0 for column in rows.columns[:5] + rows.columns[6:])

    @given(batches())
    def test_iterates_what_it_holds(self, batch: Batch) -> None:
        assert list(batch) == reference(batch)
        assert list(messages(batch.to_arrow())) == reference(batch)

    @given(batches(least=1))
    def test_arrow_and_back(self, batch: Batch) -> None:
        rows = batch.to_arrow()
        again = Batch.from_arrow(rows)
        assert again.to_arrow().equals(rows)
        assert list(again) == reference(batch)
        assert (again.first, again.last) == (batch.first, batch.last)

    @given(st.data(), batches(least=1))
    def test_slices_in_either_shape(self, data: st.DataObject, batch: Batch) -> None:
        begin = data.draw(st.integers(0, len(batch) - 1))
        end = data.draw(st.integers(begin + 1, len(batch)))
        expected = reference(batch)[begin:end]
        part = batch.slice(begin, end)
        part.to_arrow().validate(full=True)
        assert list(part) == expected
        assert list(Batch.from_arrow(part.to_arrow())) == expected
        assert list(Batch.from_arrow(batch.to_arrow().slice(begin, end - begin))) == expected

    @given(batches())
    def test_an_empty_slice(self, batch: Batch) -> None:
        part = batch.slice(len(batch), len(batch))
        part.to_arrow().validate(full=True)
        assert list(part) == []
        assert part.last == part.first - 1

    @given(batches(least=1))
    def test_survives_ipc(self, batch: Batch) -> None:
        file = io.BytesIO()
        with pa.ipc.new_stream(file, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_batch(batch.to_arrow())
        (rows,) = pa.ipc.open_stream(file.getvalue())
        assert list(Batch.from_arrow(rows)) == reference(batch)

    @given(batches(least=1))
    def test_payloads_are_not_copied(self, batch: Batch) -> None:
        rows = batch.to_arrow()
        assert rows.column("payload").buffers()[2].address == address(batch.run.data)
        assert address(Batch.from_arrow(rows).run.data) == address(batch.run.data)
        assert address(batch.slice(1, len(batch)).run.data) == address(batch.run.data)

    def test_what_rows_share_is_said_once(self) -> None:
        batch = Batch(
            Run.of([b"a", b"", b"c"]),
            first=7,
            time=1_700_000_000_000_000,
            origin="spp",
            node=60396,
            publisher="mill",
            number=3,
            topic="level",
        )
        assert Batch.from_arrow(batch.to_arrow()) == batch

    @pytest.mark.parametrize(
        ("numbers", "shared"),
        [
            ([4, 5, 6], True),
            ([None, None], True),
            ([9], True),
            ([4, 6, 7], False),
            ([4, 4], False),
            ([5, 4], False),
            ([4, None], False),
            ([None, 4], False),
            ([2**63 - 1, -(2**63)], False),
        ],
    )
    def test_only_consecutive_numbers_are_shared(self, numbers: list[int | None], shared: bool) -> None:
        schema = pa.schema([SCHEMA.field("number")])
        columns = pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=schema)
        again = Batch.from_arrow(Batch(Run.of([b""] * len(numbers)), first=1, columns=columns).to_arrow())
        assert (again.columns is None) == shared
        assert [one.number for one in again] == numbers

    @pytest.mark.parametrize("name", ["attributes", "numbers"])
    def test_maps_are_kept_if_any_has_an_entry(self, name: str) -> None:
        entry: Mapping[str, object] = {"a": "b"} if name == "attributes" else {"a": 1.5}
        for entries in ([{}, {}], [{}, entry], [entry, {}]):
            columns = pa.RecordBatch.from_arrays(
                [column(name, entries)], schema=pa.schema([SCHEMA.field(name)])
            )
            again = Batch.from_arrow(Batch(Run.of([b"", b""]), first=1, columns=columns).to_arrow())
            assert (again.columns is None) == (not any(entries))
            assert [getattr(one, name) for one in again] == entries

    def test_entries_outside_a_slice_do_not_count(self) -> None:
        columns = pa.RecordBatch.from_arrays(
            [map_column("attributes", [{"a": "b"}, {}, {}, {"c": "d"}])],
            schema=pa.schema([SCHEMA.field("attributes")]),
        )
        rows = Batch(Run.of([b"1", b"2", b"3", b"4"]), first=1, columns=columns).to_arrow()
        middle = Batch.from_arrow(rows.slice(1, 2))
        assert middle.columns is None
        assert (middle.first, list(middle.run)) == (2, [b"2", b"3"])

    def test_numbering_changes_place_and_time_only(self) -> None:
        batch = Batch(Run.of([b"a", b"b"]), origin="fyrehose", publisher="p", number=4, topic="t")
        placed = batch.numbered(op=15, first=10, time=99, node=7)
        assert placed == replace(batch, op=15, first=10, time=99, node=7)
        assert placed.last_op == 16
        assert (len(placed), placed.first, placed.last) == (2, 10, 11)
        assert placed.run is batch.run

    def test_entries_stand_after_a_message(self) -> None:
        entries = Batch(Run.of([b"a", b"b", b"c"]), origin=NOT_A_MESSAGE, topic="hold/x").numbered(5, 3, 9, 7)
        assert entries.is_entries
        assert (entries.first, entries.last, entries.op, entries.last_op) == (3, 3, 5, 7)
        assert [one.seq for one in entries] == entries.to_arrow().column("seq").to_pylist() == [3, 3, 3]
        rest = entries.slice(1, 3)
        assert (rest.first, rest.last, rest.op, list(rest.run)) == (3, 3, 6, [b"b", b"c"])

    def test_numbering_overrules_what_publishers_say_of_it(self) -> None:
        said = Batch(Run.of([b"a", b"b"]), first=1, time=5, node=1, topic="t").to_arrow()
        times = pa.array([5, 6], SCHEMA.field("time").type)
        topics = pa.array(["t", "u"])
        said = said.set_column(1, SCHEMA.field("time"), times).set_column(6, SCHEMA.field("topic"), topics)
        for batch in (Batch.from_arrow(said), Batch.over(said)):
            placed = batch.numbered(op=15, first=10, time=99, node=7)
            assert [(one.seq, one.time, one.node, one.topic) for one in placed] == [
                (10, 99, 7, "t"),
                (11, 99, 7, "u"),
            ]
            assert placed.last_time == 99
        only_times = Batch.from_arrow(said.set_column(6, SCHEMA.field("topic"), pa.array(["t", "t"])))
        assert only_times.numbered(op=15, first=10, time=99, node=7).columns is None

    @given(batches(least=1))
    def test_the_last_time_is_that_of_the_last_message(self, batch: Batch) -> None:
        assert batch.last_time == reference(batch)[-1].time

    @given(st.data(), batches(least=1))
    def test_over_rows_without_looking(self, data: st.DataObject, batch: Batch) -> None:
        begin = data.draw(st.integers(0, len(batch) - 1))
        rows = batch.to_arrow().slice(begin)
        over = Batch.over(rows)
        assert list(over) == reference(batch)[begin:]
        assert over.to_arrow().equals(rows)
        assert address(over.run.data) == address(batch.run.data)

    @given(st.lists(batches(), min_size=1, max_size=4), st.booleans())
    def test_merged_they_are_the_same_messages(self, parts: list[Batch], plain: bool) -> None:
        first = parts[0].first
        following = []
        for part in parts:
            following.append(replace(part, first=first, columns=None if plain else part.columns))
            first += len(part)
        rows = merge(following)
        rows.validate(full=True)
        assert rows.schema.equals(SCHEMA)
        assert list(messages(rows)) == [one for part in following for one in reference(part)]

    def test_merged_past_32_bit_offsets_they_must_be_split(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(message, "MAX_RUN_BYTES", 4)
        parts = [Batch(Run.of([b"ab"]), first=1), Batch(Run.of([b"cde"]), first=2)]
        with pytest.raises(UsageError, match="a batch of 5 payload bytes: split it, 4 is the most"):
            merge(parts)

    def test_no_rows_have_no_place(self) -> None:
        with pytest.raises(UsageError, match="an empty record batch has no first sequence number"):
            Batch.from_arrow(Batch(Run.of([])).to_arrow())


def test_only_number_may_be_null() -> None:
    assert [field.name for field in SCHEMA if field.nullable] == ["number"]


def test_a_message_is_frozen_and_plain() -> None:
    one = Message(seq=1, payload=b"a")
    assert (one.time, one.origin, one.node, one.publisher, one.topic) == (0, "", 0, "", "")
    assert (one.number, one.attributes, one.numbers) == (None, {}, {})
    with pytest.raises(AttributeError):
        one.seq = 2  # type: ignore[misc]


def test_a_node_id_is_made_from_its_name() -> None:
    assert node_id("Ivan") == 60396
    assert node_id("") == 0xE3B0
    assert 0 <= node_id("Мельница") <= 0xFFFF
