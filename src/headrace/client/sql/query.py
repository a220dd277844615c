"""SQL over a log, by DuckDB: sealed segments, the open tail and the state's tables, as they were at one message.

A log's files are read in place, beside a hub that runs or without one. A hub elsewhere sends its messages over the link
first.

A query sees what was committed when it began, up to ``as_of``: the same query as of the same message gives the same
rows, as long as retention has not removed any. It can change nothing, and open nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from headrace.archive.past import open_whole
from headrace.client.link.client import LinkClient
from headrace.client.sql import asks_for_state
from headrace.client.sql.log_table import LogTable
from headrace.client.sql.messages import BOTH, HERE, messages_of
from headrace.client.sql.state_tables import (
    consumers_of_link,
    services_of_link,
    state_of_files,
)
from headrace.client.sql.topic_counts import COUNTS, SUM, counts_instead
from headrace.errors import UsageError
from headrace.message import SCHEMA

_SAFE: Final = "set timezone = 'UTC'; set enable_external_access = false; set lock_configuration = true"
"""A query is about this log: it opens no file and no network, and cannot turn that back on."""


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


def query_files(
    query: str,
    directory: Path,
    as_of: int | None = None,
    *,
    committed: int | None = None,
    rows: int | None = None,
    **limits: str,
) -> pa.Table:
    """Run a query over a log's files.

    ``committed`` is the last message that the log's hub has committed, if one runs: its files may have later ones. Of
    an answer, the first ``rows`` are returned. ``limits`` are settings of DuckDB.
    """
    with open_whole(directory) as log:
        if committed is not None and committed < log.head:
            log.head = committed
            log.head_op = log.op_of(committed) if committed >= log.first_here else 0
        upto = _upto(log.head, as_of)
        tables = messages_of(log, upto)
        if asks_for_state(query):
            # The state is that of the head: what it was before cannot be told from the files alone.
            if upto != log.head:
                raise UsageError("as_of: only messages are known as of an earlier one")
            tables |= state_of_files(log)
        return run(query, tables, str(log.uuid), upto, rows, **limits)


async def query_link(query: str, link: LinkClient, as_of: int | None = None) -> pa.Table:
    """Run a query over the messages, services and consumers that a hub sends."""
    extent = await link.head()
    upto = _upto(extent.head, as_of)
    tables: dict[str, Any] = {}
    words = query.lower()
    if "subscriptions" in words:
        raise UsageError("subscriptions are read from a hub's files: use data (--data)")
    if "services" in words:
        tables["services"] = await services_of_link(link)
    if "consumers" in words:
        tables["consumers"] = await consumers_of_link(link)
    if "messages" in words:
        stream = link.read(extent.first, upto) if upto >= extent.first else None
        tables["messages"] = SCHEMA.empty_table() if stream is None else await stream.to_arrow()
    return run(query, tables, str(extent.log), upto)


def run(
    query: str, tables: dict[str, Any], log: str, head: int, rows: int | None = None, **limits: str
) -> pa.Table:
    """Run a query over tables; the answer's metadata say the log and the message that it is exact for."""
    duckdb = load_duckdb()
    with duckdb.connect(":memory:") as connection:
        for name, table in tables.items():
            connection.register(name, table)
        if HERE in tables:
            connection.execute(BOTH)
        connection.execute(SUM)
        for name, value in limits.items():
            connection.execute(f"set {name} = '{value}'")
        connection.execute(_SAFE)
        try:
            messages = tables.get("messages") or tables.get(HERE)
            if (
                HERE not in tables
                and isinstance(messages, LogTable)
                and (counting := counts_instead(connection, query)) is not None
            ):
                connection.register(COUNTS, messages.topic_counts())
                query = counting
            answer = connection.sql(query)
            if answer is None:
                raise UsageError("SQL: expected a query, which has rows as its answer")
            found: pa.Table = (answer if rows is None else answer.limit(rows)).to_arrow_table()
        except duckdb.Error as error:
            if isinstance(messages, LogTable) and messages.failed is not None:
                raise messages.failed from None
            raise UsageError(f"SQL: {error}") from None
        except pa.ArrowInvalid as error:
            raise UsageError(f"SQL: the answer cannot be given: {error}") from None
    return found.replace_schema_metadata({"headrace.log": log, "headrace.head": str(head)})


def plain(value: pa.Scalar) -> Any:
    """Return a value as a Python object, or a text that says why there is none: DuckDB has a wider range of dates."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return f"({value.type} out of range: cast it to varchar)"


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
