"""An archive as a copy of a history, to be compared with others (:mod:`headrace.log.proof.comparison`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.archive.folder import storage_errors
from headrace.archive.parquet_file import enveloped, open_parquet
from headrace.archive.table import ArchiveTable

BATCH_ROWS: Final = 16_384


class ArchiveCopy:
    """An archive: a table of Parquet files. It records no digests, so they are always computed."""

    def __init__(self, name: str, table: ArchiveTable) -> None:
        self.name = name
        self.at_hand = True
        self.log = UUID(table.log)
        self.first, self.head = table.all_files()[0].first, table.through
        self._table = table

    def recorded(self) -> None:
        """Return none."""

    def rows(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield messages."""
        for file in self._table.files(first, last):
            with storage_errors(file.path), self._table.filesystem.open_input_file(file.path) as source:
                parquet = open_parquet(source)
                groups = [
                    number
                    for number in range(parquet.num_row_groups)
                    if _overlaps(parquet.metadata.row_group(number), first, last)
                ]
                for batch in parquet.iter_batches(BATCH_ROWS, row_groups=groups, use_threads=False):
                    seqs = batch.column("seq").to_numpy()
                    wanted = (seqs >= first) & (seqs <= last)
                    if wanted.all():
                        yield enveloped(batch)
                    elif wanted.any():
                        yield enveloped(batch.filter(pa.array(wanted)))


def _overlaps(group: pq.RowGroupMetaData, first: int, last: int) -> bool:
    """Whether a row group may have any of the messages."""
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema == "seq" and column.statistics is not None:
            return bool(column.statistics.min <= last and column.statistics.max >= first)
    return True
