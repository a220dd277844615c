"""Archives made without Spark: tables of made-up messages, in any format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.archive import ArchiveTable, open_table
from headrace.archive.folder import Folder
from headrace.archive.ledger import Ledger, Writer
from headrace.archive.parquet_file import ArchiveFile, write_files
from headrace.archive.table import open_ledger
from headrace.errors import NoArchiveError
from headrace.message import SCHEMA

BEGIN = 1_790_000_000_000_000
"""A Monday in September 2026, in µs."""

LOG = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER_LOG = "7c9e6679-7425-40de-944b-e07fc1f90ae7"

WRITER = Writer("tests", 0)


def rows(
    first: int, last: int, *, begin: int = BEGIN, step: int = 1000, **columns: pa.Array | list[Any]
) -> pa.Table:
    """Messages ``first`` to ``last``, ``step`` µs apart; ``columns`` replace what is made up here."""
    seqs = np.arange(first, last + 1, dtype=np.int64)
    count = len(seqs)
    made: dict[str, pa.Array | list[Any]] = {
        "seq": pa.array(seqs),
        "time": pa.array(begin + (seqs - 1) * step).cast(SCHEMA.field("time").type),
        "origin": pa.repeat("tube", count),
        "node": pa.repeat(pa.scalar(7, pa.int32()), count),
        "publisher": pa.array(np.char.add("p", (seqs % 3).astype(str)).tolist(), pa.string()),
        "number": pa.array(seqs // 3),
        "topic": pa.array(np.char.add("t", (seqs % 5).astype(str)).tolist(), pa.string()),
        "attributes": pa.array([[]] * count, SCHEMA.field("attributes").type),
        "numbers": pa.array([[]] * count, SCHEMA.field("numbers").type),
        "payload": pa.array([f"message {seq}".encode() for seq in seqs.tolist()], pa.binary()),
        **columns,
    }
    arrays = [
        value if isinstance(value, pa.Array | pa.ChunkedArray) else pa.array(value, field.type)
        for field, value in ((field, made[field.name]) for field in SCHEMA)
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def ledger(kind: str, place: Path | str, log: str | None = LOG) -> Ledger:
    """Open an archive to write to it."""
    return open_ledger(kind, Folder.at(str(place)), log)


def staged(to: Ledger, table: pa.Table) -> list[ArchiveFile]:
    """Write what is new of a table to files that do not count yet."""
    return list(write_files(to.folder, to.staging, to.log, to.through, table.to_batches()))


def add(to: Ledger, table: pa.Table, writer: Writer = WRITER) -> None:
    """Archive messages."""
    to.append(staged(to, table), writer)


def archived(place: Path | str, columns: list[str] | None = None) -> pa.Table:
    """Read the newest version by pyarrow alone; no rows if there is no archive yet."""
    try:
        table = open_table(str(place))
    except NoArchiveError:
        return SCHEMA.empty_table().select(columns or SCHEMA.names)
    return read(table, columns)


def read(table: ArchiveTable, columns: list[str] | None = None) -> pa.Table:
    """Read the files of a version, in their order."""
    schema = pa.schema([SCHEMA.field(name) for name in columns or SCHEMA.names])
    found = [
        pq.read_table(table.filesystem.open_input_file(file.path), columns=schema.names).cast(schema)
        for file in table.all_files()
    ]
    return pa.concat_tables(found).combine_chunks()
