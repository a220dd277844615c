"""Plain Parquet: whoever lists the folder sees each message once, at every moment, whatever is killed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.archive.tables import LOG, add, archived, ledger, rows, staged

from headrace.archive import manifest
from headrace.archive.folder import Folder
from headrace.archive.ledger import Writer
from headrace.archive.manifest import ManifestLedger
from headrace.errors import NoArchiveError, OvertakenError, StorageError
from headrace.message import SCHEMA


class KilledError(BaseException):
    pass


def listed(path: Path) -> pa.Table:
    """What a reader sees that knows Parquet and no manifest."""
    return ds.dataset(path).to_table().cast(SCHEMA).sort_by("seq")


@pytest.mark.parametrize("steps", range(6))
def test_killed_between_any_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """A claim, the moves of three files, the note that they are done: whatever was claimed, the next one finishes."""
    writing = ledger("parquet", tmp_path)
    add(writing, rows(1, 50))
    files = staged(writing, pa.concat_tables([rows(51, 60), rows(65, 70), rows(81, 90)]).combine_chunks())
    assert len(files) == 3
    left = steps

    def counted(method: str) -> None:
        does = getattr(Folder, method)

        def until_killed(self: Folder, *told: object) -> None:
            nonlocal left
            if not left:
                raise KilledError
            left -= 1
            does(self, *told)

        monkeypatch.setattr(Folder, method, until_killed)

    for method in ("write_new", "move"):
        counted(method)
    if steps < 5:
        with pytest.raises(KilledError):
            writing.append(files, Writer("q", 1))
    else:
        writing.append(files, Writer("q", 1))
    monkeypatch.undo()
    seqs = [*range(1, 51), *range(51, 61), *range(65, 71), *range(81, 91)]
    seen = listed(tmp_path)["seq"].to_pylist()
    assert seen == seqs[: [50, 50, 60, 66, 76, 76][steps]]
    # Readers of the manifest see all of a commit, or nothing.
    assert archived(tmp_path)["seq"].to_pylist() == seqs[: 76 if steps == 5 else 50]
    again = ledger("parquet", tmp_path)
    assert again.through == (90 if steps else 50)
    assert listed(tmp_path)["seq"].to_pylist() == archived(tmp_path)["seq"].to_pylist()
    add(again, rows(51, 100) if not steps else rows(91, 100))
    assert listed(tmp_path) == archived(tmp_path)
    assert again.through == 100


def test_one_that_lives_on_after_its_successor_finished_its_work_changes_nothing(tmp_path: Path) -> None:
    one = ledger("parquet", tmp_path)
    add(one, rows(1, 10))
    files = staged(one, rows(11, 20))
    other = ledger("parquet", tmp_path)
    add(other, rows(11, 30), Writer("the successor", 2))
    with pytest.raises(OvertakenError, match="query the successor, batch 2"):
        one.append(files, Writer("the zombie", 1))
    assert listed(tmp_path) == archived(tmp_path) == rows(1, 30)


def test_few_entries_are_read_to_open_a_long_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "SUMMED", 4)
    writing = ledger("parquet", tmp_path)
    for first in range(1, 100, 10):
        add(writing, rows(first, first + 9))
    read: list[int] = []
    reads = ManifestLedger._read

    def noted(self: ManifestLedger, number: int) -> dict[str, object]:
        read.append(number)
        return reads(self, number)

    monkeypatch.setattr(ManifestLedger, "_read", noted)
    known = ledger("parquet", tmp_path, None)
    assert read == [8, 9, 10]
    assert (known.version, known.through, len(known.files())) == (10, 100, 10)
    add(writing, rows(101, 110))
    known.refresh()
    assert (known.version, known.through, len(known.files())) == (11, 110, 11)
    assert archived(tmp_path) == rows(1, 110)


def test_a_damaged_entry_is_told_by_its_name(tmp_path: Path) -> None:
    add(ledger("parquet", tmp_path), rows(1, 10))
    for content in (
        b"{",
        b"[]",
        b"null",
        b'{"facts": {}}',
        b'{"facts": {}, "staged": [], "files": [{}]}',
        b"\xff",
    ):
        (tmp_path / "_manifest" / "000000000001.json").write_bytes(content)
        with pytest.raises(StorageError, match=r"000000000001\.json is damaged"):
            ledger("parquet", tmp_path, None)


def test_a_folder_without_entries_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "_manifest").mkdir()
    with pytest.raises(NoArchiveError):
        ledger("parquet", tmp_path, None)
    assert ledger("parquet", tmp_path).log == LOG
