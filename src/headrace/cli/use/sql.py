"""``sql``: a query over a log's messages and state."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.terminal.options import (
    ClientId,
    DoorScheme,
    Json,
    LinkUrl,
    committed_head,
    existing_log,
    hub_access,
    load_settings,
)
from headrace.cli.terminal.output import console, on_terminal, plain_table
from headrace.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

EXAMPLES: Final = (
    ("Messages by topic:", "headrace sql 'select topic, count(*) from messages group by 1'"),
    ("The largest:", "headrace sql 'from messages order by octet_length(payload) desc limit 3'"),
    ("A log without its hub:", "headrace sql -d ./old --format parquet 'from messages' > m.parquet"),
    ("The same answer tomorrow:", "headrace sql --as-of 1000 'select max(time) from messages'"),
)

_SHOWN: Final = 1000
"""Rows of a table on a terminal."""


class ResultFormat(StrEnum):
    """How a result is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    ARROW = "arrow"


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A query in DuckDB's SQL.")],
    url: LinkUrl = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", "-d", metavar="DIR", help="Read a data directory's files, whether or not its hub runs."
        ),
    ] = None,
    as_of: Annotated[
        int | None, typer.Option("--as-of", metavar="SEQ", min=0, help="The last message that counts.")
    ] = None,
    form: Annotated[
        ResultFormat | None,
        typer.Option("--format", help="How to write the result.", show_default="table, or csv in a pipe"),
    ] = None,
    as_json: Json = False,
    client_id: ClientId = None,
) -> None:
    """Query a log with SQL: messages, services, consumers and subscriptions are its tables.

    The files of a hub's data directory are read in place where they are at hand: those of --data, or else of this
    directory's hub. With --url the hub sends its messages first. stderr says which log the answer is about, and up to
    which message it is exact; --as-of repeats it. A payload is binary: decode(payload) is its text.
    """
    if url is not None and data is not None:
        raise UsageError("--url and --data both say where the messages are: leave out one")
    from headrace.client.sql.query import load_duckdb, query_files, query_link

    # Before a hub is asked for what could not be used.
    load_duckdb()
    settings = load_settings(None, data)
    if data is not None or (url is None and (settings.node.data / "log").exists()):
        committed = committed_head(settings, client_id)
        found = query_files(query, existing_log(settings), as_of, committed=committed)
    else:
        access = hub_access(url, DoorScheme.TUBE, client_id)
        found = access.ask("headrace sql", lambda link: query_link(query, link, as_of))
    usual = ResultFormat.JSON if as_json else ResultFormat.TABLE if on_terminal() else ResultFormat.CSV
    _write(found, form or usual)
    about = {key.decode(): value.decode() for key, value in (found.schema.metadata or {}).items()}
    typer.echo(
        f"headrace: exact for log {about['headrace.log']} up to message {about['headrace.head']}", err=True
    )


def _write(found: pa.Table, form: ResultFormat) -> None:
    from headrace.client.sql.query import plain

    match form:
        case ResultFormat.TABLE:
            table = plain_table(
                *(f">{field.name}" if _is_number(field) else field.name for field in found.schema)
            )
            # Not by name: two columns may have the same.
            for place in range(min(found.num_rows, _SHOWN)):
                table.add_row(*(_text(plain(column[place])) for column in found.columns))
            console().print(table)
            if found.num_rows > _SHOWN:
                typer.echo(f"headrace: {found.num_rows - _SHOWN:,} more rows: use --format csv", err=True)
        case ResultFormat.CSV:
            import pyarrow.csv

            pyarrow.csv.write_csv(_flat(found), sys.stdout.buffer)
        case ResultFormat.JSON:
            import msgspec

            for place in range(found.num_rows):
                row = zip(found.column_names, (plain(column[place]) for column in found.columns), strict=True)
                texts = {name: _text(value) if isinstance(value, bytes) else value for name, value in row}
                sys.stdout.buffer.write(msgspec.json.encode(texts, enc_hook=str) + b"\n")
        case ResultFormat.PARQUET:
            import pyarrow.parquet

            pyarrow.parquet.write_table(found, sys.stdout.buffer)
        case ResultFormat.ARROW:
            import pyarrow.ipc

            with pyarrow.ipc.new_stream(sys.stdout.buffer, found.schema) as writer:
                writer.write_table(found)
    sys.stdout.flush()


def _is_number(field: Any) -> bool:
    import pyarrow.types

    return bool(pyarrow.types.is_integer(field.type) or pyarrow.types.is_floating(field.type))


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bytes():
            return value.decode(errors="replace")
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _flat(found: pa.Table) -> pa.Table:
    """Make texts of columns that CSV cannot have."""
    import pyarrow as pa

    from headrace.client.sql.query import plain

    columns = []
    for column in found.columns:
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            column = pa.chunked_array([pa.array([_text(plain(value)) for value in column], pa.string())])
        columns.append(column)
    return pa.table(columns, names=found.column_names)
