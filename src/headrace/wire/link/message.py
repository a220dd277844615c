"""The link's messages: a CBOR map, the head, followed by raw bytes, the body.

The head is small (:data:`MAX_HEAD`), shallow, definite and untagged. A body of rows is one encapsulated Arrow IPC
record batch message; :func:`rows_of` parses it, :func:`body_of` makes it.

Arrow bytes from peers are untrusted: rows are validated in full before use, and pyarrow's errors become our own.
Compressed buffers state their unpacked length; the sum of those is bounded before pyarrow unpacks anything.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import cbor2
import pyarrow as pa

from headrace.errors import LimitError, MalformedError
from headrace.message import SCHEMA, envelope_schema

VERSIONS: Final = (2,)
"""Supported versions of the link, ascending."""
VERSION: Final = VERSIONS[-1]
MAX_MESSAGE: Final = 8 << 20
"""The longest message a client sends: a tube carries one at a time, so none may hold up the others for long."""
MAX_ANSWER: Final = 2 * MAX_MESSAGE
"""The longest message a hub sends. Rows are cut at about :data:`ROWS_BYTES`, but a single row must pass whole, and may
have nearly :data:`MAX_MESSAGE` of payload and as much of envelope."""
ROWS_BYTES: Final = 1 << 20
MAX_ROWS_BYTES: Final = 64 << 20
"""Most bytes of a body's rows once their buffers are unpacked."""
MAX_HEAD: Final = 128 << 10
MAX_DEPTH: Final = 8

PUBLISHED: Final = envelope_schema("topic", "attributes", "numbers", "payload")
"""The schema of rows to be published; the hub fills in the rest of the envelope."""

SUBSCRIPTIONS: Final = pa.schema(
    [
        pa.field("client", pa.string(), nullable=False),
        pa.field("connector", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("op", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("fields", pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)
"""The schema of the matcher's table: a client's id in hex, its connector, the message that the entry which last changed
its subscriptions stands after, that entry's position in the log, the subscription's name, and the field JSON of each
attribute it names. A subscription with alternatives has a row for each; the rows of a client are adjacent."""

ENTRIES: Final = SCHEMA.append(pa.field("op", pa.int64(), nullable=False))
"""The schema of log entries: the envelope, whose ``seq`` is the message that an entry stands after, and the entry's
position in the log."""

Buffer = bytes | bytearray | memoryview

Body = Buffer | Sequence[Buffer]
"""A body to be sent: one buffer, or several that stand side by side."""


class LinkMessage(NamedTuple):
    """One message of the link."""

    head: Mapping[str, Any]
    body: memoryview = memoryview(b"")


encode_head: Final[Callable[[dict[str, Any]], bytes]] = cbor2.dumps
"""Encodes a head, however long; :func:`serialize` refuses one that is too long."""


def serialize(head: dict[str, Any]) -> bytes:
    """Serialize a head; its body, if any, follows it in the same tube message."""
    data = encode_head(head)
    if len(data) > MAX_HEAD:
        raise LimitError("link", "head", len(data), MAX_HEAD)
    return data


def serialize_before(head: dict[str, Any], size: int) -> bytes:
    """Serialize a head before a body of ``size`` bytes, padded to a multiple of 8 if the body is :data:`LONG`.

    So the body can be read in place.

    >>> len(serialize_before({"id": 1, "event": "rows", "first": 1, "last": 300}, LONG)) % 8
    0
    """
    if size < LONG:
        return serialize(head)
    padding = -len(serialize({**head, "pad": ""})) % _ALIGNED
    return serialize({**head, "pad": "-" * padding})


def parse(message: Buffer) -> LinkMessage:
    """Parse a tube's message."""
    view = memoryview(message)
    if len(view) > MAX_ANSWER:
        raise LimitError("link", "message", len(view), MAX_ANSWER)
    source = io.BytesIO(bytes(view[:MAX_HEAD]))
    decoder = cbor2.CBORDecoder(
        source,
        max_depth=MAX_DEPTH,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
        tag_hook=_refuse_tag,
        semantic_decoders=_NO_TAGS,
    )
    try:
        head = decoder.decode()
    except _CBOR_ERRORS as error:
        raise MalformedError("link", "head", bytes(view[:64]), f"must be a CBOR map ({error})") from None
    if type(head) is not dict or not _TEXT.issuperset(map(type, head)):
        raise MalformedError("link", "head", bytes(view[:64]), "must be a CBOR map with text keys")
    return LinkMessage(head, view[source.tell() :])


def body_of(rows: pa.RecordBatch) -> memoryview:
    """Serialize rows as a body: one encapsulated IPC record batch message."""
    # Nothing else refers to this memory, so a tube may send it without a copy.
    return memoryview(rows.serialize()).toreadonly()


def rows_of(body: Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Parse rows from a body that a peer sent, and check them in full."""
    view = memoryview(body)
    try:
        buffer = pa.py_buffer(view)
        if buffer.address % _ALIGNED:
            # The head before it may have any length, but Arrow and numpy need aligned numbers.
            buffer = pa.py_buffer(bytes(view))
        message = pa.ipc.read_message(buffer)
        if message.type != "record batch":
            raise MalformedError("link", "body", message.type, "must be an Arrow IPC record batch")
        unpacked = _unpacked_bytes(memoryview(message.metadata), message.body)
        if unpacked > MAX_ROWS_BYTES:
            raise LimitError("link", "body", unpacked, MAX_ROWS_BYTES)
        rows = pa.ipc.read_record_batch(message, schema)
        rows.validate(full=True)
    except _ARROW_ERRORS as error:
        raise MalformedError(
            "link", "body", bytes(view[:16]), f"must be rows of the schema ({error})"
        ) from None
    for column in schema:
        values = rows.column(column.name)
        nulls = 0 if column.nullable else values.null_count
        if pa.types.is_map(column.type):
            nulls += values.keys.null_count + values.items.null_count
        if nulls:
            raise MalformedError("link", f"column {column.name}", "null", "must have a value in every row")
    return rows


def _unpacked_bytes(metadata: memoryview, body: pa.Buffer | None) -> int:
    """The stated size of a record batch's buffers once unpacked; 0 if they are not packed.

    This reads just enough of the metadata's flatbuffer: ``Message.header`` (its third field) is a ``RecordBatch``,
    whose third field lists the buffers; if it has a fourth, each buffer begins with its unpacked length.
    """
    header = _field(metadata, struct.unpack_from("<I", metadata)[0], 2)
    batch = 0 if header is None else header + struct.unpack_from("<I", metadata, header)[0]
    if not batch or _field(metadata, batch, 3) is None or body is None:
        return 0
    buffers = _field(metadata, batch, 2)
    if buffers is None:
        return 0
    at = buffers + struct.unpack_from("<I", metadata, buffers)[0]
    count = struct.unpack_from("<I", metadata, at)[0]
    if count > _MAX_BUFFERS:
        raise LimitError("link", "buffers of rows", count, _MAX_BUFFERS)
    total = 0
    content = memoryview(body)
    for number in range(count):
        offset, length = struct.unpack_from("<qq", metadata, at + 4 + 16 * number)
        if length:
            # -1 marks a buffer that is not packed after all.
            unpacked = struct.unpack_from("<q", content, offset)[0]
            total += length if unpacked < 0 else unpacked
    return total


def _field(table: memoryview, at: int, number: int) -> int | None:
    """The position of a field of the flatbuffer table at ``at``, or ``None`` if it is left out."""
    fields = at - struct.unpack_from("<i", table, at)[0]
    if fields < 0:
        raise struct.error("a table's fields lie before its beginning")
    size = struct.unpack_from("<H", table, fields)[0]
    place = 4 + 2 * number
    offset = struct.unpack_from("<H", table, fields + place)[0] if place + 2 <= size else 0
    return at + offset if offset else None


def _refuse_tag(tag: cbor2.CBORTag, _immutable: bool) -> object:
    raise ValueError(f"tag {tag.tag} has no meaning here")


def _tagged(_decoder: cbor2.CBORDecoder, *_: object) -> object:
    raise ValueError("tags have no meaning here")


# Tags that cbor2 decodes by itself (dates, big numbers, patterns, shared references …).
_NO_TAGS: Final = dict.fromkeys(
    (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000), _tagged
)

_TEXT: Final = frozenset((str,))

_ALIGNED: Final = 8

LONG: Final = 64 << 10
"""Size from which a body is aligned, so that its reader need not copy it."""

_MAX_BUFFERS: Final = 256
"""The envelope has 27."""

_CBOR_ERRORS: Final = (
    cbor2.CBORDecodeError,
    ValueError,
    TypeError,
    RecursionError,
    OverflowError,
    MemoryError,
)

_ARROW_ERRORS: Final = (
    *(pa.ArrowException, OSError, EOFError, ValueError, TypeError),
    *(IndexError, OverflowError, NotImplementedError, struct.error),
)
