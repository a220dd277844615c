from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.log.content import batch, columns, flat, operations, place, submitted
from tests.log.test_tail import create, write

from headrace.errors import DamagedError
from headrace.log.sealed import sealing, writing
from headrace.log.sealed.index import SegmentIndex
from headrace.log.sealed.sealing import record_batches, seal
from headrace.message import SCHEMA, Batch, messages


def read_back(rows: list[pa.RecordBatch]) -> list[Any]:
    return flat(messages(each) for each in rows)


def no_entries(_: Batch) -> None:
    raise AssertionError("there are none")


class TestRecordBatches:
    @given(st.lists(submitted(), min_size=1, max_size=12), st.integers(1, 20), st.integers(0, 100))
    def test_the_same_messages(
        self, tmp_path_factory: pytest.TempPathFactory, drawn: list[Batch], most_rows: int, most_bytes: int
    ) -> None:
        file = create(tmp_path_factory.mktemp("sealing"))
        batches: list[Batch] = []
        for content in drawn:
            now = batches[-1].last_time if batches else 0
            batches.append(place(content, batches[-1].last + 1 if batches else 1, now))
        write(file, batches)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sealing, "ROWS", most_rows)
            patch.setattr(sealing, "BYTES", most_bytes)
            beside: list[Batch] = []
            rows = list(record_batches(file, beside.append))
        assert all(each.schema.equals(SCHEMA) for each in rows)
        for each in rows:
            each.validate(full=True)
            assert each.num_rows <= most_rows
            assert each.num_rows == 1 or each.column("payload").nbytes - 4 * (each.num_rows + 1) <= most_bytes
        assert read_back(rows) == flat(each for each in batches if not each.is_entries)
        assert flat(beside) == flat(each for each in batches if each.is_entries)

    @given(st.lists(submitted(), min_size=1, max_size=12), st.integers(1, 20))
    def test_the_same_operations(
        self, tmp_path_factory: pytest.TempPathFactory, drawn: list[Batch], most_rows: int
    ) -> None:
        """A sealed segment gives its messages and entries as the tail did, wherever entries stand."""
        file = create(tmp_path_factory.mktemp("sealing"))
        batches: list[Batch] = []
        for content in drawn:
            now = batches[-1].last_time if batches else 0
            batches.append(place(content, file.next, now))
            write(file, [batches[-1]])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sealing, "ROWS", most_rows)
            segment = seal(file, file.path.with_suffix(".arrow"), sync=False)
        assert list(segment.faults()) == []
        ends = [
            (each.first_op, each.last_op, each.first, each.last, each.last_time) for each in (file, segment)
        ]
        assert ends[0] == ends[1]
        assert segment.entries_path.exists() == any(each.is_entries for each in batches)
        for first in range(1, file.last_op + 1):
            assert segment.seq_of(first) == file.seq_of(first)
            for most in (0, 100, 1 << 20):
                found = operations(segment.read_ops(first, file.last_op, most))
                assert found == operations(file.read_ops(first, file.last_op, 1 << 20))[: len(found)]
                assert found
        for seq in range(1, file.last + 1):
            assert segment.op_of(seq) == file.op_of(seq)
        again = SegmentIndex.rebuild(segment.path, segment.uuid)
        again.write(segment.path.with_suffix(".again"), sync=False)
        assert (
            segment.path.with_suffix(".again").read_bytes() == segment.path.with_suffix(".index").read_bytes()
        )

    def test_small_frames_become_large_batches(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        write(file, [batch(n, b"%d" % n, time=n, number=n * 3) for n in range(1, 40_001)])
        rows = list(record_batches(file, no_entries))
        assert [each.num_rows for each in rows] == [16_384, 16_384, 40_000 - 2 * 16_384]
        whole = pa.Table.from_batches(rows)
        assert whole.column("seq").to_pylist() == list(range(1, 40_001))
        assert whole.column("number").to_pylist() == list(range(3, 120_001, 3))
        assert whole.column("payload").to_pylist() == [b"%d" % n for n in range(1, 40_001)]

    def test_a_large_frame_is_split_by_rows_and_by_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sealing, "ROWS", 10)
        monkeypatch.setattr(sealing, "BYTES", 1000)
        file = create(tmp_path)
        written = batch(1, *[b"x"] * 25, *[b"y" * 400] * 6, b"z" * 5000, b"")
        write(file, [written])
        rows = list(record_batches(file, no_entries))
        assert [each.num_rows for each in rows] == [10, 10, 7, 2, 2, 1, 1]
        assert read_back(rows) == flat([written])

    def test_what_frames_share_is_counted_for_each_message(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        long = [batch(first, *[b""] * 700, topic="x" * 65_535) for first in (1, 701)]
        write(file, [*long, *[batch(first, b"", b"", topic="y" * 65_535) for first in range(1401, 2001, 2)]])
        rows = list(record_batches(file, no_entries))
        assert all(each.column("topic").nbytes <= (16 << 20) + (1 << 16) for each in rows)
        assert [row for each in rows for row in each.column("seq").to_pylist()] == list(range(1, 2001))

    def test_a_few_frames_with_columns_among_many_without(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        batches = [
            batch(n, b"x", topic="plain")
            if n % 3
            else batch(n, b"y", topic="lost", columns=columns(topic=[str(n)]))
            for n in range(1, 20)
        ]
        batches[7] = replace(batches[7], columns=columns(attributes=[{"a": "b"}]))
        write(file, batches)
        [rows] = record_batches(file, no_entries)
        assert read_back([rows]) == flat(batches)


class TestSeal:
    def test_numbers_that_are_nan_can_be_sealed(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        values = [{"a": float("nan")}, {"b": -0.0, "c": float("inf")}]
        write(file, [batch(1, b"x", b"y", columns=columns(numbers=values))])
        segment = seal(file, file.path.with_suffix(".arrow"), sync=False)
        assert flat(segment.read(1, 2)) == flat(file.read(1, 2))

    def test_what_reads_back_differently_never_appears(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = create(tmp_path)
        write(file, [batch(1, b"right")])
        monkeypatch.setattr(writing, "unpack", lambda _: batch(1, b"wrong").to_arrow())
        with pytest.raises(DamagedError, match="differs from what was written") as caught:
            seal(file, file.path.with_suffix(".arrow"), sync=False)
        assert (caught.value.first, caught.value.last) == (1, 1)
        assert [path.name for path in tmp_path.iterdir()] == [file.path.name]

    def test_a_tail_that_is_damaged_meanwhile_is_not_sealed(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        write(file, [batch(1, b"right")], [batch(2, b"right")])
        data = file.path.read_bytes()
        file.path.write_bytes(data.replace(b"right", b"wrong", 1))
        with pytest.raises(DamagedError, match="checksum is wrong"):
            seal(file, file.path.with_suffix(".arrow"), sync=False)
        assert [path.name for path in tmp_path.iterdir()] == [file.path.name]

    def test_payloads_that_do_not_compress(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        noise = np.random.default_rng(7).bytes(3 << 20)
        write(file, [batch(n, noise[n::3]) for n in range(1, 4)])
        segment = seal(file, file.path.with_suffix(".arrow"), sync=True)
        assert flat(segment.read(1, 3, 1 << 30)) == flat(file.read(1, 3, 1 << 30))
