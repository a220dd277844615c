"""A log reads from its archive what it no longer has: the same messages, or an error that says why not."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from tests.archive.logs import BEGIN, STEP, archive, message_batches, rows_of, same, trim, write_log

from headrace.archive import past as pasts
from headrace.archive import reader as readers
from headrace.archive.appending import ledger_for
from headrace.archive.parquet_file import merge_files
from headrace.archive.past import ArchivedPast, attach, read_note
from headrace.archive.table import open_table
from headrace.errors import ArchiveError, DamagedError, TrimmedError
from headrace.hub.filtered_read import read_passing
from headrace.hub.filters import Filter
from headrace.log import Log

COUNT = 6_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = write_log(tmp_path / "log", COUNT)
    yield log
    log.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "an archive"


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_what_the_archive_gives_is_what_the_log_had(log: Log, place: Path, kind: str) -> None:
    before = rows_of(log.scan(1))
    times = [log.seq_at(BEGIN + seq * STEP) for seq in (0, 1, 2_500, 4_999, 5_001, COUNT, COUNT + 1)]
    archive(log, place, 4_500, kind=kind)
    trim(log, ArchivedPast(log, str(place)))
    assert (log.first, log.first_here) == (1, 4_001)
    assert same(rows_of(log.scan(1)), before)
    assert same(rows_of(log.scan(1, max_bytes=1)), before)
    assert same(rows_of(log.scan(3_990, 4_010)), before.slice(3_989, 21))
    assert [log.seq_at(BEGIN + seq * STEP) for seq in (0, 1, 2_500, 4_999, 5_001, COUNT, COUNT + 1)] == times
    assert log.first_time() == BEGIN + STEP * 1
    assert 1 <= log.reach(1, 100) < 4_000 < log.reach(1, 1 << 30) == COUNT


def test_large_row_groups_are_read_in_pieces(log: Log, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "WHOLE_ROWS", 1_000)
    monkeypatch.setattr(readers, "PIECE_ROWS", 300)
    monkeypatch.setattr(readers, "CACHE_BYTES", 1)
    before = rows_of(log.scan(1))
    archive(log, place, COUNT)
    trim(log, ArchivedPast(log, str(place)))
    opened = []
    real = readers.ArchiveReader._open
    monkeypatch.setattr(
        readers.ArchiveReader, "_open", lambda self, *a, **k: (opened.append(1), real(self, *a, **k))[1]
    )
    assert same(rows_of(log.scan(1)), before)
    assert len(opened) == 1  # A reader that goes on decodes every row once.
    assert same(rows_of(log.read(2_000, 2_010)), before.slice(1_999, 11))
    found: list[bool] = []

    def read(first: int) -> None:
        found.append(same(rows_of(log.scan(first, first + 3_000)), before.slice(first - 1, 3_001)))

    threads = [threading.Thread(target=read, args=(first,)) for first in (1, 50, 400, 1_999, 2_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 5


@pytest.mark.parametrize("topic", ["rows/3", "topics/1", "topics/nobody", "rows/*", "a"])
def test_a_filter_finds_the_same(log: Log, place: Path, topic: str) -> None:
    wanted = Filter(topic)

    def found() -> list[int]:
        seqs: list[int] = []
        at = 1
        while at <= log.head:
            rows, upto, _ = read_passing(log, at, log.head, wanted, 1 << 14)
            seqs += [seq for batch in rows for seq in batch.column("seq").to_pylist()]
            assert upto >= at
            at = upto + 1
        return seqs

    before = found()
    archive(log, place, 4_500)
    trim(log, ArchivedPast(log, str(place)))
    assert log.first_here > 4_000
    assert found() == before


def test_only_what_the_archive_has_is_removed(log: Log, place: Path) -> None:
    archive(log, place, 2_500)
    past = ArchivedPast(log, str(place))
    trim(log, past)
    assert log.first_here == 2_001
    archive(log, place, 5_999)
    trim(log, past)
    assert log.first_here == 5_001
    assert (past.first, past.last) == (1, 5_999)


def test_an_archive_with_another_history_is_not_trusted(log: Log, place: Path, tmp_path: Path) -> None:
    other = Log.open(tmp_path / "other", fsync="never", uuid=log.uuid)
    for batch in message_batches(1, COUNT):
        other.append([replace(batch, topic="another" if batch.first > 2_000 else batch.topic)])
    other.commit(other.tail_op)
    archive(other, place, COUNT)
    other.close()
    past = ArchivedPast(log, str(place))
    trim(log, past)
    assert log.first_here == 2_001
    assert "its message 3000 differs from the log's" in str(past.problem)


def test_an_archive_of_another_log_is_refused_by_both_names(log: Log, place: Path, tmp_path: Path) -> None:
    other = write_log(tmp_path / "other", 1_000)
    archive(other, place, 1_000)
    other.close()
    past = ArchivedPast(log, str(place))
    assert not past.look()
    assert past.problem is not None
    assert str(other.uuid) in past.problem
    assert str(log.uuid) in past.problem
    log.past = past
    assert log.first == 1
    assert past.vouched() == 0


def test_a_log_knows_what_its_archive_has_while_that_is_out_of_reach(
    log: Log, place: Path, tmp_path: Path
) -> None:
    archive(log, place, COUNT)
    trim(log, ArchivedPast(log, str(place)))
    log.close()
    away = place.rename(tmp_path / "away")
    log = Log.open(tmp_path / "log")
    past = attach(log, str(place))
    assert past is not None
    assert (log.first, log.first_here) == (1, 5_001)
    with pytest.raises(
        ArchiveError, match=r"messages 7 to 9 cannot be read from the archive.*there is none any more"
    ) as error:
        log.read(7, 9)
    assert (error.value.first, error.value.last) == (7, 9)
    away.rename(place)
    assert past.look()
    assert past.problem is None
    assert [message.seq for message in log.read(7, 9)[0]] == [7, 8, 9]
    log.close()
    # Commands that are not told find the archive by the log's own note.
    log = Log.open(tmp_path / "log", read_only=True)
    assert attach(log, None) is not None
    assert log.first == 1
    log.close()


def test_a_file_that_is_gone_is_an_error_and_not_a_hole(log: Log, place: Path) -> None:
    archive(log, place, 2_000)
    archive(log, place, 4_000)
    archive(log, place, COUNT)
    trim(log, ArchivedPast(log, str(place)))
    files = sorted(place.rglob("*.parquet"))
    assert len(files) == 3
    files[1].unlink()
    attach(log, str(place))  # One that has read nothing yet.
    with pytest.raises(ArchiveError, match="messages 2001 to 4000 cannot be read"):
        list(log.scan(1))
    files[2].write_bytes(files[2].read_bytes()[:-100])
    attach(log, str(place))
    with pytest.raises(ArchiveError, match="messages 4001 to 6000"):
        log.read(4_500, 4_500)
    assert log.read(1, 1)


def test_an_archive_that_lost_its_end_or_its_beginning_is_a_problem(
    log: Log, place: Path, tmp_path: Path
) -> None:
    archive(log, place, 2_000)
    archive(log, place, 4_000)
    early = shutil.copytree(place, tmp_path / "early")
    archive(log, place, COUNT)
    trim(log, ArchivedPast(log, str(place)))
    shutil.rmtree(place)
    early.rename(place)
    past = ArchivedPast(log, str(place))
    assert not past.look()
    assert "it ends at 4000, and has had messages up to 6000" in str(past.problem)
    shutil.rmtree(place)
    rest = write_log(tmp_path / "rest", COUNT)
    rest.uuid = log.uuid
    archive(rest, place, COUNT, first=3_000)
    rest.close()
    assert not past.look()
    assert "it begins at 3000, and has had messages from 1 on" in str(past.problem)


def test_messages_that_neither_has_are_named(log: Log, place: Path) -> None:
    archive(log, place, 2_000)
    past = ArchivedPast(log, str(place))
    trim(log, past)
    # As on a node that has begun anew after a snapshot.
    log.let_go(0, retain_bytes=1, retain_us=None, holds={})
    assert past.last == 2_000
    assert log.first == log.first_here == COUNT + 1
    assert log.read(1, 2_000)
    with pytest.raises(TrimmedError) as error:
        log.read(2_001)
    assert error.value.oldest == log.first_here


def test_files_that_compaction_replaced_are_found_anew(
    log: Log, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for last in (2_000, 4_000, COUNT):
        archive(log, place, last)
    before = rows_of(log.scan(1, 5_000))
    trim(log, ArchivedPast(log, str(place)))
    ledger = ledger_for(str(place), str(log.uuid))
    parts = sorted(ledger.files(), key=lambda file: file.first)
    ledger.replace(parts, [merge_files(ledger.folder, ledger.staging, ledger.log, parts)])
    for part in parts:
        (place / part.path).unlink()
    assert same(rows_of(log.scan(1, 5_000)), before)


def test_a_note_that_is_damaged_is_told(log: Log, place: Path) -> None:
    archive(log, place, COUNT)
    trim(log, ArchivedPast(log, str(place)))
    note = read_note(log.directory)
    assert note is not None
    assert (note.first, note.last, note.log) == (1, COUNT, str(log.uuid))
    (log.directory / pasts.NOTE).write_bytes(b"\xff")
    with pytest.raises(DamagedError, match="remove it"):
        read_note(log.directory)


def test_an_archive_that_differs_inside_a_segment_is_not_trusted(place: Path, tmp_path: Path) -> None:
    """A hub lost its newest messages with the power, when they were archived, and went on with others."""
    lost = write_log(tmp_path / "lost", 2_500)
    archive(lost, place, 2_500)
    lost.close()
    log = Log.open(tmp_path / "log", fsync="never", uuid=lost.uuid)
    for batch in message_batches(1, 6_000):
        later = batch if batch.last <= 2_300 else replace(batch, time=batch.time + 60_000_000, columns=None)
        log.append([later])
        log.commit(log.tail_op)
        if batch.last % 1_000 == 0:
            log.rotate()
            while log.seal_next():
                pass
    before = rows_of(log.scan(1))
    archive(log, place, 6_000)
    past = ArchivedPast(log, str(place))
    trim(log, past)
    assert log.first_here == 2_001
    assert "its message 2301 differs" in str(past.problem)
    # What the log has is read from there, even by a read that begins in the archive.
    assert same(rows_of(log.scan(1)), before)
    log.close()


def test_flipped_bits_are_errors_and_no_other_messages(log: Log, place: Path) -> None:
    before = rows_of(log.scan(1))
    archive(log, place, COUNT)
    [file] = place.rglob("*.parquet")
    good = file.read_bytes()
    random = Random(1)
    refused = 0
    for _ in range(60):
        flipped = bytearray(good)
        flipped[random.randrange(len(good))] ^= 1 << random.randrange(8)
        file.write_bytes(flipped)
        reader = readers.ArchiveReader(open_table(str(place)), str(place))
        try:
            assert same(rows_of(reader.read(1, COUNT, 1 << 30)), before)
        except ArchiveError:
            refused += 1
    assert refused > 40


def test_an_archive_that_took_the_place_of_another_is_found(log: Log, place: Path, tmp_path: Path) -> None:
    before = rows_of(log.scan(1))
    archive(log, tmp_path / "other", COUNT)
    for last in (2_000, 4_000, COUNT):
        archive(log, place, last)
    past = ArchivedPast(log, str(place))
    trim(log, past)
    shutil.rmtree(place)
    assert not past.look()
    (tmp_path / "other").rename(place)
    assert past.look(), past.problem
    assert same(rows_of(log.scan(1)), before)


def test_segments_whose_copy_cannot_be_read_stay(log: Log, place: Path) -> None:
    for last in (1_500, 1_600, COUNT):
        archive(log, place, last)
    sorted(place.rglob("*.parquet"))[1].unlink()
    past = ArchivedPast(log, str(place))
    trim(log, past)
    assert log.first_here == 1_001
    assert "No such file" in str(past.problem)
