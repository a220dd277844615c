"""Rows as users of the link publish them, and as they receive them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.client.base import Attributes, Payload, Row
from headrace.errors import UnexpectedError, UsageError
from headrace.message import SCHEMA, Message, map_column, messages
from headrace.wire.link.message import PUBLISHED, LinkMessage, rows_of
from headrace.wire.link.plain_rows import parse_messages

KEPT_BYTES: Final = 1 << 20
"""Largest column of equal values that is cached for the next batch, which is often as long."""

Publishable: TypeAlias = Payload | Row | Iterable[Payload | Row] | pa.RecordBatch | pa.Table


def published_rows(
    given: Publishable,
    topic: str = "",
    attributes: Attributes | None = None,
    numbers: Mapping[str, float] | None = None,
) -> pa.RecordBatch:
    """Convert what a user publishes to the schema of rows to publish; numbers among attributes become ``numbers``.

    >>> published_rows([b"a", {"payload": b"b", "topic": "t"}]).column("topic").to_pylist()
    ['', 't']
    >>> published_rows(b"a", attributes={"city": "Praha", "x": 5}).column("numbers").to_pylist()
    [[('x', 5.0)]]
    """
    if isinstance(given, pa.Table):
        given = given.combine_chunks().to_batches()[0] if given.num_rows else given.schema.empty_table()
    attributes, numbers = split_attributes(attributes, numbers)
    if isinstance(given, pa.RecordBatch | pa.Table):
        return _completed(given, topic, attributes, numbers)
    if isinstance(given, bytes | bytearray | memoryview | Mapping):
        given = [given]
    elif isinstance(given, str):
        raise UsageError("a payload is bytes: encode the text first")
    items = list(given)
    if not any(isinstance(item, Mapping) for item in items):
        return plain_rows(items, topic, attributes, numbers)
    return _from_dictionaries(items, topic, attributes, numbers)


def split_attributes(
    attributes: Attributes | None, numbers: Mapping[str, float] | None
) -> tuple[Mapping[str, str], Mapping[str, float]]:
    """Separate the texts among attributes from the numbers.

    >>> split_attributes({"city": "Praha", "x": 5}, {"y": 6.0})
    ({'city': 'Praha'}, {'y': 6.0, 'x': 5.0})
    """
    texts: dict[str, str] = {}
    found = dict(numbers or {})
    for name, value in (attributes or {}).items():
        match value:
            case str():
                texts[name] = value
            case bool():
                raise UsageError(f"attribute {name} is {value!r}: publish a text or a number")
            case int() | float():
                found[name] = float(value)
            case _:
                raise UsageError(f"attribute {name} is a {type(value).__name__}: publish a text or a number")
    return texts, found


def check_text(what: str, text: str) -> None:
    """Refuse what cannot be sent as text, before it fails a whole request."""
    if not isinstance(text, str):
        raise UsageError(f"{what} is text, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} is text that UTF-8 has, not {text!r}") from None


def plain_rows(
    payloads: Sequence[Payload],
    topic: str,
    attributes: Mapping[str, str] | None = None,
    numbers: Mapping[str, float] | None = None,
) -> pa.RecordBatch:
    """Make rows of payloads that share everything else."""
    count = len(payloads)
    columns = [
        pa.repeat(pa.scalar(topic, pa.string()), count),
        _same_map("attributes", attributes, count),
        _same_map("numbers", numbers, count),
        _payloads(payloads),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PUBLISHED)


def received_rows(message: LinkMessage) -> pa.RecordBatch:
    """Read the rows of a ``rows`` event, cut to its head's range."""
    rows = rows_of(message.body, SCHEMA)
    first, last = _span(message)
    if rows.num_rows:
        seqs = rows.column("seq").to_numpy()
        if seqs[0] < first or seqs[-1] > last:
            begin, end = np.searchsorted(seqs, [first, last + 1])
            rows = rows.slice(int(begin), int(end - begin))
    return rows


def received_messages(message: LinkMessage) -> Iterator[Message]:
    """Read the messages of a ``rows`` event."""
    plain = parse_messages(message.body)
    if plain is None:
        return messages(received_rows(message))
    first, last = _span(message)
    return (each for each in plain if first <= each.seq <= last)


def _span(message: LinkMessage) -> tuple[int, int]:
    """Return the sequence numbers that a ``rows`` event covers."""
    first, last = message.head.get("first"), message.head.get("last")
    if type(first) is not int or type(last) is not int:
        raise UnexpectedError("link", "rows", dict(message.head), "first and last as whole numbers")
    return first, last


def _payloads(payloads: Sequence[Payload]) -> pa.Array:
    if set(map(type, payloads)) <= {bytes}:
        return pa.array(payloads, pa.binary())
    for payload in payloads:
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise UsageError(f"a payload is bytes, not {type(payload).__name__}: encode it first")
    return pa.array([bytes(payload) for payload in payloads], pa.binary())


def _from_dictionaries(
    items: Sequence[Payload | Row], topic: str, attributes: Attributes, numbers: Mapping[str, float]
) -> pa.RecordBatch:
    rows: list[Row] = [item if isinstance(item, Mapping) else {"payload": item} for item in items]
    for row in rows:
        if unknown := set(row) - set(PUBLISHED.names):
            raise UsageError(f"a message has {', '.join(PUBLISHED.names)}, not {', '.join(sorted(unknown))}")
    maps_of = [
        split_attributes(row.get("attributes", attributes), row.get("numbers", numbers)) for row in rows
    ]
    columns = [
        pa.array([row.get("topic", topic) for row in rows], pa.string()),
        _maps("attributes", [texts for texts, _ in maps_of]),
        _maps("numbers", [found for _, found in maps_of]),
        _payloads([row.get("payload", b"") for row in rows]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PUBLISHED)


def _completed(
    given: pa.RecordBatch | pa.Table,
    topic: str,
    attributes: Mapping[str, str] | None,
    numbers: Mapping[str, float] | None,
) -> pa.RecordBatch:
    if unknown := set(given.schema.names) - set(PUBLISHED.names):
        raise UsageError(f"rows have {', '.join(PUBLISHED.names)}, not {', '.join(sorted(unknown))}")
    count = given.num_rows
    rest = {
        "topic": lambda: _same_topic(topic, count),
        "attributes": lambda: _same_map("attributes", attributes, count),
        "numbers": lambda: _same_map("numbers", numbers, count),
        "payload": lambda: pa.repeat(pa.scalar(b"", pa.binary()), count),
    }
    columns = []
    for field in PUBLISHED:
        if field.name not in given.schema.names:
            columns.append(rest[field.name]())
            continue
        try:
            columns.append(given.column(field.name).cast(field.type))
        except pa.ArrowException as error:
            raise UsageError(f"column {field.name}: expected {field.type} ({error})") from None
    columns = [
        column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PUBLISHED)


def _same_map(name: str, entries: Mapping[str, Any] | None, count: int) -> pa.Array:
    kind = PUBLISHED.field(name).type
    if entries:
        return _maps(name, [entries] * count)
    return (_empty_maps if 4 * count <= KEPT_BYTES else _empty_maps.__wrapped__)(kind, count)


def _same_topic(topic: str, count: int) -> pa.Array:
    check_text("a topic", topic)
    # A character has up to four bytes.
    kept = 4 * (len(topic) + 1) * count <= KEPT_BYTES
    return (_topics if kept else _topics.__wrapped__)(topic, count)


@lru_cache(maxsize=4)
def _topics(topic: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(topic, pa.string()), count)


@lru_cache(maxsize=4)
def _empty_maps(kind: pa.MapType, count: int) -> pa.Array:
    offsets = pa.array(np.zeros(count + 1, np.int32))
    return pa.MapArray.from_arrays(
        offsets, pa.array([], kind.key_type), pa.array([], kind.item_type), type=kind
    )


def _maps(name: str, entries: Sequence[Mapping[str, Any]]) -> pa.Array:
    try:
        return map_column(name, entries)
    except (pa.ArrowException, TypeError) as error:
        what = "strings" if name == "attributes" else "numbers"
        raise UsageError(f"{name}: expected names and {what} ({error})") from None
