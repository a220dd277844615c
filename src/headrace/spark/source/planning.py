"""Plan a read: cut a range of the sequence into partitions by bytes, and say where each is read.

- What the archive has, if one is named, is read from its files. Files of :data:`SPLIT_BYTES` or less are put together,
  larger ones cut.
- The rest is cut by the bytes that it has in the log's files, which the hub is asked for, and read from those files or
  over the link (:mod:`~headrace.spark.source.range_rows`).

A partition has :data:`SPLIT_BYTES` at most, about, and less where there would be fewer partitions than tasks can run at
a time, or a few that run alone at the end; but none is cut below :data:`LEAST_ROWS` messages, since a task costs too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from headrace.archive import ArchiveFile, ArchiveTable

SPLIT_BYTES: Final = 128 << 20

LEAST_ROWS: Final = 10_000
"""The smallest partition, unless ``minPartitions`` is given."""

MOST_ROWS: Final = 2_000_000
"""The largest partition: a task that fails has to be repeated."""

FEW_WAVES: Final = 4
"""Tasks run in waves of as many as can run at a time. Of more waves than this, one with few tasks costs little."""

SPARE: Final = 1.02
"""How much larger parts are made than they would be on average, so that nothing is left over for another one."""

Reach = Callable[[int, int], int | None]
"""Tells how far so many bytes of the log reach from a message on."""


class Part(NamedTuple):
    """Messages ``first`` to ``last``, and the archive's files that have them, if any do."""

    first: int
    last: int
    files: tuple[str, ...] = ()


def split(first: int, last: int, parallelism: int, least: int | None = None) -> list[tuple[int, int]]:
    """Cut a range into even parts: at least ``least``, else as many as can run at a time and are worth a task.

    >>> split(1, 10, 4, 3)
    [(1, 4), (5, 7), (8, 10)]
    >>> split(1, 100, 4)
    [(1, 100)]
    >>> len(split(1, 100_000, 4)), len(split(1, 10_000_000, 4)), split(5, 4, 4)
    (4, 8, [])
    """
    count = last - first + 1
    if count <= 0:
        return []
    if least is not None:
        parts = max(least, -(-count // MOST_ROWS))
    else:
        parts = max(min(parallelism, count // LEAST_ROWS), -(-count // MOST_ROWS), 1)
        parts = _full_waves(parts, parallelism)
    parts = min(parts, count)
    edges = [first + count * part // parts + (count * part % parts > 0) for part in range(parts + 1)]
    return [(edges[part], edges[part + 1] - 1) for part in range(parts)]


def split_log(first: int, last: int, parallelism: int, reach: Reach, least: int | None = None) -> list[Part]:
    """Cut a range of the log by bytes.

    >>> def reach(first, size):  # a log of messages of a mebibyte
    ...     return first + (size >> 20) - 1
    >>> split_log(1, 1000, 2, reach)[0], len(split_log(1, 1000, 2, reach)), len(split_log(1, 1000, 16, reach))
    (Part(first=1, last=128, files=()), 8, 16)
    >>> len(split_log(1, 1000, 3, reach))
    9
    """
    parts = list(_cut(first, last, SPLIT_BYTES, reach))
    wanted = _full_waves(max(len(parts), parallelism), parallelism)
    if 1 < len(parts) < wanted:
        # How much the last one has is judged by its messages.
        whole, begin = len(parts) - 1, parts[-1][0]
        splits = whole + min(1.0, whole * (last - begin + 1) / (begin - first))
        parts = list(_cut(first, last, math.ceil(SPARE * splits * SPLIT_BYTES / wanted), reach))
    if len(parts) <= 1 or len(parts) < (least or 0):
        return [Part(*each) for each in split(first, last, parallelism, least)]
    return [Part(*each) for begin, end in parts for each in split(begin, end, 1)]


def split_archive(
    files: Sequence[ArchiveFile], first: int, last: int, parallelism: int, least: int | None = None
) -> list[Part]:
    """Cut the files of an archive that have messages ``first`` to ``last``."""
    total, rows = sum(file.size for file in files), sum(file.rows for file in files)
    wanted = max(min(parallelism, rows // LEAST_ROWS), least or 1)
    most = min(SPLIT_BYTES, max(-(-total // wanted), 1))
    pieces = [piece for file in files for piece in _pieces(file, first, last, most, least)]
    return list(_packed(pieces, most))


def archive_reach(files: Sequence[ArchiveFile], first: int, size: int) -> int:
    """Return how far so many bytes of an archive's files reach from a message on, by each file's average row."""
    for file in files:
        begin = max(first, file.first)
        last = begin + size * file.rows // max(file.size, 1) - 1
        if last < file.last:
            return max(last, first)
        size -= (file.last - begin + 1) * file.size // max(file.rows, 1)
    return files[-1].last


def plan(
    first: int,
    last: int,
    parallelism: int,
    reach: Reach,
    *,
    table: ArchiveTable | None = None,
    least: int | None = None,
) -> list[Part]:
    """Cut messages ``first`` to ``last``: those that the archive has by its files, the others by the log's bytes."""
    if table is None or first > table.through or last < table.first:
        return split_log(first, last, parallelism, reach, least)
    begin, end = max(first, table.first), min(last, table.through)
    archived = split_archive(table.files(begin, end), begin, end, parallelism, least)
    before = split_log(first, begin - 1, parallelism, reach, least) if first < begin else []
    after = split_log(end + 1, last, parallelism, reach, least) if end < last else []
    return [*before, *archived, *after]


def _full_waves(parts: int, tasks: int) -> int:
    """Return how many parts, at least so many, keep all tasks busy to the end.

    >>> _full_waves(3, 2), _full_waves(4, 2), _full_waves(1, 2), _full_waves(101, 2)
    (4, 4, 1, 101)
    """
    waves = -(-parts // tasks)
    return waves * tasks if 1 < waves <= FEW_WAVES else parts


def _cut(first: int, last: int, size: int, reach: Reach) -> Iterator[tuple[int, int]]:
    while first <= last:
        end = min(max(reach(first, size) or 0, first), last)
        yield first, end
        first = end + 1


class _Piece(NamedTuple):
    part: Part
    size: int


def _pieces(file: ArchiveFile, first: int, last: int, most: int, least: int | None) -> Iterator[_Piece]:
    """Cut the wanted part of a file into pieces of ``most`` bytes or less, by its average row."""
    begin, end = max(first, file.first), min(last, file.last)
    each = max(1, most * file.rows // max(file.size, 1))
    each = max(min(each, MOST_ROWS), 1 if least else LEAST_ROWS)
    for at in range(begin, end + 1, each):
        upto = min(at + each - 1, end)
        yield _Piece(Part(at, upto, (file.path,)), (upto - at + 1) * file.size // max(file.rows, 1))


def _packed(pieces: Iterable[_Piece], most: int) -> Iterator[Part]:
    """Put pieces together as long as they fit."""
    waiting: Part | None = None
    size = 0
    for piece in pieces:
        if waiting is not None and size + piece.size <= most:
            known = (
                waiting.files if piece.part.files[0] in waiting.files else (*waiting.files, *piece.part.files)
            )
            waiting, size = Part(waiting.first, piece.part.last, known), size + piece.size
            continue
        if waiting is not None:
            yield waiting
        waiting, size = piece.part, piece.size
    if waiting is not None:
        yield waiting
