"""Plan which tasks decode what: small files whole, large ones in parts.

The parts of a large file begin and end between records, which tasks look for
(:mod:`~headrace.spark.jobs.decode.record_boundaries`). What becomes of them depends on what is in the file
(:mod:`~headrace.spark.jobs.decode.capture_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from headrace.archive.folder import Folder
from headrace.errors import HeadraceError, StorageError
from headrace.spark.jobs.decode.capture_rows import CaptureRecords, FilePart, PcapRecords, opened
from headrace.spark.jobs.decode.pcap import HEADER_BYTES, is_known_link, read_header
from headrace.spark.jobs.decode.record_boundaries import PartScan, RecordFormat, join, scan
from headrace.spark.jobs.job import spark_ddl
from headrace.wire.capture import MAX_LINE, Capture, CaptureDecoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCANS: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        *(pa.field(name, pa.int64()) for name in ("begin", "end", "first", "following")),
        pa.field("stopped", pa.bool_()),
    ]
)


class Plan(NamedTuple):
    """What is to be decoded as it is, and the parts of pcap files whose packets are to be sorted first."""

    parts: list[FilePart]
    packets: list[FilePart]


def plan(spark: SparkSession, folder: Folder, names: Sequence[str], split: int) -> Plan:
    """Plan the tasks for files; those of more than ``split`` bytes are cut."""
    made = Plan([], [])
    large: dict[str, tuple[int, int]] = {}
    found = folder.system.get_file_info([f"{folder.path}/{name}" for name in names])
    for name, info in zip(names, found, strict=True):
        size = int(info.size or 0)
        layout = _layout(folder, name) if size > split else None
        if layout is None:
            made.parts.append(FilePart(name))
        elif layout.first is None:
            made.parts.extend(FilePart(name, direction=direction) for direction in (0, 1))
        else:
            large[name] = layout.first, size
    for name, parts in _exact_parts(spark, folder, large, split).items():
        (made.parts if name.endswith(".capture") else made.packets).extend(parts)
    return made


class _Layout(NamedTuple):
    """How the records of a file are laid out, and where they begin, if they can be decoded in parts."""

    form: RecordFormat
    first: int | None


def _layout(folder: Folder, name: str) -> _Layout | None:
    """Look at the beginning of a file; ``None`` if it cannot be read on after that."""
    with opened(folder, name) as file:
        try:
            if not name.endswith(".capture"):
                header = read_header(file)
                return _Layout(PcapRecords(header), HEADER_BYTES) if is_known_link(header) else None
            line = file.readline(MAX_LINE)
            about = next(iter(CaptureDecoder().feed(line)), None)
        except HeadraceError:
            return None
    if not isinstance(about, Capture):
        return None
    # The frames of a connection are found only from its beginning on.
    return _Layout(CaptureRecords(), len(line) if about.datagrams else None)


def _exact_parts(
    spark: SparkSession, folder: Folder, large: dict[str, tuple[int, int]], split: int
) -> dict[str, list[FilePart]]:
    if not large:
        return {}
    cuts = [
        FilePart(name, begin, min(begin + split, size))
        for name, (first, size) in large.items()
        for begin in range(first, size, split)
    ]
    scans: dict[str, list[PartScan]] = {name: [] for name in large}
    found = in_tasks(spark, len(cuts)).mapInArrow(partial(_scanned, folder, cuts), spark_ddl(_SCANS))
    for row in found.collect():
        scans[row.name].append(PartScan(row.begin, row.end, row.first, row.following, row.stopped))

    def again(name: str, part: PartScan, first: int) -> PartScan:
        return _scan(folder, name, part.begin, part.end, first)

    return {
        name: [FilePart(name, *part) for part in join(first, sorted(scans[name]), partial(again, name))]
        for name, (first, _) in large.items()
    }


def in_tasks(spark: SparkSession, count: int, most: int | None = None) -> DataFrame:
    """Return the numbers below ``count``, each in a task of its own, or in at most so many tasks."""
    return spark.range(0, count, 1, max(min(count, most or count), 1))


def _scanned(
    folder: Folder, cuts: Sequence[FilePart], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for place in batch.column(0).to_pylist():
            name = cuts[place].name
            found = _scan(folder, name, cuts[place].begin, cuts[place].end or 0)
            yield pa.RecordBatch.from_pylist([{"name": name, **found._asdict()}], _SCANS)


def _scan(folder: Folder, name: str, begin: int, end: int, first: int | None = None) -> PartScan:
    layout = _layout(folder, name)
    if layout is None:
        raise StorageError(f"{folder.path}/{name} has changed while it was read")
    with opened(folder, name) as file:
        return scan(file, layout.form, begin, end, first=first)
