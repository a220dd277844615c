"""SQL over a log, by DuckDB: sealed segments, the open tail and the state's tables, as they were at one message.

A log's files are read in place, beside a hub that runs or without one: DuckDB reads the columns that a query names, and
passes over segments whose numbers and times cannot match. A hub elsewhere sends its messages over the link first.

A query sees what was committed when it began, up to ``as_of``: the same query as of the same message gives the same
rows, as long as retention has not removed any. It can change nothing, and open nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from headrace.archive.past import ArchivedPast, open_whole
from headrace.client.link.client import LinkClient
from headrace.errors import UsageError
from headrace.hub.consumers.cursors import lag_facts
from headrace.hub.state_parts import StateParts
from headrace.log import Log
from headrace.log.sealed import SealedSegment
from headrace.message import SCHEMA

TABLES: Final = ("messages", "services", "consumers", "subscriptions")

_SERVICES: Final = pa.schema(
    [("service", pa.string()), ("kind", pa.string()), ("seq", pa.int64()), ("value", pa.binary())]
)
_CONSUMERS: Final = pa.schema(
    [
        ("consumer", pa.string()),
        ("floor", pa.int64()),
        ("behind", pa.int64()),
        ("behind_exact", pa.bool_()),
        ("dead", pa.int64()),
        ("lost", pa.int64()),
    ]
)
_HERE, _ARCHIVED = "messages_here", "messages_archived"
"""The two parts of the messages: those of the log's own files, and those that only its archive has."""

_BOTH: Final = "create view messages as from messages_archived union all by name from messages_here"

_SUBSCRIPTIONS: Final = pa.schema([("client", pa.string()), ("name", pa.string()), ("fields", pa.string())])


def sql(
    query: str,
    *,
    data: str | Path | None = None,
    url: str | None = None,
    as_of: int | None = None,
    **options: Any,
) -> pa.Table:
    """Run a query over the tables ``messages``, ``services``, ``consumers`` and ``subscriptions``.

    ``data`` is a hub's data directory, ``url`` a hub's link; by default the hub at this machine's default port.
    ``options`` are those of :func:`headrace.connect`. The result's metadata say the log's uuid and the message that it
    is exact for.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     _ = link.publish([b"a", b"b"], topic="letters")
    ...     sql("select topic, count(*) as n from messages group by 1", url=hub.url("tube")).to_pylist()
    [{'topic': 'letters', 'n': 2}]
    """
    if data is not None and url is not None:
        raise UsageError("data and url both say where the messages are: leave out one")
    load_duckdb()
    if data is not None:
        return query_files(query, Path(data) / "log", as_of)
    from headrace.client.connect import connect_sync

    link: Any = connect_sync(url or "tube://", **options)
    with link:
        return link.wait(query_link(query, link.client, as_of))


def query_files(query: str, directory: Path, as_of: int | None = None) -> pa.Table:
    """Run a query over a log's files."""
    with open_whole(directory) as log:
        upto = _upto(log.head, as_of)
        tables: dict[str, Any] = {_HERE: _messages(log, upto), _ARCHIVED: _archived(log, upto)}
        if any(table in query.lower() for table in TABLES[1:]):
            # The state is that of the head: what it was before cannot be told from the files alone.
            if upto != log.head:
                raise UsageError("as_of: only messages are known as of an earlier one")
            tables |= _state_tables(log)
        return _run(query, tables, str(log.uuid), upto)


async def query_link(query: str, link: LinkClient, as_of: int | None = None) -> pa.Table:
    """Run a query over the messages and consumers that a hub sends."""
    extent = await link.head()
    upto = _upto(extent.head, as_of)
    tables: dict[str, Any] = {}
    words = query.lower()
    if "services" in words or "subscriptions" in words:
        raise UsageError("services and subscriptions are read from a hub's files: use data (--data)")
    if "consumers" in words:
        rows = [{name: each[name] for name in _CONSUMERS.names} for each in await link.consumers()]
        tables["consumers"] = pa.Table.from_pylist(rows, _CONSUMERS)
    stream = link.read(extent.first, upto) if upto >= extent.first else None
    tables["messages"] = SCHEMA.empty_table() if stream is None else await stream.to_arrow()
    return _run(query, tables, str(extent.log), upto)


def _run(query: str, tables: dict[str, Any], log: str, head: int) -> pa.Table:
    duckdb = load_duckdb()
    with duckdb.connect(":memory:") as connection:
        for name, table in tables.items():
            connection.register(name, table)
        if _HERE in tables:
            connection.execute(_BOTH)
        # A query is about this log: it opens no file and no network, and cannot turn that back on.
        connection.execute(
            "set timezone = 'UTC'; set enable_external_access = false; set lock_configuration = true"
        )
        try:
            answer = connection.sql(query)
            if answer is None:
                raise UsageError("SQL: expected a query, which has rows as its answer")
            found: pa.Table = answer.to_arrow_table()
        except duckdb.Error as error:
            raise UsageError(f"SQL: {error}") from None
    return found.replace_schema_metadata({"headrace.log": log, "headrace.head": str(head)})


def load_duckdb() -> Any:
    """Import DuckDB, or say how to get it."""
    try:
        import duckdb
    except ImportError:
        raise UsageError("SQL needs DuckDB: pip install '.[sql]' in Headrace's repository") from None
    return duckdb


def _upto(head: int, as_of: int | None) -> int:
    if as_of is not None and not 0 <= as_of <= head:
        raise UsageError(f"as_of {as_of}: the log ends at {head}")
    return head if as_of is None else as_of


def _messages(log: Log, upto: int) -> Any:
    """Return the messages as one dataset: a fragment for each sealed segment, and the open tail in memory."""
    files, form = [], ds.IpcFileFormat()
    sealed_to = log.first_here - 1
    for segment in log.segments:
        if not isinstance(segment, SealedSegment) or segment.first > upto:
            break
        sealed_to = segment.last
        files.append(form.make_fragment(str(segment.path), LocalFileSystem(), _range_of(segment)))
    tail = pa.Table.from_batches(list(_tail_rows(log, sealed_to + 1, upto)), SCHEMA)
    parts = [ds.dataset(tail)]
    if files:
        parts.insert(0, ds.FileSystemDataset(files, SCHEMA, form))
    whole = ds.dataset(parts, schema=SCHEMA)
    return whole.filter(ds.field("seq") <= upto) if sealed_to > upto else whole


def _archived(log: Log, upto: int) -> Any:
    """Return the messages that only the archive has, as one dataset: a fragment for each of its files."""
    past, end = log.past, min(upto, log.first_here - 1)
    if not isinstance(past, ArchivedPast) or log.first > end:
        return ds.dataset(SCHEMA.empty_table())
    system, files = past.files(log.first, end)
    form = ds.ParquetFileFormat()
    seq = ds.field("seq")
    fragments = [
        form.make_fragment(file.path, system, (seq >= file.first) & (seq <= file.last)) for file in files
    ]
    whole = ds.FileSystemDataset(fragments, SCHEMA, form, system)
    return whole.filter(seq <= end)


def _range_of(segment: SealedSegment) -> Any:
    """Return what is known of a segment's rows without opening it."""
    seq = ds.field("seq")
    known = (seq >= segment.first) & (seq <= segment.last)
    if (earliest := segment.first_time()) is not None:
        time, form = ds.field("time"), SCHEMA.field("time").type
        known &= (time >= pa.scalar(earliest, form)) & (time <= pa.scalar(segment.last_time, form))
    return known


def _tail_rows(log: Log, first: int, last: int) -> Iterator[pa.RecordBatch]:
    if first <= last:
        for batch in log.scan(first, last):
            yield batch.to_arrow()


def _state_tables(log: Log) -> dict[str, pa.Table]:
    parts = StateParts()
    parts.state().restore(log)
    services = [
        {"service": each.id, "kind": each.kind.value, "seq": each.seq, "value": each.snapshot}
        for each in parts.services
    ]
    consumers = [
        {
            "consumer": each.name,
            "floor": each.floor,
            **lag_facts(parts.consumers.lag(each, log.head)),
            "dead": each.dead,
            "lost": each.lost,
        }
        for each in parts.consumers
    ]
    subscriptions = [
        {
            "client": client.hex(),
            "name": part.name,
            "fields": msgspec.json.encode(
                {name: msgspec.Raw(field) for name, field in part.fields.items()}
            ).decode(),
        }
        for client, each in parts.subscriptions
        for part in each.parts(client).values()
    ]
    return {
        "services": pa.Table.from_pylist(services, _SERVICES),
        "consumers": pa.Table.from_pylist(consumers, _CONSUMERS),
        "subscriptions": pa.Table.from_pylist(subscriptions, _SUBSCRIPTIONS),
    }
