"""Which files are merged: few files, little copying, whatever the sizes."""

from __future__ import annotations

from random import Random

import pytest

from headrace.archive.compaction import due
from headrace.archive.parquet_file import ArchiveFile

COMPLETE = 100_000


def file(first: int, size: int, rows: int = 10) -> ArchiveFile:
    return ArchiveFile(f"data/{first}", first, first + rows - 1, rows, size, 0, 0)


def in_a_row(*sizes: int) -> list[ArchiveFile]:
    return [file(10 * index + 1, size) for index, size in enumerate(sizes)]


def sizes(files: list[ArchiveFile]) -> list[list[int]]:
    return [[part.size for part in group] for group in due(files, COMPLETE)]


def test_what_is_complete_or_alone_stays() -> None:
    assert sizes([]) == []
    assert sizes(in_a_row(100, 200)) == []
    assert sizes(in_a_row(100_000, 50_000, 120_000, 4_000)) == []


def test_files_that_have_half_the_size_of_a_complete_one_become_one() -> None:
    assert sizes(in_a_row(100_000, 20_000, 20_000, 30_000, 500)) == [[20_000, 20_000, 30_000]]
    # A small one between complete ones goes with the next.
    assert sizes(in_a_row(100_000, 500, 100_000, 100_000)) == [[500, 100_000]]


def test_files_before_a_hole_become_one() -> None:
    assert sizes([file(1, 10), file(11, 20), file(41, 30)]) == [[10, 20]]
    assert sizes([file(1, 10), file(41, 30)]) == []


@pytest.mark.parametrize("size", [1, 300, 5_000, 30_000, 90_000])
def test_files_stay_few_and_copies_too(size: int) -> None:
    """Two thousand micro-batches of about the same size."""
    rng = Random(size)
    files: list[ArchiveFile] = []
    came = copied = 0
    for index in range(2000):
        new = file(10 * index + 1, rng.randint(size // 2 + 1, size + size // 2))
        came += new.size
        files.append(new)
        for group in due(files, COMPLETE):
            begin = files.index(group[0])
            assert files[begin : begin + len(group)] == group
            whole = sum(part.size for part in group)
            assert whole < 3 * COMPLETE
            copied += whole
            rows = sum(part.rows for part in group)
            files[begin : begin + len(group)] = [file(group[0].first, whole, rows)]
        assert len([each for each in files if each.size < COMPLETE // 2]) <= 8 * 7
    assert [each.first for each in files[1:]] == [each.last + 1 for each in files[:-1]]
    # Not more than once for each time that a file grows eightfold, and once when it is complete.
    assert copied <= came * 7
    if size >= 5_000:
        assert copied <= came * 3
