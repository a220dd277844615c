"""The matcher: which clients a message is for.

Subscriptions are kept in immutable, indexed segments (:mod:`headrace.matching.index.segment`), oldest and largest
first, and a small tail of the newest (:mod:`headrace.matching.index.tail`). A full tail is indexed at once, which takes
about a millisecond; :meth:`Matcher.rebuild` merges segments into larger ones, in a thread of its own.

Invariants:

- A client has at most one living row. Rows are never changed: a subscription that is replaced or withdrawn *dies* at a
  version, and its successor is another row.
- All that matching needs is in one ``_View``, replaced by one assignment. A match takes the current view and sees
  exactly the subscriptions of that version, whatever changes meanwhile. So it needs no lock and never waits.
- Changes hold a lock, for microseconds. A rebuild holds it only to swap its result in.
- Without subscriptions nothing is compiled or loaded: numba comes with the first one, or with
  :func:`~headrace.matching.warm_up.warm`.
"""

from __future__ import annotations

import secrets
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import LimitError, UsageError
from headrace.matching.index.segment import ALIVE, Ints, Segment, predicates_of
from headrace.matching.matches import CLIENT_BYTES, Matches, Memory, nobody
from headrace.message import SCHEMA, Batch
from headrace.wire.sdk.fence import Fence, Track
from headrace.wire.sdk.predicate import Between, Equals, Predicate, fence_of, parse_field, serialize_field

if TYPE_CHECKING:
    from headrace.matching.batch_scan import BatchScan
    from headrace.matching.index.tail import Tail
    from headrace.matching.tracks import Read, Tracks

FENCE_WINDOW: Final = 1_000_000
"""How many messages before one fences search for the previous sighting of its key, unless the owner says otherwise."""

PIECE: Final = 1 << 20
"""Most clients in one piece of a batch's matches, unless a single message has more."""

SMALL: Final = 1 << 15
"""Segments with up to this many rows in total are merged at once if :meth:`Matcher.rebuild` has not come to it."""

MANY: Final = 8
"""More segments than this of about one size are too many."""

TABLE = pa.schema([("client", pa.binary(CLIENT_BYTES)), ("predicates", pa.map_(pa.string(), pa.string()))])
"""The schema of :meth:`Matcher.table`."""


class _View(NamedTuple):
    segments: tuple[Segment, ...]
    tail: Tail | None
    rows: int
    """Rows of the tail that belong to this version."""
    version: int


class _Place(NamedTuple):
    where: Segment | Tail
    row: int


class Matcher:
    """Subscriptions by client, and the clients whose subscriptions a message satisfies.

    Any thread may match while another changes subscriptions.
    """

    def __init__(
        self,
        *,
        max_subscriptions: int = 2_000_000,
        max_predicates: int = 64,
        json_attributes: bool = False,
        seed: int | None = None,
        window: int = FENCE_WINDOW,
        read: Read | None = None,
    ) -> None:
        """``window`` and ``read`` are for fences, which look at earlier messages: see :mod:`headrace.matching.tracks`.

        Without ``read``, fences know what was matched before, in order.
        """
        self._max_subscriptions = max_subscriptions
        self._max_predicates = max_predicates
        self._json_attributes = json_attributes
        # Like Python's own hash seed, it decides where things are filed, not what is found.
        self._seed = np.uint64(secrets.randbits(64) if seed is None else seed)
        self._changing = threading.Lock()
        self._rebuilding = threading.Lock()
        self._count = 0
        self._view = _View((), None, 0, 0)
        self._window = window
        self._read = read
        self._tracks: Tracks | None = None
        """Where keys were seen, as soon as there is a fence."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, client: object) -> bool:
        return isinstance(client, bytes) and self._place(client) is not None

    def subscribe(
        self, client: bytes, predicates: Mapping[str, Predicate], owner: bytes | None = None
    ) -> None:
        """Replace a client's subscription: a message is for it when every one of these predicates holds.

        No predicates at all withdraw its subscription. Matches name the ``owner`` beside the client, if it has one.
        """
        if not predicates:
            self.withdraw(client)
            return
        _check_client(client)
        if owner is not None:
            _check_client(owner)
        if len(predicates) > self._max_predicates:
            raise LimitError("sdk", "attributes of a subscription", len(predicates), self._max_predicates)
        for name, predicate in predicates.items():
            _check(name, predicate)
        fence = fence_of(predicates)
        if fence is not None and len(fence[1].events) != 1:
            raise UsageError("a fence has one event here: split_events gives each a subscription of its own")
        with self._changing:
            old = self._place(client)
            if old is None and self._count >= self._max_subscriptions:
                raise LimitError("sdk", "subscriptions", self._count + 1, self._max_subscriptions)
            tail = self._view.tail
            if tail is None or tail.full:
                tail = self._new_tail()
                old = self._place(client)
            segments, _, _, version = self._view
            if fence is not None:
                self._add_track(*fence)
            tail.append(client, predicates, owner)
            if old is None:
                self._count += 1
            else:
                self._remove_track(old)
                old.where.died[old.row] = version + 1
            self._view = _View(segments, tail, tail.count, version + 1)

    def withdraw(self, client: bytes) -> bool:
        """Forget a client's subscription; return whether it had one."""
        _check_client(client)
        with self._changing:
            old = self._place(client)
            if old is None:
                return False
            segments, tail, count, version = self._view
            self._remove_track(old)
            old.where.died[old.row] = version + 1
            self._count -= 1
            self._view = _View(segments, tail, count, version + 1)
            return True

    def predicates(self, client: bytes) -> Mapping[str, Predicate] | None:
        """A client's subscription, if it has one."""
        place = self._place(client)
        return None if place is None else _predicates_at(place)

    def match(self, batch: Batch) -> Matches:
        """The clients of each message of a batch.

        To bound memory for messages with very many clients, use :meth:`pieces`.
        """
        pieces = [matches for _, matches in self.pieces(batch)]
        if len(pieces) == 1:
            return pieces[0]
        counts = np.concatenate([np.zeros(1, np.int64), *(np.diff(piece.offsets) for piece in pieces)])
        clients = [piece.clients for piece in pieces]
        owners = [piece.owners for piece in pieces if piece.owners is not None]
        # All pieces are of one version: all have owners, or none.
        return Matches(
            np.cumsum(counts),
            np.concatenate([np.empty((0, CLIENT_BYTES), np.uint8), *clients]),
            np.concatenate(owners) if owners else None,
        )

    def match_rows(self, rows: pa.RecordBatch) -> Matches:
        """The clients of each row of a record batch in :data:`headrace.message.SCHEMA`."""
        if rows.schema != SCHEMA:
            rows = rows.cast(SCHEMA)
        if not rows.num_rows:
            return nobody(0)
        first, last = (rows.column("seq")[place].as_py() for place in (0, -1))
        if self._tracks is not None and len(self._tracks) and last - first + 1 != rows.num_rows:
            raise UsageError(f"messages {first} to {last} have gaps: a fence needs every message, in order")
        return self.match(Batch.over(rows))

    def pieces(
        self, batch: Batch, most: int = PIECE, *, record: bool = True
    ) -> Iterator[tuple[int, Matches]]:
        """Match some messages at a time: yield the index of the first in the batch, and their clients.

        A piece has at most ``most`` clients, or one message. All pieces see the same version of the subscriptions.
        Fences take no notice of messages that are not to be ``record``-ed.
        """
        view = self._view
        segments = list(view.segments)
        if view.tail is not None and view.rows:
            segments.append(view.tail.segment(view.rows))
        if not segments or not len(batch):
            yield 0, nobody(len(batch))
            return
        tracks = () if self._tracks is None else self._tracks.kept
        scan = self._scan(batch, segments, view.version, tracks, record=record)
        begin = 0
        while begin < len(batch):
            matches = scan.piece(begin, len(batch), most)
            yield begin, matches
            begin += len(matches)

    def matches(self, client: bytes, batch: Batch) -> npt.NDArray[np.bool_]:
        """Which messages of a batch are for one client; none if it has no subscription."""
        return np.diff(self.match_some([client], batch).offsets) > 0

    def match_some(self, clients: Iterable[bytes], batch: Batch) -> Matches:
        """Which of a few clients each message of a batch is for."""
        from headrace.matching.index.tail import Tail

        wanted = [(each, predicates) for each in clients if (predicates := self.predicates(each)) is not None]
        if not wanted or not len(batch):
            return nobody(len(batch))
        few = Tail(self._seed, len(wanted))
        for each, predicates in wanted:
            few.append(each, predicates)
        fences = (fence_of(predicates) for _, predicates in wanted)
        tracks = tuple(dict.fromkeys(fence.track(x) for x, fence in filter(None, fences)))
        scan = self._scan(batch, [few.segment()], 0, tracks)
        return scan.piece(0, len(batch), len(batch) * len(wanted))

    def at_hand(self, batch: Batch) -> bool:
        """Whether matching a batch neither reads the log nor waits for another thread, because of fences."""
        return self._tracks is None or self._tracks.at_hand(batch)

    @property
    def rebuild_due(self) -> bool:
        """Whether :meth:`rebuild` is worthwhile."""
        return not self._rebuilding.locked() and self._mergeable() is not None

    def rebuild(self, *, everything: bool = False) -> bool:
        """Merge segments, while other threads match and change; return whether anything was merged.

        By default it merges the segments that are due; ``everything`` makes one segment of all subscriptions.
        """
        if not self._rebuilding.acquire(blocking=False):
            return False
        try:
            with self._changing:
                if everything and self._view.rows:
                    self._index_tail()
                first = 0 if everything else self._mergeable()
                if first is None:
                    return False
                before = self._view.segments
                sources = before[first:]
            from headrace.matching.index.build import build
            from headrace.matching.index.merging import living

            rows = [living(segment) for segment in sources]
            merged = build(sources, rows, self._seed)
            with self._changing:
                # Only segments at the end are new: nothing else merges while this runs.
                after = self._view.segments[len(before) :]
                _mark_dead_since(sources, rows, merged, self._seed)
                kept = (merged,) if merged.rows else ()
                self._view = self._view._replace(segments=(*before[:first], *kept, *after))
            return True
        finally:
            self._rebuilding.release()

    def memory(self) -> Memory:
        """Bytes of all subscriptions and their index, and per subscription."""
        view = self._view
        total = sum(segment.nbytes for segment in view.segments)
        if view.tail is not None:
            total += view.tail.nbytes
        if self._tracks is not None:
            total += self._tracks.nbytes
        return Memory(total, total / max(self._count, 1))

    def table(self) -> pa.Table:
        """Every subscription: its ``client``, and its ``predicates`` as field JSON by attribute name."""
        view = self._view
        clients: list[bytes] = []
        fields: list[list[tuple[str, str]]] = []
        newest = () if view.tail is None else (view.tail.segment(view.rows),)
        for segment in (*view.segments, *newest):
            for row in np.flatnonzero(segment.died > view.version).tolist():
                clients.append(segment.clients[row, :3].tobytes())
                predicates = predicates_of(segment, row)
                fields.append([(name, serialize_field(each).decode()) for name, each in predicates.items()])
        return pa.table([pa.array(clients, TABLE.types[0]), pa.array(fields, TABLE.types[1])], schema=TABLE)

    def load(self, table: pa.Table) -> None:
        """Subscribe every client of a :meth:`table`."""
        for batch in table.to_batches():
            columns = (batch.column(name).to_pylist() for name in TABLE.names)
            for client, fields in zip(*columns, strict=True):
                self.subscribe(client, {name: parse_field(field.encode()) for name, field in fields})

    def _scan(
        self,
        batch: Batch,
        segments: Sequence[Segment],
        version: int,
        tracks: tuple[Track, ...] = (),
        *,
        record: bool = True,
    ) -> BatchScan:
        from headrace.matching import batch_scan, message_columns

        named, reserved = list(segments), [name for track in tracks for name in track.names]
        if self._tracks is not None and tracks:
            named.append(self._tracks.segment(tracks))
        facts, attributes = message_columns.read(
            batch, named, self._seed, json_attributes=self._json_attributes, reserved=reserved
        )
        if self._tracks is not None and tracks:
            previous = self._tracks.previous(tracks, batch, facts, attributes.pop(), record=record)
            message_columns.fill_in(facts, [column for columns in previous for column in columns])
        return batch_scan.BatchScan(segments, facts, attributes, self._seed, version)

    def _add_track(self, x: str, fence: Fence) -> None:
        """Count a fence. The caller holds the lock for changes."""
        if self._tracks is None:
            from headrace.matching.tracks import Tracks

            self._tracks = Tracks(
                self._seed, window=self._window, read=self._read, json_attributes=self._json_attributes
            )
        self._tracks.add(fence.track(x), fence.after)

    def _remove_track(self, place: _Place) -> None:
        """Count the fence of a subscription that ends, if it has one. The caller holds the lock for changes."""
        if self._tracks is not None and (fence := fence_of(_predicates_at(place))) is not None:
            self._tracks.remove(fence[1].track(fence[0]))

    def _place(self, client: bytes) -> _Place | None:
        """The place of a client's living subscription."""
        segments, tail, rows, _ = self._view
        if tail is None or len(client) != CLIENT_BYTES:
            return None
        row = tail.find(client)
        if row is not None and row < rows:
            return _Place(tail, row) if tail.died[row] == ALIVE else None
        if segments:
            first, second, third = _WORDS.unpack(client)
            for segment in reversed(segments):
                found = tail.find_client(
                    segment.clients, segment.client_slots, first, second, third, self._seed
                )
                if found >= 0 and segment.died[found] == ALIVE:
                    return _Place(segment, found)
        return None

    def _new_tail(self) -> Tail:
        """Index the tail and begin another. The caller holds the lock for changes."""
        from headrace.matching.index.tail import Tail

        if self._view.rows:
            self._index_tail()
            segments = self._view.segments
            small, rows = len(segments), 0
            while small and rows + segments[small - 1].rows <= SMALL:
                small -= 1
                rows += segments[small].rows
            if len(segments) - small > MANY and self._rebuilding.acquire(blocking=False):
                try:
                    merged = (*segments[:small], *self._merged(segments[small:]))
                    self._view = self._view._replace(segments=merged)
                finally:
                    self._rebuilding.release()
        tail = Tail(self._seed)
        self._view = self._view._replace(tail=tail, rows=0)
        return tail

    def _index_tail(self) -> None:
        """Make a segment of the tail. The caller holds the lock for changes."""
        from headrace.matching.index.tail import Tail

        segments, tail, rows, version = self._view
        if tail is not None and rows:
            indexed = self._merged([tail.segment()])
            self._view = _View((*segments, *indexed), Tail(self._seed), 0, version)

    def _merged(self, sources: Sequence[Segment]) -> tuple[Segment, ...]:
        """One segment with the living rows of several; none if there are none."""
        from headrace.matching.index.build import build
        from headrace.matching.index.merging import living

        merged = build(sources, [living(segment) for segment in sources], self._seed)
        return (merged,) if merged.rows else ()

    def _mergeable(self) -> int | None:
        """Index of the first segment that is due to be merged with all after it."""
        segments = self._view.segments
        rows = sum(segment.rows for segment in segments)
        if rows + self._view.rows - self._count > max(rows // 4, 1024) and segments:
            return 0
        first, later = len(segments), 0
        while first and segments[first - 1].rows <= 2 * later + 1024:
            first -= 1
            later += segments[first].rows
        return first if len(segments) - first >= MANY // 2 else None


_WORDS = struct.Struct("=III")


def _predicates_at(place: _Place) -> dict[str, Predicate]:
    segment = place.where if isinstance(place.where, Segment) else place.where.segment()
    return predicates_of(segment, place.row)


def _mark_dead_since(
    sources: Sequence[Segment], rows: Sequence[Ints], merged: Segment, seed: np.uint64
) -> None:
    """Mark rows as dead in the merged segment that died in the sources since their ``rows`` were copied."""
    from headrace.matching.index import hashing

    for segment, copied in zip(sources, rows, strict=True):
        for row in copied[segment.died[copied] != ALIVE].tolist():
            first, second, third = segment.clients[row, :3].tolist()
            found = hashing.find_client(merged.clients, merged.client_slots, first, second, third, seed)
            merged.died[found] = segment.died[row]


def _check_client(client: bytes) -> None:
    if len(client) != CLIENT_BYTES:
        raise UsageError(f"a client id of {len(client)} bytes: it has {CLIENT_BYTES}")


def _check(name: str, predicate: Predicate) -> None:
    """Refuse a predicate that no client's command could carry."""
    if type(predicate) is Equals:
        text = name + predicate.value
        if not text.isascii():
            _encodable(text)
        return
    if (
        type(predicate) is not Between
        or not predicate.low <= predicate.high
        or predicate.high - predicate.low == np.inf
    ):
        serialize_field(predicate)
    if not name.isascii():
        _encodable(name)


def _encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} cannot be written as UTF-8") from None
