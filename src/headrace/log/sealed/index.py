"""The index of a sealed segment: where its record batches are, what they cover, and their checksums.

The file ``N.index`` is written whole beside ``N.arrow``. If it is lost, it can be rebuilt from a readable Arrow file.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DamagedError
from headrace.log.checksum import crc32c
from headrace.log.files import Descriptor, check_version, write_whole
from headrace.log.frame import times
from headrace.log.sealed.arrow_file import mapped, record_batches
from headrace.log.sealed.entries_file import EntriesFile

_HEAD: Final = struct.Struct("<8s16sQQQQQqQII")
_MAGIC: Final = b"HRINDEX\x02"
BATCH: Final = np.dtype(
    [
        ("first", "<u8"),
        ("count", "<u4"),
        ("crc", "<u4"),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("first_time", "<i8"),
        ("last_time", "<i8"),
    ]
)

ENTRIES_LOST: Final = (1 << 64) - 1
"""Stands for the size of the file of entries if a repair found that damaged and kept the messages without it."""

MAXBATCHES: Final = 1 << 24
"""More record batches than any segment has: a larger count is damage, not a reason to allocate."""


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The facts about a sealed segment that can be known without reading it."""

    uuid: UUID
    first_op: int
    last_op: int
    first: int
    last: int
    """The last message; ``first - 1`` if there are entries only."""
    file_size: int
    last_time: int
    entries_size: int
    """Bytes of the file of entries; 0 if there is none, or :data:`ENTRIES_LOST`."""
    around_crc: int
    """CRC32C of the file's bytes that belong to no record batch."""
    batches: npt.NDArray[Any]

    @property
    def entries_lost(self) -> bool:
        """Whether there were entries that a repair could not save."""
        return self.entries_size == ENTRIES_LOST

    def write(self, path: Path, *, sync: bool) -> None:
        """Write the index, whole or not at all."""
        head = _HEAD.pack(
            _MAGIC,
            self.uuid.bytes,
            self.first_op,
            self.last_op,
            self.first,
            self.last,
            self.file_size,
            self.last_time,
            self.entries_size,
            self.around_crc,
            len(self.batches),
        )
        body = head + self.batches.tobytes()
        write_whole(path, body + crc32c(body).to_bytes(4, "little"), sync=sync)

    @classmethod
    def read(cls, path: Path) -> SegmentIndex:
        """Read an index; raise if it is damaged."""
        data = path.read_bytes()
        check_version(path, data, b"HRINDEX", 2)
        if len(data) < _HEAD.size + 4 or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise DamagedError(str(path), 0, 1, None, "the index does not match its checksum")
        magic, uuid, first_op, last_op, first, last, size, time, beside, around, count = _HEAD.unpack_from(
            data
        )
        if magic != _MAGIC or count > MAXBATCHES or len(data) != _HEAD.size + count * BATCH.itemsize + 4:
            raise DamagedError(str(path), 0, 1, None, "the index has an unknown format")
        batches = np.frombuffer(data, BATCH, count, _HEAD.size)
        return cls(UUID(bytes=uuid), first_op, last_op, first, last, size, time, beside, around, batches)

    @classmethod
    def rebuild(cls, path: Path, uuid: UUID) -> SegmentIndex:
        """Make an index for an Arrow file that has lost its own, if the file is readable and its numbers consecutive.

        Without checksums, everything that Arrow can check is checked. Entries that are damaged count as lost; how many
        there were is not known here.
        """
        first_op = int(path.stem)
        entries, lost = _entries_beside(path)
        data = mapped(Descriptor(path, os.O_RDONLY))
        batches: list[tuple[int, ...]] = []
        first = expected = entries.header.first if entries else 0
        time = around = place = 0
        try:
            for begin, end, rows in record_batches(data):
                rows.validate(full=True)
                seqs, each = rows.column("seq").to_numpy(), times(rows)
                if not expected and len(seqs):
                    first = expected = int(seqs[0])
                if not np.array_equal(seqs, np.arange(expected, expected + len(seqs))) or not len(seqs):
                    raise DamagedError(str(path), begin, expected, None, "sequence numbers do not follow")
                if np.any(each[1:] < each[:-1]) or each[0] < time:
                    raise DamagedError(str(path), begin, expected, None, "times decrease")
                crc = crc32c(data[begin:end])
                batches.append((expected, len(seqs), crc, begin, end - begin, int(each[0]), int(each[-1])))
                around = crc32c(data[place:begin], around)
                place, expected, time = end, expected + len(seqs), int(each[-1])
        except (pa.ArrowException, OSError, EOFError) as error:
            raise DamagedError(str(path), place, expected, None, f"Arrow cannot read it ({error})") from error
        if not expected:
            raise DamagedError(
                str(path), 0, 1, None, "there is no record batch in it, and no entry beside it"
            )
        count, size = (entries.count, entries.size) if entries else (0, ENTRIES_LOST if lost else 0)
        return cls(
            uuid,
            first_op,
            first_op + expected - first - 1 + count,
            first,
            expected - 1,
            len(data),
            max(time, entries.last_time) if entries else time,
            size,
            crc32c(data[place:], around),
            np.array(batches, BATCH),
        )


def _entries_beside(path: Path) -> tuple[EntriesFile | None, bool]:
    """The entries beside a segment, and whether there are any that cannot be read."""
    try:
        return EntriesFile(path.with_suffix(".entries")), False
    except DamagedError:
        return None, True
    except FileNotFoundError:
        return None, False
