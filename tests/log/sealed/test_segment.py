from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.log.content import SOAK, batch, columns, entries, flat, operations

from headrace.errors import DamagedError
from headrace.log.frame_file import FileHeader
from headrace.log.sealed import index
from headrace.log.sealed import segment as sealed
from headrace.log.sealed.entries_file import EntriesFile, EntriesWriter
from headrace.log.sealed.index import SegmentIndex
from headrace.log.sealed.segment import SealedSegment
from headrace.log.sealed.sized_cache import SizedCache
from headrace.log.sealed.writing import SegmentEnd, write_segment
from headrace.message import NOT_A_MESSAGE, SCHEMA, Batch

UUID_ = UUID("00112233-4455-6677-8899-aabbccddeeff")


def content(first: int = 11, batches: int = 4, each: int = 5) -> list[Batch]:
    return [
        batch(
            start,
            *[b"payload %d" % n for n in range(start, start + each)],
            origin="tube",
            topic="t",
            columns=columns(time=list(range(start * 10, (start + each) * 10, 10))),
        )
        for start in range(first, first + batches * each, each)
    ]


def write(directory: Path, batches: list[Batch]) -> SealedSegment:
    """Write a segment whose first operation has the number of its first message."""
    first = batches[0].first + batches[0].is_entries
    header = FileHeader(UUID_, first, first, 0, 7)
    path = directory / f"{first:016d}.arrow"
    rows = [each.to_arrow() for each in batches if not each.is_entries]
    with EntriesWriter.beside(path, header) as beside:
        op = first
        for each in batches:
            if each.is_entries:
                beside.add(structs.replace(each, op=op))
            op += len(each)
        ends = SegmentEnd(op - 1, batches[-1].last, batches[-1].last_time)
        return write_segment(path, header, rows, beside, ends, sync=False)


@pytest.fixture
def segment(tmp_path: Path) -> SealedSegment:
    return write(tmp_path, content())


class TestOtherReaders:
    """A sealed segment is an Arrow file that needs nothing of ours."""

    def test_pyarrow(self, segment: SealedSegment) -> None:
        with pa.OSFile(str(segment.path)) as file, pa.ipc.open_file(file) as reader:
            assert reader.schema.equals(SCHEMA)
            assert reader.schema.metadata == {b"headrace.log": str(UUID_).encode()}
            assert reader.num_record_batches == 4
            table = reader.read_all()
        assert table.column("seq").to_pylist() == list(range(11, 31))
        assert table.column("payload").to_pylist() == [b"payload %d" % n for n in range(11, 31)]
        assert table.column("time").cast(pa.int64()).to_pylist() == list(range(110, 310, 10))

    def test_pyarrow_datasets(self, segment: SealedSegment) -> None:
        write(segment.path.parent, content(31))
        files = sorted(map(str, segment.path.parent.glob("*.arrow")))
        assert pa.dataset.dataset(files, format="ipc").count_rows() == 40

    def test_polars(self, segment: SealedSegment) -> None:
        frame = pl.scan_ipc(segment.path).filter(pl.col("seq") > 25).select("seq", "topic").collect()
        assert frame.to_dict(as_series=False) == {"seq": [26, 27, 28, 29, 30], "topic": ["t"] * 5}

    def test_duckdb(self, segment: SealedSegment) -> None:
        messages = pa.dataset.dataset(segment.path, format="ipc")
        relation = duckdb.from_arrow(messages)
        assert relation.aggregate("count(*), min(seq), max(seq)").fetchall() == [(20, 11, 30)]


class TestReading:
    @given(data=st.data())
    def test_any_range(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        segment = self.segment(tmp_path_factory)
        first = data.draw(st.integers(11, 30))
        last = data.draw(st.integers(first, 30))
        most = data.draw(st.integers(0, 300))
        batches = segment.read(first, last, most)
        read = flat(batches)
        assert read == flat(content())[first - 11 : first - 11 + len(read)]
        assert read
        assert read[-1].seq <= last
        assert len(read) == 1 or sum(each.run.size for each in batches) <= most

    kept: SealedSegment | None = None

    def segment(self, factory: pytest.TempPathFactory) -> SealedSegment:
        if TestReading.kept is None:
            TestReading.kept = write(factory.mktemp("sealed"), content())
        return TestReading.kept

    def test_again_after_opening(self, segment: SealedSegment) -> None:
        again = SealedSegment.open(segment.path)
        assert flat(again.read(11, 30)) == flat(content())
        assert (again.first, again.last, again.uuid, again.size) == (
            11,
            30,
            UUID_,
            segment.path.stat().st_size + segment.topics_path.stat().st_size,
        )
        assert (again.first_time(), again.last_time) == (110, 300)
        assert list(again.faults()) == []

    def test_times(self, segment: SealedSegment) -> None:
        for time in range(100, 312):
            expected = next((n for n in range(11, 31) if n * 10 >= time), None)
            assert segment.seq_at(time) == expected

    def test_messages_are_the_files_own_bytes(self, segment: SealedSegment) -> None:
        data = segment.path.read_bytes()
        for number, entry in enumerate(segment.index.batches):
            message = segment.message(number)
            assert message.tobytes() == data[int(entry["offset"]) :][: int(entry["length"])]
            rows = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(message)), SCHEMA)
            assert rows.num_rows == 5

    def test_what_was_unpacked_is_shared_and_not_copied(self, segment: SealedSegment) -> None:
        [one], [two] = segment.read(11, 12), segment.read(13, 15)
        assert np.shares_memory(one.run.data, two.run.data)
        assert one.run.data.ctypes.data == segment.rows(0).column("payload").buffers()[2].address

    def test_memory_is_bounded_whatever_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        segment = write(tmp_path, content(batches=20))
        size = max(segment.rows(n).get_total_buffer_size() for n in range(20))
        monkeypatch.setattr(sealed, "_rows_cache", SizedCache(5 * size))
        for number in range(20):
            segment.rows(number)
            assert sealed._rows_cache._bytes <= 5 * size
        assert segment.rows(19) is segment.rows(19)
        assert sealed._rows_cache._bytes == sum(kept for _, kept in sealed._rows_cache._kept.values())

    def test_a_read_is_bounded_where_payloads_are_not_what_takes_the_room(self, tmp_path: Path) -> None:
        each = [batch(start, *[b""] * 100, topic="x" * 1000) for start in range(1, 2001, 100)]
        segment = write(tmp_path, each)
        at = 1
        while at <= 2000:
            read = segment.read(at, 2000, 20_000)
            assert read[0].first == at
            assert 1 <= read[-1].last - at + 1 <= 100
            at = read[-1].last + 1

    def test_no_descriptor_stays_open(self, segment: SealedSegment) -> None:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(4):
            SealedSegment.open(segment.path).rows(number)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before

    def test_a_reader_keeps_what_it_has(self, segment: SealedSegment) -> None:
        [read] = segment.read(11, 15)
        segment.path.unlink()
        assert flat([read]) == flat(content()[:1])
        with pytest.raises(FileNotFoundError):
            segment.read(16, 20)


class TestDamage:
    def test_a_record_batch(self, segment: SealedSegment) -> None:
        data = segment.path.read_bytes()
        entry = segment.index.batches[2]
        begin, length = int(entry["offset"]), int(entry["length"])
        for offset in range(begin, begin + length, 1 if SOAK else 11):
            flipped = bytearray(data)
            flipped[offset] ^= 4
            segment.path.write_bytes(flipped)
            again = SealedSegment.open(segment.path)
            assert len(flat(again.read(11, 20))) == 10
            with pytest.raises(DamagedError, match="a record batch's checksum is wrong") as caught:
                again.read(21, 25)
            error = caught.value
            assert (error.path, error.offset, error.first, error.last) == (str(segment.path), begin, 21, 25)
            assert [(number, fault.first) for number, fault in again.faults()] == [(2, 21)]

    def test_the_bytes_around(self, segment: SealedSegment) -> None:
        data = segment.path.read_bytes()
        first, last = segment.index.batches[0], segment.index.batches[-1]
        inside = range(int(first["offset"]), int(last["offset"] + last["length"]))
        for offset in sorted(set(range(len(data))) - set(inside))[:: 1 if SOAK else 7]:
            flipped = bytearray(data)
            flipped[offset] ^= 1
            segment.path.write_bytes(flipped)
            [(number, fault)] = segment.faults()
            assert number is None
            assert "around the record batches" in fault.reason
            assert (fault.first, fault.last) == (11, 30)

    def test_another_size(self, segment: SealedSegment) -> None:
        data = segment.path.read_bytes()
        for size in (*range(0, len(data), 37), len(data) - 1, len(data) + 1):
            segment.path.write_bytes((data + b"\0")[:size])
            said = f"the file has {size} bytes where {len(data)} were written"
            with pytest.raises(DamagedError, match=said) as caught:
                SealedSegment.open(segment.path)
            assert caught.value.offset == min(size, len(data))
            # Nor is a file mapped that was cut after it was opened: reading past its end would kill the process.
            with pytest.raises(DamagedError, match=said):
                segment.message(0)

    def test_a_cut_file_still_gives_what_is_whole(self, segment: SealedSegment) -> None:
        entry = segment.index.batches[2]
        os.truncate(segment.path, int(entry["offset"]) + 20)
        assert [number for number, _ in segment.faults()] == [None, 2, 3]
        assert segment.salvage(1).column("seq").to_pylist() == [16, 17, 18, 19, 20]
        with pytest.raises(DamagedError):
            segment.salvage(2)

    def test_numbers_and_times_are_checked_too(self, tmp_path: Path) -> None:
        wrong = content()
        wrong[1] = content(first=17, batches=1)[0]
        segment = write(tmp_path, wrong)
        assert [(number, fault.reason) for number, fault in segment.faults()] == [
            (1, "sequence numbers do not follow")
        ]
        late = content()
        late[1] = batch(16, *[b""] * 5, time=20)
        segment = write(tmp_path, late)
        assert [(number, fault.reason) for number, fault in segment.faults()] == [(1, "times decrease")]


class TestIndex:
    def test_it_says_what_is_where(self, segment: SealedSegment) -> None:
        index = SegmentIndex.read(segment.path.with_suffix(".index"))
        assert (index.uuid, index.first, index.last) == (UUID_, 11, 30)
        assert index.batches["first"].tolist() == [11, 16, 21, 26]
        assert index.batches["count"].tolist() == [5, 5, 5, 5]
        assert index.batches["first_time"].tolist() == [110, 160, 210, 260]
        assert index.batches["last_time"].tolist() == [150, 200, 250, 300]

    def test_every_bit_and_every_length(self, segment: SealedSegment) -> None:
        path = segment.path.with_suffix(".index")
        data = path.read_bytes()
        for bit in range(0, len(data) * 8, 1 if SOAK else 5):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            with pytest.raises(DamagedError, match="does not match its checksum") as caught:
                SegmentIndex.read(path)
            assert (caught.value.path, caught.value.first) == (str(path), 1)
        for size in range(0, len(data), 1 if SOAK else 3):
            path.write_bytes(data[:size])
            with pytest.raises(DamagedError):
                SegmentIndex.read(path)

    def test_a_count_that_is_not_there_takes_no_memory(self, segment: SealedSegment) -> None:
        path = segment.path.with_suffix(".index")
        data = bytearray(path.read_bytes()[:-4])
        struct.pack_into("<I", data, index._HEAD.size - 4, 1 << 31)
        path.write_bytes(data + index.crc32c(bytes(data)).to_bytes(4, "little"))
        with pytest.raises(DamagedError, match="unknown form"):
            SegmentIndex.read(path)

    def test_it_can_be_rebuilt_from_a_whole_file(self, segment: SealedSegment) -> None:
        rebuilt = SegmentIndex.rebuild(segment.path, UUID_)
        assert rebuilt.batches.tobytes() == segment.index.batches.tobytes()
        assert (rebuilt.first, rebuilt.last) == (segment.first, segment.last)
        assert (rebuilt.file_size, rebuilt.around_crc) == (segment.index.file_size, segment.index.around_crc)

    def test_it_is_not_rebuilt_from_less(self, segment: SealedSegment) -> None:
        data = segment.path.read_bytes()
        for size in range(0, len(data), 1 if SOAK else 31):
            segment.path.write_bytes(data[:size])
            with pytest.raises(DamagedError, match="Arrow cannot read it"):
                SegmentIndex.rebuild(segment.path, UUID_)

    @pytest.mark.parametrize("bit", range(8))
    def test_a_flipped_bit_is_refused_or_rebuilt_and_never_worse(
        self, segment: SealedSegment, bit: int
    ) -> None:
        data = segment.path.read_bytes()
        for offset in range(bit, len(data), 8 if SOAK else 61):
            flipped = bytearray(data)
            flipped[offset] ^= 1 << bit
            segment.path.write_bytes(flipped)
            try:
                index = SegmentIndex.rebuild(segment.path, UUID_)
            except DamagedError:
                continue
            # Nothing vouches for the content, but numbers, order and places are right.
            assert (index.first, index.last) == (11, 30)
            assert len(flat(SealedSegment(segment.path, index).read(11, 30, 1 << 20))) == 20

    def test_it_is_not_rebuilt_for_the_wrong_messages(self, segment: SealedSegment, tmp_path: Path) -> None:
        foreign = tmp_path / f"{1:016d}.arrow"
        with pa.OSFile(str(foreign), "wb") as file, pa.ipc.new_file(file, pa.schema({"x": pa.int8()})):
            pass
        with pytest.raises(DamagedError, match="another schema"):
            SegmentIndex.rebuild(foreign, UUID_)
        with pa.OSFile(str(foreign), "wb") as file, pa.ipc.new_file(file, SCHEMA):
            pass
        with pytest.raises(DamagedError, match="no record batch in it, and no entry beside it"):
            SegmentIndex.rebuild(foreign, UUID_)
        late = content(first=1)
        late[2] = batch(11, *[b""] * 5, time=0)
        segment = write(tmp_path, late)
        with pytest.raises(DamagedError, match="times decrease"):
            SegmentIndex.rebuild(segment.path, UUID_)


class TestEntries:
    """Messages 11 to 30 with entries before, between, after and several in a row."""

    @pytest.fixture
    def batches(self) -> list[Batch]:
        made = content()
        return [
            entries(10, b"before", time=100, topic="e"),
            made[0],
            entries(15, b"a", b"b", time=150, topic="e"),
            entries(15, b"c", time=155, topic="f"),
            *made[1:3],
            entries(25, b"", time=250),
            made[3],
            entries(30, b"end", b"", b"", time=301),
            entries(30, b"of all", time=302),
        ]

    @pytest.fixture
    def segment(self, tmp_path: Path, batches: list[Batch]) -> SealedSegment:
        return write(tmp_path, batches)

    def test_they_are_in_their_places(self, segment: SealedSegment, batches: list[Batch]) -> None:
        again = SealedSegment.open(segment.path)
        assert list(again.faults()) == []
        assert (again.first_op, again.last_op, again.first, again.last) == (11, 39, 11, 30)
        assert (again.first_time(), again.last_time) == (110, 302)
        files = (segment.path, segment.entries_path, segment.topics_path)
        assert again.size == sum(path.stat().st_size for path in files)
        whole = [(11 + place, message) for place, message in enumerate(flat(batches))]
        for first in range(11, 40):
            for last in range(first, 40):
                assert operations(again.read_ops(first, last)) == whole[first - 11 : last - 10]
            assert again.seq_of(first) == whole[first - 11][1].seq
        for op, message in whole:
            if message.origin != NOT_A_MESSAGE:
                assert again.op_of(message.seq) == op

    def test_who_reads_messages_needs_none_of_them(self, segment: SealedSegment) -> None:
        segment.entries_path.unlink()
        assert flat(segment.read(11, 30)) == flat(content())
        assert segment.seq_at(200) == 20
        with pa.OSFile(str(segment.path)) as file, pa.ipc.open_file(file) as reader:
            assert reader.read_all().column("seq").to_pylist() == list(range(11, 31))

    def test_every_bit_and_every_length(self, segment: SealedSegment) -> None:
        path = segment.entries_path
        data = path.read_bytes()
        for bit in range(0, len(data) * 8, 1 if SOAK else 7):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            again = SealedSegment.open(segment.path)
            with pytest.raises(DamagedError) as caught:
                again.read_ops(11, 39)
            assert caught.value.path == str(path)
            assert caught.value.last == caught.value.first - 1
            [(number, fault)] = again.faults()
            assert (number, fault.path) == (None, str(path))
        for size in range(0, len(data), 1 if SOAK else 3):
            path.write_bytes(data[:size])
            said = (
                f"the file has {size} bytes where {len(data)} were written at byte {size}; entries of the log"
            )
            with pytest.raises(DamagedError, match=said):
                SealedSegment.open(segment.path)

    @pytest.mark.parametrize("what", ["doubled", "left out"])
    def test_an_entry_too_many_or_too_few(
        self, segment: SealedSegment, tmp_path: Path, batches: list[Batch], what: str
    ) -> None:
        """Under good checksums."""
        wrong = [*batches[:3], batches[2], *batches[3:]] if what == "doubled" else batches[:2] + batches[3:]
        (tmp_path / "other").mkdir()
        data = write(tmp_path / "other", wrong).entries_path.read_bytes()
        segment.entries_path.write_bytes(data)
        again = SealedSegment(segment.path, replace(segment.index, entries_size=len(data)))
        [(_, fault)] = again.faults()
        assert "its entries do not match the segment's index" in fault.reason
        with pytest.raises(DamagedError):
            again.read_ops(11, 39)

    def test_frames_out_of_place(self, segment: SealedSegment) -> None:
        """A frame that is copied, or cut out, under good checksums."""
        path = segment.entries_path
        data = path.read_bytes()
        found = EntriesFile(path)
        edges = found._offsets
        for wrong in (
            data + data[edges[1] : edges[2]],
            data[: edges[1]] + data[edges[2] :],
            data[: edges[1]] + data[edges[2] : edges[3]] + data[edges[1] : edges[2]] + data[edges[3] :],
        ):
            path.write_bytes(wrong)
            with pytest.raises(DamagedError, match="missing or doubled after message 15"):
                EntriesFile(path)
            assert len(list(segment.faults())) == 1

    def test_only_entries(self, tmp_path: Path) -> None:
        written = [entries(6, b"a", b"b", time=3), entries(6, b"c", time=4)]
        segment = write(tmp_path, written)
        again = SealedSegment.open(segment.path)
        assert (again.first, again.last, again.first_op, again.last_op) == (7, 6, 7, 9)
        assert (again.first_time(), again.last_time, again.seq_at(0)) == (None, 4, None)
        assert flat(again.read_ops(7, 9)) == flat(written)
        assert [again.seq_of(op) for op in (7, 8, 9)] == [6, 6, 6]
        assert list(again.faults()) == []
        with pa.OSFile(str(segment.path)) as file, pa.ipc.open_file(file) as reader:
            assert (reader.num_record_batches, reader.schema.equals(SCHEMA)) == (0, True)
        segment.path.with_suffix(".index").unlink()
        rebuilt = SegmentIndex.rebuild(segment.path, UUID_)
        assert (rebuilt.first, rebuilt.last, rebuilt.last_op, rebuilt.last_time) == (7, 6, 9, 4)

    def test_those_that_a_repair_lost(self, segment: SealedSegment) -> None:
        segment.entries_path.unlink()
        replace(segment.index, entries_size=index.ENTRIES_LOST).write(
            segment.path.with_suffix(".index"), sync=False
        )
        again = SealedSegment.open(segment.path)
        assert list(again.faults()) == []
        assert flat(again.read(11, 30)) == flat(content())
        assert (again.size - again.topics_size, again.entries_size) == (segment.path.stat().st_size, 0)
        assert again.seq_of(39) == 30
        for use in (lambda: again.read_ops(11, 39), lambda: again.seq_of(20), lambda: again.op_of(11)):
            with pytest.raises(DamagedError, match="a repair kept the messages without them"):
                use()
