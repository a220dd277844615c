"""Every byte of a small log, changed and cut off: recovered or refused as promised, never wrong, never a crash.

Each kind of file is damaged in every byte, in two of its bits (the Arrow file in one; in a soak, all in every bit), and
cut at every length; and every bit of the Arrow file's rows is changed under a log that is open. Whatever then opens
must hold nothing but what was written under those numbers; whatever is refused must name the file, the place and the
messages.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.log.content import (
    SOAK,
    append,
    append_entries,
    batch,
    check_operations,
    columns,
    content_of,
    entries,
    flat,
    messages_of,
    operations,
    restore,
    seal_all,
)

from headrace.errors import DamagedError
from headrace.log import Log
from headrace.log.damage.verify import Progress, verify
from headrace.log.frame_file import HEADER_BYTES
from headrace.log.sealed import sealing
from headrace.log.sealed.index import SegmentIndex
from headrace.log.tail import TailFile
from headrace.message import Message

NAME = "{:016d}.{}".format
TAIL = NAME(17, "open")


@dataclass(frozen=True)
class Small:
    """Messages 1 to 18: two sealed segments of two record batches each, an open tail of five appends, two snapshots.

    Entries stand before the first message, between messages, several in a row, at the ends of files, and within
    appends.
    """

    directory: Path
    content: dict[str, bytes]
    known: list[tuple[int, Message]]
    appends: list[tuple[int, int]]
    """Where each append to the tail begins, and with which operation; at last, where the next would."""

    @property
    def messages(self) -> list[Message]:
        return messages_of(self.known)

    def damaged(self, name: str, content: bytes) -> Path:
        """The directory with one file changed."""
        restore(self.directory, self.content | {name: content})
        return self.directory / name

    def check(self, log: Log, last: int | None = None) -> None:
        """The log holds what was written, up to an operation."""
        known = self.known[:last]
        assert (log.tail_op, log.tail) == (len(known), len(messages_of(known)))
        assert flat(log.scan(1)) == messages_of(known)
        check_operations(log, known)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    directory = tmp_path_factory.mktemp("small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "ROWS", 3)
        log = Log.open(directory, fsync="never")
        append_entries(log, b"first of all", time=9, topic="services/a")
        append(log, b"one", b"two", b"", b"four", b"five", b"six", time=10, origin="tube", topic="a")
        append_entries(log, b"end", topic="holds/h")
        seal_all(log)
        log.write_snapshot(8, 6, {"services": b"at six"})
        append(log, *[b"%d" % n for n in range(7, 10)], time=20, columns=columns(node=list(range(3))))
        append_entries(log, b"in", b"between", topic="holds/h")
        append(log, *[b"%d" % n for n in range(10, 13)], time=20, columns=columns(node=list(range(3))))
        seal_all(log)
        log.write_snapshot(16, 12, {"services": b"at twelve", "holds": b""})
    tail = log.segments[-1]
    assert isinstance(tail, TailFile)
    appends = []
    for batches in (
        [batch(13, b"thirteen", time=30)],
        [
            batch(14, b"x", time=30, columns=columns(attributes=[{"k": "v"}])),
            entries(14, b"tied", time=30, topic="holds/t"),
            batch(15, b"", time=31),
        ],
        [entries(15, b"a", b"b", time=31, topic="holds/h")],
        [batch(16, b"sixteen", time=31, number=7)],
        [
            batch(17, b"seven", time=40, publisher="p"),
            batch(18, b"teen", time=41),
            entries(18, b"last", time=41, topic="holds/l"),
        ],
    ):
        appends.append((tail.size, log.tail_op + 1))
        log.append(batches)
    log.commit(log.tail_op)
    appends.append((tail.size, log.tail_op + 1))
    known = operations(log.scan_ops(1))
    log.close()
    return Small(directory, content_of(directory), known, appends)


def flips(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The content with one bit changed, and which byte that is in."""
    for offset in range(len(content)):
        for bit in range(8) if SOAK else (offset * 5 % 8, (offset * 5 + 3) % 8):
            changed = bytearray(content)
            changed[offset] ^= 1 << bit
            yield offset, bytes(changed)


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[Log]:
    log = Log.open(directory, fsync="never")
    try:
        yield log
    finally:
        log.close()


def findings(directory: Path) -> list[str]:
    return [Path(each.path).name for each in verify(directory) if not isinstance(each, Progress)]


def refusal(directory: Path) -> DamagedError:
    with pytest.raises(DamagedError) as caught:
        Log.open(directory)
    return caught.value


def test_what_is_not_damaged(small: Small) -> None:
    restore(small.directory, small.content)
    assert findings(small.directory) == []
    with opened(small.directory) as log:
        small.check(log)
        assert log.snapshot is not None
        assert (log.snapshot.op, log.snapshot.seq, log.damaged_snapshots, log.torn) == (16, 12, [], None)
    assert sum(map(len, small.content.values())) < 16_000


class TestOpenTail:
    def test_every_byte_changed(self, small: Small) -> None:
        whole = small.content[TAIL]
        tail, _ = TailFile.open(small.damaged(TAIL, whole), writable=False)
        frames = [0, *tail._columns.offsets, tail.size]
        places = [*tail._columns.seqs]
        append, op = small.appends[-2]
        for offset, changed in flips(whole):
            path = small.damaged(TAIL, changed)
            frame = max(n for n, begin in enumerate(frames) if begin <= offset)
            if frame == len(frames) - 2:
                # The last frame could be torn; with it goes the rest of its append.
                with opened(small.directory) as log:
                    assert log.torn is not None
                    assert (log.torn.offset, log.torn.size) == (append, len(whole) - append)
                    small.check(log, op - 1)
                continue
            error = refusal(small.directory)
            assert (error.path, error.offset) == (str(path), frames[frame])
            if not frame:
                assert (error.first, error.last) == (13, None)
            elif tail._columns.is_messages(frame - 1):
                first = places[frame - 1]
                assert (error.first, error.last) == (first, first + tail._rows(tail._columns, frame - 1) - 1)
            else:
                # No message is in doubt, only entries after this one.
                after = places[frame - 1]
                assert (error.first, error.last) == (after + 1, after)
                assert f"; entries of the log after message {after} are in doubt" in str(error)

    @pytest.mark.slow
    def test_every_length(self, small: Small) -> None:
        whole = small.content[TAIL]
        for size in range(len(whole)):
            small.damaged(TAIL, whole[:size])
            with opened(small.directory) as log:
                kept = [(begin, op) for begin, op in small.appends if begin <= size]
                begin, op = kept[-1] if kept else (0, 17)
                small.check(log, op - 1)
                if size == begin and size:
                    assert log.torn is None
                else:
                    assert log.torn is not None
                    assert (log.torn.offset, log.torn.size) == (begin, size - begin)
                if size % 8:
                    continue
                append_entries(log, b"next")
                append(log, b"next")
                assert log.tail_op == op + 1
            with opened(small.directory) as log:
                assert log.torn is None
                assert log.head_op == op + 1

    def test_bytes_behind_the_end(self, small: Small) -> None:
        whole = small.content[TAIL]
        for left in (b"\0", bytes(100), b"\xff" * 100, whole[:HEADER_BYTES], whole[40:80]):
            small.damaged(TAIL, whole + left)
            with opened(small.directory) as log:
                assert log.torn is not None
                assert log.torn.size == len(left)
                small.check(log)

    def test_it_is_found_by_those_who_only_look(self, small: Small) -> None:
        for offset, changed in itertools.islice(flips(small.content[TAIL]), 0, None, 11):
            small.damaged(TAIL, changed)
            # Frames that refer to a label in the damaged one are found as well.
            assert set(findings(small.directory)) == {TAIL}, offset


class TestSealedSegment:
    ARROW = NAME(9, "arrow")
    INDEX = NAME(9, "index")
    ENTRIES = NAME(9, "entries")

    @pytest.mark.slow
    def test_every_byte_changed(self, small: Small) -> None:
        whole = small.content[self.ARROW]
        batches = SegmentIndex.read(small.damaged("unused", b"").with_name(self.INDEX)).batches
        before, after = small.messages[:6], small.messages[12:]
        for offset, changed in itertools.islice(flips(whole), 0, None, 1 if SOAK else 13):
            path = small.damaged(self.ARROW, changed)
            hit = [e for e in batches if e["offset"] <= offset < e["offset"] + e["length"]]
            with opened(small.directory) as log:
                assert flat(log.scan(1, 6)) == before
                assert flat(log.scan(13)) == after
                for entry in batches:
                    first, last = int(entry["first"]), int(entry["first"] + entry["count"] - 1)
                    if entry not in hit:
                        assert flat(log.scan(first, last)) == small.messages[first - 1 : last]
                        continue
                    for seq in range(first, last + 1):
                        with pytest.raises(DamagedError, match="checksum is wrong") as caught:
                            log.read(seq)
                        error = caught.value
                        assert (error.path, error.offset) == (str(path), int(entry["offset"]))
                        assert (error.first, error.last) == (first, last)
            if offset % 8 == 0:
                assert findings(small.directory) == [self.ARROW]

    def test_every_bit_of_the_rows_changed_under_an_open_log(self, small: Small) -> None:
        restore(small.directory, small.content)
        whole = small.content[self.ARROW]
        path = small.directory / self.ARROW
        with opened(small.directory) as log, path.open("r+b", buffering=0) as file:
            for entry in SegmentIndex.read(small.directory / self.INDEX).batches:
                first = int(entry["first"])
                for offset in range(int(entry["offset"]), int(entry["offset"] + entry["length"])):
                    for bit in range(8):
                        os.pwrite(file.fileno(), bytes([whole[offset] ^ 1 << bit]), offset)
                        with pytest.raises(DamagedError, match="checksum is wrong"):
                            log.read(first)
                    os.pwrite(file.fileno(), whole[offset : offset + 1], offset)
            small.check(log)

    def test_every_length(self, small: Small) -> None:
        whole = small.content[self.ARROW]
        for size in range(0, len(whole), 1 if SOAK else 5):
            path = small.damaged(self.ARROW, whole[:size])
            error = refusal(small.directory)
            assert (error.path, error.offset, error.first, error.last) == (str(path), size, 7, 12)

    def test_every_byte_and_length_of_the_index(self, small: Small) -> None:
        whole = small.content[self.INDEX]
        cut = (whole[:size] for size in range(len(whole)))
        for changed in (*(changed for _, changed in flips(whole)), *cut, whole + b"\0"):
            path = small.damaged(self.INDEX, changed)
            error = refusal(small.directory)
            assert (error.path, error.first) == (str(path), 7)

    def test_every_byte_of_the_entries_changed(self, small: Small) -> None:
        """Messages are read as ever; whoever reads operations is told, and never gets one entry less."""
        whole = small.content[self.ENTRIES]
        for offset, changed in flips(whole):
            path = small.damaged(self.ENTRIES, changed)
            with opened(small.directory) as log:
                assert flat(log.scan(1)) == small.messages
                with pytest.raises(DamagedError) as caught:
                    list(log.scan_ops(1))
                assert operations(log.scan_ops(1, 8)) == small.known[:8]
                assert operations(log.scan_ops(17)) == small.known[16:]
            error = caught.value
            assert error.path == str(path)
            assert (error.first, error.last) in {(7, 6), (10, 9)}
            if offset % 8 == 0:
                assert findings(small.directory) == [self.ENTRIES]

    def test_every_length_of_the_entries(self, small: Small) -> None:
        whole = small.content[self.ENTRIES]
        for size in range(len(whole)):
            path = small.damaged(self.ENTRIES, whole[:size])
            error = refusal(small.directory)
            assert (error.path, error.offset, error.first, error.last) == (str(path), size, 7, 6)
        small.damaged(self.ENTRIES, whole + b"\0")
        assert refusal(small.directory).path == str(small.directory / self.ENTRIES)


class TestSnapshots:
    def test_the_newest_damaged(self, small: Small) -> None:
        whole = small.content[NAME(16, "snapshot")]
        cut = (whole[:size] for size in range(len(whole)))
        for changed in (*(changed for _, changed in flips(whole)), *cut, whole + b"\0"):
            path = small.damaged(NAME(16, "snapshot"), changed)
            with opened(small.directory) as log:
                assert log.snapshot is not None
                assert (log.snapshot.seq, log.snapshot.sections) == (6, {"services": b"at six"})
                assert [error.path for error in log.damaged_snapshots] == [str(path)]
                assert flat(log.scan(1)) == small.messages

    def test_the_older_damaged(self, small: Small) -> None:
        whole = small.content[NAME(8, "snapshot")]
        cut = (whole[:size] for size in range(len(whole)))
        for number, changed in enumerate((*(changed for _, changed in flips(whole)), *cut, whole + b"\0")):
            small.damaged(NAME(8, "snapshot"), changed)
            with opened(small.directory) as log:
                assert log.snapshot is not None
                assert log.snapshot.seq == 12
                assert flat(log.scan(1)) == small.messages
            if number % 8 == 0:
                assert findings(small.directory) == [NAME(8, "snapshot")]

    def test_the_one_that_trimmed_messages_need(self, small: Small) -> None:
        restore(small.directory, small.content)
        with opened(small.directory) as log:
            log.retain(0, retain_bytes=0, retain_us=None, holds={})
            assert log.first == 13
        trimmed = content_of(small.directory)
        whole = trimmed[NAME(16, "snapshot")]
        cut = (whole[:size] for size in range(len(whole)))
        for changed in (*(changed for _, changed in flips(whole)), *cut):
            restore(small.directory, trimmed | {NAME(16, "snapshot"): changed})
            error = refusal(small.directory)
            assert Path(error.path).name == NAME(16, "snapshot")
