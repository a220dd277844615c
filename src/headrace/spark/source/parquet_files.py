"""Write Parquet files of messages in Python, where the columns are.

:class:`RowGroups` writes a file: it keeps rows until they fill a row group. When a query only copies messages to
Parquet files, Spark runs :func:`pieces` in place of the source's read function (``ParquetByPython.java``): its rows are
pieces of files instead of messages.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

GROUP_ROWS: Final = 131_072
GROUP_BYTES: Final = 32 << 20
"""The size of a row group: a task keeps it in memory, and a reader reads it at once."""

NAMES: Final = ("origin", "publisher", "topic")
"""Columns whose values repeat. Sequence numbers, times and payloads hardly do."""

PIECE_BYTES: Final = 8 << 20
"""Bytes of a file that are given to Spark at once."""

GIVES: Final = "rows long, piece binary"
"""The columns of :func:`pieces`: the messages in the row group that begins with a piece, and the piece."""

_PIECES: Final = pa.schema([pa.field("rows", pa.int64()), pa.field("piece", pa.binary())])


class RowGroups:
    """A file being written: takes batches, writes row groups."""

    def __init__(self, file: Any, schema: pa.Schema, **options: Any) -> None:
        self._parquet = pq.ParquetWriter(file, schema, **options)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, rows: pa.RecordBatch, kept: int) -> int:
        """Add a batch that takes ``kept`` bytes of memory; return the number of rows written."""
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += kept
        return self.flush() if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES else 0

    def flush(self) -> int:
        """Write the rows that wait; return their number."""
        written = self._rows
        if written:
            self._parquet.write_table(pa.Table.from_batches(self._waiting), row_group_size=written)
        self._waiting, self._rows, self._bytes = [], 0, 0
        return written

    def close(self, metadata: Mapping[str, str]) -> None:
        """Write the rows that wait, then the metadata."""
        self.flush()
        self._parquet.add_key_value_metadata(metadata)
        self._parquet.close()


def pieces(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the file of one partition, with columns named and described as by Spark's own writer.

    ``given`` is one value: a description of the file and the pickled read function, each after its length, and the
    pickled partition.
    """
    from pyspark.cloudpickle import loads

    (value,) = (batch.column(0)[0].as_py() for batch in given)
    described, rest = _split_by_length(value)
    function, partition = _split_by_length(rest)
    read, _ = loads(function)
    rows = read(iter([pa.RecordBatch.from_arrays([pa.array([partition], pa.binary())], ["partition"])]))
    return file_of(rows, json.loads(described))


def file_of(rows: Iterable[pa.RecordBatch], described: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Write rows to a file, and yield its pieces; the first piece has 0 rows only if the file has none."""
    taken = _PendingBytes()
    file: RowGroups | None = None
    # By position: Spark's names may differ from the source's in case.
    names = [field["name"] for field in described["schema"]["fields"]]
    for batch in rows:
        chosen = batch.select(described["columns"]).rename_columns(names)
        if file is None:
            file = _begin(taken, chosen.schema, described)
        # Even if only some columns are wanted, the memory of all is kept: a batch is often one allocation.
        if written := file.write(chosen, batch.nbytes):
            yield from _cut(written, taken.take())
    if file is None:
        file = _begin(taken, _schema(described), described)
    yield from _cut(file.flush(), taken.take())
    file.close(
        {
            "org.apache.spark.version": described["version"],
            "org.apache.spark.sql.parquet.row.metadata": json.dumps(
                described["schema"], separators=(",", ":")
            ),
        }
    )
    yield from _cut(0, taken.take())


class _PendingBytes:
    """A file object that keeps what is written until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def take(self) -> list[bytes]:
        written, self._written = self._written, []
        return written


def _split_by_length(data: bytes) -> tuple[bytes, bytes]:
    (length,) = struct.unpack_from(">i", data)
    return data[4 : 4 + length], data[4 + length :]


def _cut(rows: int, written: list[bytes]) -> Iterator[pa.RecordBatch]:
    for piece in _pieces(written):
        yield pa.RecordBatch.from_arrays([pa.array([rows]), pa.array([piece], pa.binary())], schema=_PIECES)
        rows = 0


def _pieces(written: Iterable[bytes]) -> Iterator[bytes]:
    """Cut bytes into pieces of :data:`PIECE_BYTES`, but for the last."""
    parts: list[memoryview] = []
    size = 0
    for each in written:
        data = memoryview(each)
        while size + len(data) >= PIECE_BYTES:
            end = PIECE_BYTES - size
            yield b"".join([*parts, data[:end]])
            parts, size, data = [], 0, data[end:]
        parts.append(data)
        size += len(data)
    if size:
        yield b"".join(parts)


def _schema(described: dict[str, Any]) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromJson(described["schema"]), timezone="UTC")


def _begin(file: _PendingBytes, schema: pa.Schema, described: dict[str, Any]) -> RowGroups:
    compression = described["compression"].lower()
    return RowGroups(
        file,
        schema,
        compression="none" if compression == "uncompressed" else compression,
        # Spark's level, which is not Arrow's.
        compression_level=3 if compression == "zstd" else None,
        use_deprecated_int96_timestamps=described["times"] == "INT96",
        use_dictionary=[name for name in schema.names if name.lower() in NAMES],
        store_schema=False,
    )
