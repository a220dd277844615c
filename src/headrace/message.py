"""The envelope, and the two shapes of a batch of messages: compact (hot path) and Arrow (everywhere else).

:data:`SCHEMA` is the one table of the envelope's columns: the log's sealed segments, the link and Spark take names and
types from it, and find columns by name. Nothing on the hot path makes a Python object per message: what came in one
read is a :class:`Run` (payloads side by side in one buffer, and their offsets), and a numbered run with what its
messages share is a :class:`Batch`. :meth:`Batch.to_arrow` gives rows in the schema without copying the payloads;
:meth:`Batch.from_arrow` goes back. :class:`Message` is one message as one object, made only on request.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from html import escape
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from headrace.errors import UsageError
from headrace.protocols import NOT_A_MESSAGE as NOT_A_MESSAGE

MAX_SEQUENCE = (1 << 48) - 1
"""Sequence numbers are 48 bits on every wire: nearly nine years at a million messages a second. Past it the hub
refuses messages instead of wrapping."""

MAX_RUN_BYTES = (1 << 31) - 1
"""Offsets are 32-bit, as Arrow's ``binary`` has them."""

_OFFSET_BYTES = 4

_BATCH_BYTES = 512
"""Approximate memory of a batch itself, and of its place in a queue."""

_SHOWN: Final = 400
"""Bytes of a payload that a notebook shows."""

SCHEMA = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("node", pa.int32(), nullable=False),
        pa.field("publisher", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=True),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("attributes", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("numbers", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""The envelope's columns. Absent text is empty, absent maps are empty; only ``number`` may be null."""

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]


@cache
def envelope_schema(*names: str) -> pa.Schema:
    """The schema of these columns of the envelope."""
    return pa.schema([SCHEMA.field(name) for name in names])


def column_type(name: str) -> pa.DataType:
    """The type of one of the envelope's columns."""
    return SCHEMA.field(name).type


def envelope_rows(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Columns of the envelope, by name, as a record batch."""
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=envelope_schema(*columns))


def map_column(name: str, entries: Iterable[Mapping[str, Any]]) -> pa.Array:
    """The column ``attributes`` or ``numbers`` from a Python mapping per message."""
    return pa.array([list(entry.items()) for entry in entries], column_type(name))


def offsets_of(array: pa.Array) -> Offsets:
    """The offsets of an Arrow array of texts, payloads or maps: where each begins, and where the last ends."""
    if not len(array):
        # An empty array may come without its one offset.
        return np.zeros(1, np.int32)
    _validity, offsets, *_ = array.buffers()
    return np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]


def bytes_of(array: pa.Array) -> Bytes:
    """The bytes that the offsets of an Arrow array of texts or payloads point into."""
    _validity, _offsets, data = array.buffers()
    return np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


class Message(msgspec.Struct, frozen=True):
    """One whole message, as ``async for message in …`` yields it.

    >>> message = Message(seq=7, payload=b"hello", topic="greetings")
    >>> message.seq, message.payload, message.topic
    (7, b'hello', 'greetings')
    """

    seq: int
    payload: bytes
    time: int = 0
    origin: str = ""
    node: int = 0
    publisher: str = ""
    number: int | None = None
    topic: str = ""
    attributes: Mapping[str, str] = {}
    numbers: Mapping[str, float] = {}
    subs: tuple[str, ...] = ()
    """The names of the content subscriptions that it satisfies, where the client gave them names."""
    events: Mapping[str, tuple[str, ...]] = {}
    """What it is to their fences, ``enter``, ``inside`` or ``exit``; the unnamed subscription's name is empty."""

    def _repr_html_(self) -> str:
        """Show it in a notebook: its envelope as a table, and the beginning of its payload."""
        payload = self.payload[:_SHOWN].decode(errors="replace") + ("…" if len(self.payload) > _SHOWN else "")
        shown = {
            "seq": self.seq,
            "time": datetime.fromtimestamp(self.time / 1e6, UTC).isoformat(" ") if self.time else "",
            "origin": self.origin,
            "topic": self.topic,
            **self.attributes,
            **self.numbers,
            "payload": payload,
        }
        rows = "".join(
            f"<tr><th>{escape(str(name))}</th><td><code>{escape(str(value))}</code></td></tr>"
            for name, value in shown.items()
            if value != ""
        )
        return f"<table>{rows}</table>"


class Run:
    """Many payloads in one buffer: payload ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

    The first offset need not be 0 (a slice shares its parent's buffer). Two runs are equal when their
    payloads are. A run never changes.

    A run of one (:meth:`one`) keeps its payload as the ``bytes`` it came as, in ``lone``, and makes arrays of it
    only on request: a message that comes alone must be quick, and numpy pays off only for many.

    >>> run = Run.of([b"one", b"two"])
    >>> len(run), run.size, run[1]
    (2, 6, b'two')
    """

    __slots__ = ("_data", "_offsets", "count", "lone", "summed")

    def __init__(self, data: Bytes, offsets: Offsets, summed: int | None = None) -> None:
        self._data: Bytes | None = data
        self._offsets: Offsets | None = offsets
        self.count = len(offsets) - 1
        """Number of payloads: ``len()`` without its cost, for the hot path."""
        self.lone: bytes | None = None
        self.summed = summed
        """CRC32C of :attr:`content`, if it is known."""

    @classmethod
    def one(cls, payload: bytes) -> Run:
        """A run of a single payload."""
        run = cls.__new__(cls)
        run._data = run._offsets = None
        run.count = 1
        run.lone = payload
        run.summed = None
        return run

    @classmethod
    def of(cls, payloads: Iterable[bytes | bytearray | memoryview]) -> Run:
        """Copy payloads side by side.

        >>> [bytes(p) for p in Run.of([b"ab", b"", b"c"])]
        [b'ab', b'', b'c']
        """
        parts = [bytes(payload) for payload in payloads]
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        if offsets[-1] > MAX_RUN_BYTES:
            raise UsageError(f"a batch of {offsets[-1]} payload bytes: split it, {MAX_RUN_BYTES} is the most")
        return cls(np.frombuffer(b"".join(parts), np.uint8), offsets.astype(np.int32))

    @property
    def data(self) -> Bytes:
        """The buffer."""
        if self._data is None:
            self._data = np.frombuffer(self.lone or b"", np.uint8)
        return self._data

    @property
    def offsets(self) -> Offsets:
        """The beginning of each payload, and the end of the last."""
        if self._offsets is None:
            self._offsets = np.array((0, len(self.lone or b"")), np.int32)
        return self._offsets

    def __repr__(self) -> str:
        return f"Run.of({list(itertools.islice(self, 4))}{'…' if len(self) > 4 else ''})"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> bytes:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        whole = self.data.data
        edges = self.offsets.tolist()
        for begin, end in itertools.pairwise(edges):
            yield bytes(whole[begin:end])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        return (
            len(self) == len(other)
            and np.array_equal(self.lengths, other.lengths)
            and np.array_equal(self.content, other.content)
        )

    __hash__ = None  # type: ignore[assignment]

    def slice(self, begin: int, end: int) -> Run:
        """Payloads ``begin`` up to ``end``, sharing this run's buffer."""
        return Run(self.data, self.offsets[begin : end + 1])

    @property
    def lengths(self) -> Offsets:
        """The length of each payload."""
        return np.diff(self.offsets)

    @property
    def content(self) -> Bytes:
        """The payloads' bytes alone, without the rest of the buffer."""
        return self.data[self.offsets[0] : self.offsets[-1]]

    @property
    def size(self) -> int:
        """Bytes of all payloads."""
        if self.lone is not None:
            return len(self.lone)
        return int(self.offsets[-1]) - int(self.offsets[0])

    def to_arrow(self) -> pa.Array:
        """The payloads as an Arrow ``binary`` array over the same memory."""
        buffers = [None, pa.py_buffer(np.ascontiguousarray(self.offsets)), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(self), buffers)

    @classmethod
    def from_arrow(cls, array: pa.Array) -> Run:
        """A run over an Arrow ``binary`` array's own memory."""
        if array.type != pa.binary():
            # Other readers' large_binary and binary_view have the same values in another layout.
            raise UsageError(f"payloads of type {array.type}: cast them to binary")
        return cls(bytes_of(array), offsets_of(array))


class Batch(msgspec.Struct, frozen=True, eq=False):
    """Numbered messages ``first, first + 1, …`` and what they share; or log entries, which have no numbers.

    Messages and entries never share a batch. Entries (origin ``log``) stand after a message: ``first`` and ``last`` are
    both that message's number, so the next message is ``last + 1`` in either case. ``op`` counts messages and entries
    together; it is the log's own position, which nodes and copies of a log agree on, and is shown to nobody.

    ``number`` is the publisher's own number of the first message (the next have the next), or ``None``.
    Fields that differ from message to message are in ``columns``, an Arrow record batch of the same length
    whose columns are named and typed as in :data:`SCHEMA`; a column there wins over the shared value.

    >>> batch = Batch(Run.of([b"one", b"two"]), first=41, topic="numbers")
    >>> [(message.seq, message.topic, message.payload) for message in batch]
    [(41, 'numbers', b'one'), (42, 'numbers', b'two')]
    """

    run: Run
    first: int = 0
    time: int = 0
    origin: str = ""
    node: int = 0
    publisher: str = ""
    number: int | None = None
    topic: str = ""
    columns: pa.RecordBatch | None = None
    op: int = 0
    tied: bool | None = None
    """Whether its rows are committed together with the operation after them, so that no commit ends with them. ``None``
    if that is not decided yet: then an append is one group. Equal batches may differ in this."""

    def __len__(self) -> int:
        return self.run.count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        names = [name for name in self.__struct_fields__ if name != "tied"]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_entries(self) -> bool:
        """Whether these are log entries and not messages."""
        return self.origin == NOT_A_MESSAGE

    @property
    def last(self) -> int:
        """The sequence number of the last message; of entries, the number they stand after."""
        return self.first if self.origin == NOT_A_MESSAGE else self.first + self.run.count - 1

    @property
    def last_op(self) -> int:
        """The log's position of the last row."""
        return self.op + self.run.count - 1

    @property
    def size(self) -> int:
        """Approximate bytes of memory.

        Offsets and shared fields count too, so that messages without payload cannot fill the hub's memory unnoticed.
        """
        own = 0 if self.columns is None else self.columns.nbytes
        shared = len(self.topic) + len(self.publisher) + _BATCH_BYTES
        return self.run.size + _OFFSET_BYTES * self.run.count + own + shared

    @property
    def last_time(self) -> int:
        """The time of the last message: times never decrease, so the latest."""
        if self.columns is None or "time" not in self.columns.schema.names:
            return self.time
        latest: int = self.columns.column("time")[-1].value
        return latest

    def numbered(self, op: int, first: int, time: int, node: int) -> Batch:
        """Return the same rows with the position, number, time and node that the sequencer gives them.

        A publisher's own columns of these names are dropped: they would win over the shared values.
        """
        columns = self.columns
        if columns is not None:
            kept = [name for name in columns.schema.names if name not in ("seq", "time", "node")]
            columns = columns.select(kept) if kept else None
        # Spelled out: this runs once per batch, and replace() would cost more than the rest.
        return Batch(
            self.run, first, time, self.origin, node, self.publisher, self.number, self.topic, columns, op
        )

    def slice(self, begin: int, end: int) -> Batch:
        """Messages ``begin`` up to ``end`` (counted from 0), sharing memory."""
        return replace(
            self,
            run=self.run.slice(begin, end),
            op=self.op + begin,
            first=self.first if self.origin == NOT_A_MESSAGE else self.first + begin,
            number=None if self.number is None else self.number + begin,
            columns=None if self.columns is None else self.columns.slice(begin, end - begin),
        )

    def __iter__(self) -> Iterator[Message]:
        if self.columns is None:
            step = 0 if self.is_entries else 1
            for index, payload in enumerate(self.run):
                yield Message(
                    seq=self.first + step * index,
                    payload=payload,
                    time=self.time,
                    origin=self.origin,
                    node=self.node,
                    publisher=self.publisher,
                    number=None if self.number is None else self.number + index,
                    topic=self.topic,
                )
        else:
            yield from messages(self.to_arrow())

    def to_arrow(self) -> pa.RecordBatch:
        """The batch in :data:`SCHEMA`, payloads not copied."""
        columns = self.columns
        own = {} if columns is None else dict(zip(columns.schema.names, columns.columns, strict=True))
        return envelope_rows(
            {name: own[name] if name in own else self._shared(name) for name in SCHEMA.names}
        )

    def _shared(self, name: str) -> pa.Array:
        count, kind = len(self), column_type(name)
        match name:
            case "seq" if self.is_entries:
                return pa.repeat(pa.scalar(self.first, kind), count)
            case "seq":
                return _ascending(self.first, count)
            case "number":
                return pa.nulls(count, kind) if self.number is None else _ascending(self.number, count)
            case "attributes" | "numbers":
                return _empty_maps(name, count)
            case "payload":
                return self.run.to_arrow()
            case _:
                return pa.repeat(pa.scalar(getattr(self, name), kind), count)

    @classmethod
    def over(cls, rows: pa.RecordBatch) -> Batch:
        """Wrap rows in :data:`SCHEMA` as a batch: nothing is copied or compared."""
        return cls(
            Run.from_arrow(rows.column("payload")),
            first=rows.column("seq")[0].as_py(),
            time=rows.column("time")[0].value,
            columns=rows.drop_columns(["seq", "payload"]),
        )

    @classmethod
    def from_arrow(cls, rows: pa.RecordBatch) -> Batch:
        """The compact form of rows in :data:`SCHEMA` whose sequence numbers follow one another.

        A column that is the same in every row becomes a shared value; the others stay columns. Rows that are not
        numbered yet have neither ``seq`` nor ``time``.
        """
        if rows.num_rows == 0:
            raise UsageError("an empty record batch has no first sequence number")
        shared: dict[str, Any] = {}
        differing: dict[str, pa.Array] = {}
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if name in ("payload", "seq"):
                continue
            value = _shared_value(name, column)
            if value is _DIFFERS:
                differing[name] = column
            elif name not in ("attributes", "numbers"):
                shared[name] = value
        columns = envelope_rows(differing) if differing else None
        first = 0
        if "seq" in rows.schema.names:
            first = rows.column("seq")[0].as_py()
            shared["time"] = rows.column("time")[0].value
        return cls(Run.from_arrow(rows.column("payload")), first=first, columns=columns, **shared)


def merge(batches: Sequence[Batch]) -> pa.RecordBatch:
    """Batches that follow one another as one record batch in :data:`SCHEMA`.

    Costs a few numpy operations per column, not per message, however small the batches are.
    """
    if any(batch.columns is not None for batch in batches):
        return pa.concat_batches([batch.to_arrow() for batch in batches])
    counts = np.array([len(batch) for batch in batches])
    total = int(counts.sum())
    times = np.repeat(np.array([batch.time for batch in batches], np.int64), counts)
    numbers, absent = merged_numbers(batches, counts)
    nodes = np.repeat(np.array([batch.node for batch in batches], np.int32), counts)
    return envelope_rows(
        {
            "seq": _ascending(batches[0].first, total),
            "time": pa.array(times).cast(column_type("time")),
            "origin": _repeated([batch.origin for batch in batches], counts),
            "node": pa.array(nodes),
            "publisher": _repeated([batch.publisher for batch in batches], counts),
            "number": pa.array(numbers, mask=absent),
            "topic": _repeated([batch.topic for batch in batches], counts),
            "attributes": _empty_maps("attributes", total),
            "numbers": _empty_maps("numbers", total),
            "payload": _joined([batch.run for batch in batches]).to_arrow(),
        }
    )


def messages(rows: pa.RecordBatch) -> Iterator[Message]:
    """Each row of a record batch in :data:`SCHEMA` as a :class:`Message`."""
    times = rows.column("time").cast(pa.int64()).to_pylist()
    others = rows.drop_columns(["time"]).to_pylist()
    for time, row in zip(times, others, strict=True):
        row["attributes"] = dict(row["attributes"])
        row["numbers"] = dict(row["numbers"])
        if "events" in row:
            row["events"] = {"": tuple(row["events"])}
        yield Message(time=time, **row)


def node_id(name: str) -> int:
    """A node's 16-bit id: the first two bytes of its name's SHA-256, as the cluster's parcels have it.

    >>> node_id("Ivan")
    60396
    """
    return int.from_bytes(sha256(name.encode()).digest()[:2])


def joined_offsets(runs: Sequence[Run]) -> Offsets:
    """The offsets of several runs' payloads once they lie side by side."""
    offsets = np.zeros(sum(run.count for run in runs) + 1, np.int32)
    row = end = 0
    for run in runs:
        np.add(run.offsets[1:], end - int(run.offsets[0]), out=offsets[row + 1 : row + 1 + run.count])
        row += run.count
        end += run.size
    return offsets


def _joined(runs: Sequence[Run]) -> Run:
    if len(runs) == 1:
        return runs[0]
    size = sum(run.size for run in runs)
    if size > MAX_RUN_BYTES:
        raise UsageError(f"a batch of {size} payload bytes: split it, {MAX_RUN_BYTES} is the most")
    return Run(np.concatenate([run.content for run in runs]), joined_offsets(runs))


def _repeated(values: Sequence[str], counts: npt.NDArray[np.int64]) -> pa.Array:
    """Each value as often as its batch has messages."""
    distinct: dict[str, int] = {}
    codes = [distinct.setdefault(value, len(distinct)) for value in values]
    if len(distinct) == 1:
        return pa.repeat(pa.scalar(values[0], pa.string()), int(counts.sum()))
    indices = pa.array(np.repeat(np.array(codes, np.int32), counts))
    return pa.array(list(distinct), pa.string()).take(indices)


def merged_numbers(
    batches: Sequence[Batch], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The publishers' own numbers of the messages of batches, ``counts`` each, and which messages have none."""
    firsts = np.array([batch.number or 0 for batch in batches], np.int64)
    starts = np.cumsum(counts) - counts
    numbers = np.repeat(firsts - starts, counts) + np.arange(int(counts.sum()), dtype=np.int64)
    return numbers, np.repeat(np.array([batch.number is None for batch in batches]), counts)


_DIFFERS = object()


def _shared_value(name: str, column: pa.Array) -> Any:
    """The one value every row of a column has (for ``number``: the first of consecutive ones)."""
    if name in ("attributes", "numbers"):
        edges = offsets_of(column)
        return None if edges[0] == edges[-1] else _DIFFERS
    if name == "number":
        if column.null_count == len(column):
            return None
        if column.null_count:
            return _DIFFERS
        values = column.to_numpy()
        first, last = int(values[0]), int(values[-1])
        # Differences wrap around at 64 bits, so steps of 1 alone do not prove a sequence.
        follow = last - first == len(values) - 1 and bool(np.all(np.diff(values) == 1))
        return first if follow else _DIFFERS
    if name == "time":
        column = column.cast(pa.int64())
    distinct = column.unique()
    return distinct[0].as_py() if len(distinct) == 1 else _DIFFERS


def _ascending(first: int, count: int) -> pa.Array:
    return pa.array(np.arange(first, first + count, dtype=np.int64))


def _empty_maps(name: str, count: int) -> pa.Array:
    kind = column_type(name)
    offsets = pa.array(np.zeros(count + 1, np.int32))
    return pa.MapArray.from_arrays(
        offsets, pa.array([], kind.key_type), pa.array([], kind.item_type), type=kind
    )
