from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.log.content import batch, columns, entries, flat, messages_of, operations, place, submitted

from headrace.errors import DamagedError
from headrace.log import frame, frame_file
from headrace.log.frame_file import HEADER_BYTES, READ_BYTES, FileHeader, find_frame
from headrace.log.tail import TailFile, TornEnd
from headrace.message import NOT_A_MESSAGE, Batch

UUID_ = UUID("00112233-4455-6677-8899-aabbccddeeff")


def write(file: TailFile, *appends: Sequence[Batch]) -> list[int]:
    """Append as the log does; return where each append ends."""
    ends = []
    for batches in appends:
        for index, each in enumerate(batches):
            placed = replace(each, op=file.next_op)
            continued = index + 1 < len(batches)
            encoded = file.encode(placed, frame.time_span(each), file.size, continued=continued)
            os.pwrite(file.fd, b"".join(encoded.pieces), file.size)
            file.appended(encoded)
        ends.append(file.size)
    return ends


def create(tmp_path: Path, first: int = 1) -> TailFile:
    return TailFile.create(tmp_path / f"{first:016d}.open", UUID_, first, first, sync=False)


def reopen(file: TailFile) -> tuple[TailFile, TornEnd | None]:
    return TailFile.open(file.path, writable=False)


def everything(file: TailFile) -> list[Batch]:
    batches: list[Batch] = []
    while file.first + sum(map(len, batches)) <= file.last:
        batches += file.read(file.first + sum(map(len, batches)), file.last)
    return batches


class TestFile:
    def test_an_empty_tail(self, tmp_path: Path) -> None:
        file = create(tmp_path, 17)
        assert (file.first, file.last, file.next, file.empty) == (17, 16, 17, True)
        again, torn = reopen(file)
        assert torn is None
        assert (again.uuid, again.first, again.last, again.size) == (UUID_, 17, 16, HEADER_BYTES)
        assert again.first_time() is None
        assert again.seq_at(0) is None

    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        batches = [batch(1, b"a", b"bb", time=5), batch(3, time=7, topic="t"), batch(4, b"x" * 5000, time=7)]
        write(file, batches[:1], batches[1:])
        again, torn = reopen(file)
        assert torn is None
        for each in (file, again):
            assert flat(everything(each)) == flat(batches)
            assert (each.last, each.last_time, each.first_time()) == (4, 7, 5)
            assert each.size == file.path.stat().st_size

    def test_a_salt_is_random_and_never_zero(self, tmp_path: Path) -> None:
        salts = {
            FileHeader.parse(create(tmp_path).path.read_bytes(), tmp_path / "1.open").salt for _ in range(9)
        }
        assert len(salts) == 9
        assert 0 not in salts

    @pytest.mark.parametrize("size", range(HEADER_BYTES))
    def test_a_header_cut_short(self, tmp_path: Path, size: int) -> None:
        file = create(tmp_path, 7)
        os.truncate(file.path, size)
        with pytest.raises(DamagedError, match=r"the file header is cut short at byte 0"):
            reopen(file)

    def test_a_changed_header(self, tmp_path: Path) -> None:
        file = create(tmp_path, 7)
        whole = file.path.read_bytes()
        for bit in range(HEADER_BYTES * 8):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            file.path.write_bytes(flipped)
            with pytest.raises(DamagedError, match="not Headrace's") as caught:
                reopen(file)
            assert (caught.value.path, caught.value.first, caught.value.last) == (str(file.path), 1, None)


class TestReading:
    @pytest.fixture
    def file(self, tmp_path: Path) -> TailFile:
        file = create(tmp_path, 10)
        write(file, *[[batch(10 + 3 * n, *[b"%d" % i for i in range(3)], time=n)] for n in range(20)])
        return file

    @given(data=st.data())
    def test_any_range(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        file = create(tmp_path_factory.mktemp("tail"))
        counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
        batches, following = [], 1
        for count in counts:
            batches.append(batch(following, *[b"x" * following] * count))
            following += count
        write(file, batches)
        first = data.draw(st.integers(1, file.last))
        last = data.draw(st.integers(first, file.last))
        most = data.draw(st.integers(0, file.size + 100))
        read = flat(file.read(first, last, most))
        assert read
        assert read == flat(batches)[first - 1 : first - 1 + len(read)]
        assert read[-1].seq <= last

    def test_about_as_much_as_asked_for(self, file: TailFile) -> None:
        size = (file.size - HEADER_BYTES) // 20
        assert len(file.read(10, 69, 0)) == 1
        assert len(file.read(10, 69, 5 * size)) == 5
        assert len(file.read(10, 69)) == 20

    def test_one_copy_from_the_file_and_none_after_it(self, file: TailFile) -> None:
        batches = file.read(11, 68)
        base = batches[0].run.data.base
        while isinstance(base, np.ndarray):
            base = base.base
        window = np.frombuffer(base, np.uint8)
        assert len(window) == file.size - HEADER_BYTES
        for each in batches:
            assert np.shares_memory(each.run.data, window)
            assert np.shares_memory(each.run.offsets, window)

    def test_windows_cover_every_frame(self, file: TailFile) -> None:
        for size in (1, 100, 1 << 20):
            windows = list(file.windows(size))
            assert flat(frame.decode(w, at, find) for w, places, find in windows for at in places) == flat(
                everything(file)
            )
            assert sum(len(w) for w, _, _ in windows) == file.size - HEADER_BYTES

    def test_what_changes_under_us_is_noticed_and_named(self, file: TailFile) -> None:
        where = file.size - 40
        os.pwrite(os.open(file.path, os.O_WRONLY), b"!", where)
        assert flat(file.read(10, 66))
        for read in (lambda: file.read(67, 69), lambda: list(file.windows())):
            with pytest.raises(DamagedError, match="checksum is wrong") as caught:
                read()
            assert caught.value.offset <= where < file.size
            assert (caught.value.first, caught.value.last) == (67, 69)

    def test_a_file_that_shrinks_under_us_is_noticed(self, file: TailFile) -> None:
        os.truncate(file.path, file.size - 1)
        with pytest.raises(DamagedError, match="cut short"):
            file.read(67, 69)


class TestEntries:
    """Entries take operations and no numbers, wherever they stand."""

    @given(data=st.data())
    def test_like_a_list(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        file = TailFile.create(tmp_path_factory.mktemp("tail") / f"{20:016d}.open", UUID_, 20, 10, sync=False)
        now = 0
        for group in data.draw(st.lists(st.lists(submitted(), min_size=1, max_size=3), max_size=6)):
            for content in group:
                made = place(content, file.next, now)
                write(file, [made])
                now = made.last_time
        known = operations(file.read_ops(20, file.last_op, 1 << 20)) if not file.empty else []
        messages = messages_of(known)
        assert [op for op, _ in known] == list(range(20, file.next_op))
        assert [message.seq for message in messages] == list(range(10, file.next))
        again, torn = reopen(file)
        assert torn is None
        for each in (file, again):
            assert (each.last_op, each.last, each.last_time, each.empty) == (
                19 + len(known),
                9 + len(messages),
                now,
                not known,
            )
            assert each.first_time() == (messages[0].time if messages else None)
            seq = 9
            for op, message in known:
                seq += message.origin != NOT_A_MESSAGE
                assert each.seq_of(op) == seq == message.seq
                if message.origin != NOT_A_MESSAGE:
                    assert each.op_of(seq) == op
            for time in range(now + 2):
                expected = next((message.seq for message in messages if message.time >= time), None)
                assert each.seq_at(time) == expected
            if known:
                first = data.draw(st.integers(20, each.last_op))
                last = data.draw(st.integers(first, each.last_op))
                found = operations(each.read_ops(first, last, data.draw(st.integers(0, 500))))
                assert found
                assert found == known[first - 20 : last - 19][: len(found)]
            if messages:
                begin = data.draw(st.integers(10, each.last))
                end = data.draw(st.integers(begin, each.last))
                read = flat(each.read(begin, end, data.draw(st.integers(0, 500))))
                assert read
                assert read == messages[begin - 10 : end - 9][: len(read)]
                reached, _ = each.reach(begin, data.draw(st.integers(0, 500)))
                assert begin <= reached <= each.last
        last = data.draw(st.integers(19, again.last_op))
        shorter, _ = TailFile.open(file.path, writable=True)
        shorter = shorter.cut_back(last)
        kept = known[: last - 19]
        assert (shorter.last_op, shorter.last) == (last, 9 + len(messages_of(kept)))
        assert (operations(shorter.read_ops(20, last, 1 << 20)) if kept else []) == kept
        assert shorter.last_time == (kept[-1][1].time if kept else 0)
        again, torn = reopen(file)
        assert torn is None
        assert (again.last_op, again.last) == (shorter.last_op, shorter.last)

    def test_a_frame_of_entries_at_another_place(self, tmp_path: Path) -> None:
        """Moved over a message, doubled, or left out: the file is refused, and the messages around them named."""
        file = create(tmp_path)
        write(
            file,
            [batch(1, b"one", topic="a")],
            [entries(1, b"entry", topic="b")],
            [batch(2, b"two", topic="c")],
            [batch(3, b"three", topic="d")],
        )
        data = file.path.read_bytes()
        one, entry, two, three = (
            data[begin:end] for begin, end in itertools.pairwise([*file._columns.offsets, file.size])
        )
        for wrong in ([one, two, entry, three], [one, entry, entry, two, three], [one, two, three]):
            file.path.write_bytes(data[:HEADER_BYTES] + b"".join(wrong))
            with pytest.raises(DamagedError, match="missing or doubled after message 1"):
                reopen(file)

    def test_only_entries(self, tmp_path: Path) -> None:
        file = create(tmp_path, 5)
        write(file, [entries(4, b"a", b"b", time=3)], [entries(4, b"c", time=4)])
        for each in (file, reopen(file)[0]):
            assert (each.first, each.last, each.next, each.last_op, each.empty) == (5, 4, 5, 7, False)
            assert (each.first_time(), each.last_time, each.seq_at(0)) == (None, 4, None)
            assert [each.seq_of(op) for op in (5, 6, 7)] == [4, 4, 4]
            assert [message.payload for _, message in operations(each.read_ops(6, 7))] == [b"b", b"c"]


class TestTimes:
    def test_within_and_between_frames(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        times = [3, 3, 5, 8, 8, 8, 9]
        write(
            file,
            [batch(1, b"", b"", time=3)],
            [batch(3, b"", b"", b"", columns=columns(time=[5, 8, 8]))],
            [batch(6, time=8), batch(7, time=9)],
        )
        for each in (file, reopen(file)[0]):
            assert each.first_time() == 3
            assert each.last_time == 9
            for time in range(11):
                expected = next((n for n, t in enumerate(times, 1) if t >= time), None)
                assert each.seq_at(time) == expected


class TestTornEnds:
    def test_cut_anywhere_only_the_last_append_goes(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        appends = [
            [batch(1, b"a")],
            [batch(2, b"b" * 9, columns=columns(node=[3]))],
            [batch(3, b"c"), batch(4), batch(5, b"ddd")],
        ]
        ends = [HEADER_BYTES, *write(file, *appends)]
        whole = file.path.read_bytes()
        for size in range(HEADER_BYTES, len(whole) + 1):
            file.path.write_bytes(whole[:size])
            again, torn = reopen(file)
            kept = max(n for n, end in enumerate(ends) if end <= size)
            assert flat(everything(again)) == flat(each for batches in appends[:kept] for each in batches)
            assert again.size == ends[kept]
            assert again.last_time == 0
            if size == ends[kept]:
                assert torn is None
            else:
                assert torn is not None
                assert (torn.offset, torn.size) == (ends[kept], size - ends[kept])

    def test_an_append_is_whole_or_not_there(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        write(file, [batch(1, time=4)], [batch(n, time=5) for n in range(2, 7)])
        os.truncate(file.path, file.size - 8)
        again, torn = reopen(file)
        assert torn is not None
        assert (again.next, again.last_time, torn.offset) == (2, 4, again.size)
        # It goes on as if nothing had been.
        write(again, [])
        assert again.seq_at(5) is None

    def test_an_append_that_lacks_just_its_last_frame(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        write(file, [batch(1), batch(2)])
        second = file._columns.offsets[1]
        os.truncate(file.path, second)
        again, torn = reopen(file)
        assert again.empty
        assert torn == TornEnd(HEADER_BYTES, second - HEADER_BYTES, "an append is cut short")

    @pytest.mark.parametrize("filler", [b"\0", b"\xff"])
    def test_what_a_file_system_leaves_instead_of_the_end(self, tmp_path: Path, filler: bytes) -> None:
        file = create(tmp_path)
        write(file, [batch(1, b"kept")])
        with file.path.open("ab") as end:
            end.write(filler * 100_000)
        again, torn = reopen(file)
        assert torn is not None
        assert torn.size == 100_000
        assert flat(everything(again))[0].payload == b"kept"


class TestPayloadsThatLookLikeFrames:
    def test_frames_of_any_other_file_do_not_make_a_torn_end_damage(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        forged = b"".join(
            b"".join(frame.encode(batch(n), salt)[0]) for n in range(1, 20) for salt in (0, 1, 0xF2A7EADE)
        )
        write(file, [batch(1)], [batch(2, *[b"\0" * n + forged for n in range(8)])])
        os.truncate(file.path, file.size - 16)
        again, torn = reopen(file)
        assert torn is not None
        assert again.last == 1

    def test_the_mark_itself_in_a_payload_costs_one_look(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        mark = FileHeader.parse(file.path.read_bytes(), file.path).salt.to_bytes(4, "little")
        write(file, [batch(1)], [batch(2, mark * 5000)])
        os.truncate(file.path, file.size - 16)
        again, torn = reopen(file)
        assert torn is not None
        assert again.last == 1

    def test_a_copied_frame_of_the_same_file_is_out_of_place(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        write(file, [batch(1)], [batch(2)])
        whole = file.path.read_bytes()
        with file.path.open("ab") as end:
            end.write(whole[HEADER_BYTES:])
        with pytest.raises(DamagedError, match="message 1 stands where 3 belongs") as caught:
            reopen(file)
        assert caught.value.offset == len(whole)


class TestDamage:
    def test_a_bad_frame_before_a_good_one(self, tmp_path: Path) -> None:
        file = create(tmp_path, 5)
        ends = write(file, *[[batch(n, b"x" * 30, b"y")] for n in range(5, 15, 2)])
        whole = file.path.read_bytes()
        for offset in range(ends[0], ends[2]):
            flipped = bytearray(whole)
            flipped[offset] ^= 0x10
            file.path.write_bytes(flipped)
            with pytest.raises(DamagedError) as caught:
                reopen(file)
            index = 0 if offset < ends[1] else 1
            assert caught.value.path == str(file.path)
            assert caught.value.offset == ends[index]
            assert (caught.value.first, caught.value.last) == (7 + 2 * index, 8 + 2 * index)

    def test_a_good_frame_is_found_wherever_it_begins(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(frame_file, "READ_BYTES", 64)
        for size in range(0, 200, 8):
            file = create(tmp_path)
            ends = write(file, [batch(1, b"x" * size)], [batch(2, b"good")])
            os.pwrite(file.fd, b"!", HEADER_BYTES + 20)
            with pytest.raises(DamagedError, match="checksum is wrong"):
                reopen(file)
            salt = FileHeader.parse(file.path.read_bytes(), file.path).salt
            found = find_frame(file.fd, salt, HEADER_BYTES + 8)
            assert found is not None
            assert (found.at, found.first) == (ends[0], 2)
            assert find_frame(file.fd, salt, ends[0] + 8) is None


class TestLargeFiles:
    def test_frames_longer_than_a_window(self, tmp_path: Path) -> None:
        file = create(tmp_path)
        sizes = [10, READ_BYTES - 200, READ_BYTES, 3 * READ_BYTES + 5, 1, READ_BYTES // 2, READ_BYTES // 2]
        batches = [batch(n, os.urandom(size)) for n, size in enumerate(sizes, 1)]
        write(file, *[[each] for each in batches])
        again, torn = reopen(file)
        assert torn is None
        assert flat(everything(again)) == flat(batches)
        os.truncate(file.path, file.size - 1)
        again, torn = reopen(file)
        assert again.last == len(sizes) - 1
        assert torn is not None

    def test_any_window_finds_the_same(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = create(tmp_path)
        write(file, *[[batch(n, b"x" * (n * 37 % 400))] for n in range(1, 60)])
        for window in (1, 8, 63, 64, 200, 1000):
            monkeypatch.setattr(frame_file, "READ_BYTES", window)
            again, torn = reopen(file)
            assert torn is None
            assert (again.last, again.size) == (59, file.size)
