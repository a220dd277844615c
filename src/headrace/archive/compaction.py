"""Which files of an archive should become one: a pure function of their sizes.

Micro-batches make small files; readers want few large ones. Two rules keep both the files and the copying few:

- Adjacent small files that together have half the size of a complete one become one, which is then left alone. So most
  bytes are copied once.
- Of those that are not as many yet, eight of about the same size become one. So a hub with little traffic has a few
  dozen small files, not one for each minute, and a byte is copied once more each time that its file grows eightfold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.archive.parquet_file import FILE_BYTES, ArchiveFile

ALIKE: Final = 8
"""Files of about the same size that become one; what is about the same differs by less than this factor."""


def due(files: Sequence[ArchiveFile], complete: int = FILE_BYTES) -> list[list[ArchiveFile]]:
    """Return groups of adjacent files, in the order of the sequence, that should become one file each.

    A file of half the ``complete`` size or more is left alone, unless a small one before it needs company.
    """
    groups: list[list[ArchiveFile]] = []
    group: list[ArchiveFile] = []
    for file in files:
        if group and group[-1].last + 1 != file.first:
            # Nothing more can be added before a hole.
            groups.append(group)
            group = []
        if group or file.size < complete // 2:
            group.append(file)
        if sum(part.size for part in group) >= complete // 2:
            groups.append(group)
            group = []
    return [each for each in (*groups, _alike(group)) if len(each) > 1]


def _alike(files: Sequence[ArchiveFile]) -> list[ArchiveFile]:
    """Return the newest files among which :data:`ALIKE` are of about the same size."""
    tiers = [_tier(file) for file in files]
    for tier in sorted(set(tiers)):
        begin = max((index + 1 for index, each in enumerate(tiers) if each > tier), default=0)
        if tiers[begin:].count(tier) >= ALIKE:
            return list(files[begin:])
    return []


def _tier(file: ArchiveFile) -> int:
    """Return how often a file is divided by :data:`ALIKE` until nothing is left."""
    return (file.size.bit_length() + 2) // 3
