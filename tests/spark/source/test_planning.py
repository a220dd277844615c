"""How a read is cut into partitions: by bytes, from an archive's files and from the log."""

from __future__ import annotations

from itertools import pairwise

from headrace.archive import ArchiveFile
from headrace.spark.source.planning import MOST_ROWS, SPLIT_BYTES, Part, split_archive, split_log

MIB = 1 << 20


def messages_of(size: int) -> object:
    return lambda first, room: first + room // size - 1


def whole(parts: list[Part], first: int, last: int) -> bool:
    """Whether parts are all of a range, each message once."""
    edges = [(part.first, part.last) for part in parts]
    return (edges[0][0], edges[-1][1]) == (first, last) and all(
        before[1] + 1 == after[0] for before, after in pairwise(edges)
    )


def test_large_messages_are_cut_by_bytes_and_not_by_their_number() -> None:
    """A thousand messages of a gigabyte in all were one partition."""
    parts = split_log(1, 1000, 2, messages_of(MIB))  # type: ignore[arg-type]
    assert whole(parts, 1, 1000)
    assert len(parts) == 8
    assert all(part.last - part.first < SPLIT_BYTES // MIB for part in parts)


def test_skewed_messages_make_even_work() -> None:
    """The first ten have a gigabyte, the others next to nothing."""

    def reach(first: int, size: int) -> int:
        while first <= 10 and size >= 100 * MIB:
            first, size = first + 1, size - 100 * MIB
        return first - 1 if first <= 10 else first + size // 10

    parts = split_log(1, 5000, 4, reach)
    assert whole(parts, 1, 5000)
    assert max(min(part.last, 10) - part.first for part in parts) <= 1


def test_a_small_range_is_one_partition_and_costs_one_question() -> None:
    asked: list[int] = []

    def reach(first: int, size: int) -> int:
        asked.append(first)
        return first + size

    assert split_log(5, 900, 16, reach) == [Part(5, 900)]
    assert asked == [5]
    assert split_log(5, 4, 16, reach) == []


def test_no_partition_has_too_many_messages_however_small_they_are() -> None:
    parts = split_log(1, 50_000_000, 2, messages_of(10))  # type: ignore[arg-type]
    assert whole(parts, 1, 50_000_000)
    assert max(part.last - part.first + 1 for part in parts) <= MOST_ROWS


def test_no_task_runs_alone_at_the_end() -> None:
    """Three partitions for two tasks at a time took as long as four of that size."""
    parts = split_log(1, 300, 2, messages_of(MIB))  # type: ignore[arg-type]
    assert whole(parts, 1, 300)
    assert [part.last - part.first + 1 for part in parts] == [76, 76, 76, 72]


def test_as_many_partitions_as_are_asked_for() -> None:
    assert len(split_log(1, 100, 2, messages_of(10), 7)) == 7  # type: ignore[arg-type]


def file(first: int, last: int, size: int) -> ArchiveFile:
    return ArchiveFile(f"{first}.parquet", first, last, last - first + 1, size, 0, 0)


def test_large_files_are_cut_and_small_ones_put_together() -> None:
    large = [file(1, 1_000_000, 400 * MIB), file(1_000_001, 1_300_000, 100 * MIB)]
    parts = split_archive(large, 1, 1_300_000, 2)
    assert whole(parts, 1, 1_300_000)
    assert 4 <= len(parts) <= 6
    small = [file(1 + 100_000 * n, 100_000 * (n + 1), MIB) for n in range(200)]
    parts = split_archive(small, 150_000, 19_950_000, 2)
    assert whole(parts, 150_000, 19_950_000)
    assert 2 <= len(parts) <= 4
    assert parts[0].files[0] == "100001.parquet"


def test_a_large_archive_is_splits_of_the_wanted_size() -> None:
    """Ten terabytes: as many partitions as there are splits of 128 MiB, about."""
    files = [file(1 + 10**6 * n, 10**6 * (n + 1), 256 * MIB) for n in range(40_000)]
    parts = split_archive(files, 1, 40_000 * 10**6, 800)
    assert len(parts) == 80_000
    assert whole(parts, 1, 40_000 * 10**6)
