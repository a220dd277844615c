"""Write a sealed segment: the Arrow file, its index, its entries and its topics, all or nothing."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import DamagedError
from headrace.log.checksum import crc32c
from headrace.log.files import Descriptor, making, write_whole
from headrace.log.frame import times
from headrace.log.frame_file import FileHeader
from headrace.log.sealed.arrow_file import unpack
from headrace.log.sealed.entries_file import EntriesWriter
from headrace.log.sealed.index import BATCH, SegmentIndex
from headrace.log.sealed.segment import SealedSegment
from headrace.log.topics.segment_topics import TopicIndexBuilder
from headrace.message import SCHEMA


class SegmentEnd(NamedTuple):
    """Where a segment ends: its last operation, its last message (or the one before it) and the last time."""

    op: int
    seq: int
    time: int


def write_segment(
    path: Path,
    header: FileHeader,
    batches: Iterable[pa.RecordBatch],
    entries: EntriesWriter,
    ends: SegmentEnd,
    *,
    sync: bool,
) -> SealedSegment:
    """Write record batches (in order, not empty) as ``path`` and its index; both appear whole or not at all.

    ``header`` is that of the tail they come from; while ``batches`` are made, ``entries`` is given those of the tail.
    Each record batch is read back and compared. The Arrow file is renamed into place last, so that no ``N.arrow`` is
    ever without its index and entries.
    """
    schema = SCHEMA.with_metadata({b"headrace.log": str(header.uuid).encode()})
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    written: list[tuple[int, ...]] = []
    topics = TopicIndexBuilder()
    with making(path) as unfinished:
        begin = around = 0
        with (
            pa.OSFile(str(unfinished), "wb") as file,
            pa.ipc.new_file(file, schema, options=options) as writer,
        ):
            descriptor = Descriptor(unfinished, os.O_RDONLY)
            for rows in batches:
                writer.write_batch(rows)
                end = file.tell()
                if not written:
                    # Together with the first batch, the writer puts magic and schema before it.
                    begin = _schema_end(descriptor.fd)
                    around = crc32c(os.pread(descriptor.fd, begin, 0))
                message = os.pread(descriptor.fd, end - begin, begin)
                first, each = rows.column("seq")[0].as_py(), times(rows)
                if not _same(rows, unpack(message)):
                    last = first + rows.num_rows - 1
                    reason = "the sealed record batch differs from what was written"
                    raise DamagedError(str(unfinished), begin, first, last, reason)
                size, crc = end - begin, crc32c(message)
                written.append((first, rows.num_rows, crc, begin, size, int(each[0]), int(each[-1])))
                topics.add(rows.column("topic"))
                begin = end
        if sync:
            os.fsync(descriptor.fd)
        size = os.fstat(descriptor.fd).st_size
        around = crc32c(os.pread(descriptor.fd, size - begin, begin), around)
        entries.finish(sync=sync)
        index = SegmentIndex(
            header.uuid,
            header.op,
            ends.op,
            header.first,
            ends.seq,
            size,
            ends.time,
            entries.size,
            around,
            np.array(written, BATCH),
        )
        # Not synced: if it is lost or torn it is written again.
        found = topics.finish(index.batches)
        write_whole(path.with_suffix(".topics"), found, sync=False)
        index.write(path.with_suffix(".index"), sync=sync)
        unfinished.rename(path)
    segment = SealedSegment(path, index)
    segment.topics_size = len(found)
    return segment


def _same(rows: pa.RecordBatch, others: pa.RecordBatch) -> bool:
    # To Arrow a NaN differs from itself, so compare the bytes.
    return bool(rows.equals(others) or rows.serialize().equals(others.serialize()))


def _schema_end(fd: int) -> int:
    """Where the first record batch begins: after ``ARROW1`` (padded to 8) and the encapsulated schema message."""
    _, metadata = struct.unpack("<II", os.pread(fd, 8, 8))
    return 16 + int(metadata)
