"""Archives of every format: each message once, whoever writes and whenever somebody reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.archive.tables import BEGIN, LOG, OTHER_LOG, add, ledger, read, rows, staged

from headrace.archive import open_table
from headrace.archive import parquet_file as files_module
from headrace.archive.folder import Folder
from headrace.archive.ledger import Writer
from headrace.archive.parquet_file import merge_files
from headrace.archive.table import FORMATS, format_of
from headrace.errors import NoArchiveError, OvertakenError, StorageError, UsageError


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_table_has_what_was_added_and_its_files_say_which(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "an archive, für immer 100%"
    writing = ledger(kind, place)
    attributes = [[("place", "Bern"), ("kind", str(seq))] for seq in range(1, 101)]
    numbers = [[("celsius", seq / 2)] for seq in range(1, 101)]
    written = rows(1, 100, attributes=attributes, numbers=numbers, number=[None] * 100)
    add(writing, written)
    add(writing, rows(101, 250))
    table = open_table(str(place))
    assert (table.log, table.first, table.through) == (LOG, 1, 250)
    assert format_of(Folder.at(str(place))) == kind
    assert read(table) == pa.concat_tables([written, rows(101, 250)])
    facts = [
        (file.first, file.last, file.rows, file.first_time, file.last_time) for file in table.files(1, 250)
    ]
    assert facts == [
        (1, 100, 100, BEGIN, BEGIN + 99_000),
        (101, 250, 150, BEGIN + 100_000, BEGIN + 249_000),
    ]
    assert [file.first for file in table.files(100, 100)] == [1]
    assert [file.first for file in table.files(100, 101)] == [1, 101]
    assert [file.first for file in table.files(101, 10**9)] == [101]
    assert table.files(251, 300) == []
    for file in table.all_files():
        assert table.filesystem.get_file_info(file.path).size == file.size


def test_a_version_stays_what_it_is(tmp_path: Path, kind: str) -> None:
    writing = ledger(kind, tmp_path)
    add(writing, rows(1, 100))
    table = open_table(str(tmp_path))
    assert table.refreshed() is table
    add(writing, rows(101, 200))
    if writing.merges:
        parts = open_table(str(tmp_path)).all_files()
        writing.replace(parts, [merge_files(writing.folder, writing.staging, LOG, parts)])
    newer = table.refreshed()
    assert (table.through, newer.through) == (100, 200)
    assert len(newer.all_files()) == (1 if writing.merges else 2)
    # Listed earlier, read later.
    assert read(table) == rows(1, 100)
    assert read(newer) == rows(1, 200)


def test_of_two_writers_one_is_refused_and_told_who_was_first(tmp_path: Path, kind: str) -> None:
    one, other = ledger(kind, tmp_path), ledger(kind, tmp_path)
    late = staged(one, rows(1, 20))
    add(other, rows(1, 10), Writer("the other query", 7))
    with pytest.raises(OvertakenError, match="query the other query, batch 7 has added messages up to 10"):
        one.append(late, Writer("the first query", 3))
    assert read(open_table(str(tmp_path))) == rows(1, 10)
    # It now knows, and may go on after that.
    add(one, rows(1, 20))
    assert read(open_table(str(tmp_path))) == rows(1, 20)


@pytest.mark.parametrize("format_with_merges", ["delta", "iceberg"])
def test_of_two_that_merge_the_same_files_one_is_refused(tmp_path: Path, format_with_merges: str) -> None:
    one = ledger(format_with_merges, tmp_path)
    for first in (1, 11, 21):
        add(one, rows(first, first + 9))
    other = ledger(format_with_merges, tmp_path)
    parts = open_table(str(tmp_path)).all_files()
    merged = [merge_files(each.folder, each.staging, LOG, parts) for each in (one, other)]
    one.replace(parts, merged[:1])
    with pytest.raises(OvertakenError):
        other.replace(parts, merged[1:])
    assert read(open_table(str(tmp_path))) == rows(1, 30)
    # Nor does a merge come beside messages that were added meanwhile.
    late = ledger(format_with_merges, tmp_path)
    add(one, rows(31, 40))
    with pytest.raises(OvertakenError):
        late.replace(merged[:1], merged[1:])
    assert read(open_table(str(tmp_path))) == rows(1, 40)


def test_another_log_is_refused_by_an_error_that_names_both(tmp_path: Path, kind: str) -> None:
    add(ledger(kind, tmp_path), rows(1, 10))
    with pytest.raises(UsageError, match=f"log {LOG}, and the hub's log is {OTHER_LOG}"):
        ledger(kind, tmp_path, OTHER_LOG)


def test_no_archive_is_an_error_of_its_own(tmp_path: Path, kind: str) -> None:
    with pytest.raises(NoArchiveError):
        open_table(str(tmp_path / "nowhere"))
    ledger(kind, tmp_path)
    with pytest.raises(NoArchiveError):
        open_table(str(tmp_path))


def test_a_hole_ends_a_file_and_a_table_begins_after_it(tmp_path: Path, kind: str) -> None:
    writing = ledger(kind, tmp_path)
    holed = pa.concat_tables([rows(1, 10), rows(15, 20), rows(21, 30)]).combine_chunks()
    add(writing, holed)
    table = open_table(str(tmp_path))
    assert [(file.first, file.last) for file in table.all_files()] == [(1, 10), (15, 30)]
    assert (table.first, table.through) == (15, 30)
    assert [file.first for file in table.files(1, 30)] == [1, 15]


def test_messages_that_are_there_are_left_out_and_disorder_is_refused(tmp_path: Path, kind: str) -> None:
    writing = ledger(kind, tmp_path)
    add(writing, rows(1, 100))
    assert staged(writing, rows(1, 100)) == []
    (new,) = staged(writing, rows(51, 150))
    assert (new.first, new.last, new.rows) == (101, 150, 50)
    with pytest.raises(StorageError, match="came out of order: not archived"):
        staged(writing, rows(101, 110).take([0, 2, 1, 3]))


def test_a_long_task_makes_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(files_module, "FILE_BYTES", 8_000)
    monkeypatch.setattr(files_module, "GROUP_ROWS", 500)
    writing = ledger(kind, tmp_path)
    made = staged(writing, pa.Table.from_batches(rows(1, 5000).to_batches(max_chunksize=250)))
    assert len(made) > 2
    writing.append(made, Writer("q", 1))
    assert read(open_table(str(tmp_path))) == rows(1, 5000)


def test_a_vacuum_removes_what_is_old_and_does_not_count(tmp_path: Path, kind: str) -> None:
    writing = ledger(kind, tmp_path)
    for first in (1, 11, 21):
        add(writing, rows(first, first + 9))
    assert staged(writing, rows(31, 40))
    if writing.merges:
        parts = open_table(str(tmp_path)).all_files()
        writing.replace(parts, [merge_files(writing.folder, writing.staging, LOG, parts)])
    (tmp_path / "_checkpoint").mkdir()
    (tmp_path / "_checkpoint" / "kept.parquet").write_bytes(b"not ours to remove")

    def on_disk() -> set[Path]:
        return {path for path in tmp_path.rglob("0*-*") if path.suffix in ("", ".parquet")}

    before = on_disk()
    writing.vacuum(3600)
    assert on_disk() == before
    writing.vacuum(0)
    table = open_table(str(tmp_path))
    counting = {tmp_path / file.path for file in table.all_files()}
    assert on_disk() == counting
    assert (tmp_path / "_checkpoint" / "kept.parquet").exists()
    assert read(table) == rows(1, 30)


def test_every_commit_says_whose_it_is(tmp_path: Path) -> None:
    from deltalake import DeltaTable
    from pyiceberg.catalog.sql import SqlCatalog

    expected = {
        "headrace.log": LOG,
        "headrace.first": "1",
        "headrace.through": "10",
        "headrace.query": "the query",
        "headrace.batch": "5",
    }
    for kind in FORMATS:
        add(ledger(kind, tmp_path / kind), rows(1, 10), Writer("the query", 5))
    (newest, *_) = DeltaTable(tmp_path / "delta").history()
    assert expected.items() <= newest.items()
    catalog = SqlCatalog("headrace", uri=f"sqlite:///{tmp_path}/iceberg/catalog.db")
    snapshot = catalog.load_table("headrace.archive").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert expected.items() <= snapshot.summary.additional_properties.items()
    assert '"headrace.query": "the query"' in (tmp_path / "parquet/_manifest/000000000001.json").read_text()
