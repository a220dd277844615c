"""Tracks: where each moving key was seen before, for fences (:mod:`headrace.wire.sdk.fence`).

**The rule.** The previous sighting of message ``n`` is the newest one of the same key, on the same topic, among the
``window`` messages before ``n``. A key that is not seen for so long is forgotten, and its next sighting is its first.
So what is previous depends on the sequence alone: a hub after a restart, another node and a task in Spark find the same
from the same messages. Nothing is kept but a cache, which is made again from the window before the message in hand.

A **trail** is that cache: a table of the keys in the window (32 bytes a slot, at most three quarters full), and what
was previous to each of the newest messages (24 bytes each, for as many as the window has), since clients that are
behind ask for those again. A track has the trail that live messages extend and, while somebody reads what is older,
one more. After a restart, when all clients come back, each from its own place, that one is made for a whole window of
places, once: the others wait for it, and find what is previous there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.matching import message_columns, sightings
from headrace.matching.attribute_reading import Facts
from headrace.matching.index.hashing import Hashes
from headrace.matching.index.segment import Ints, Segment
from headrace.matching.index.tail import Tail
from headrace.matching.matches import CLIENT_BYTES
from headrace.matching.sightings import Matrix
from headrace.message import Batch
from headrace.wire.sdk.fence import Track
from headrace.wire.sdk.predicate import Exists

BLOCK: Final = 1 << 14
"""Messages in a block of earlier sightings. A block without a sighting takes no memory."""

FEWEST_SLOTS: Final = 1 << 10

MOST_AT_HAND: Final = 1 << 14
"""Slots of a table that is made anew within a millisecond. A larger one is no work for the event loop."""

Read = Callable[[int, int], Iterable[Batch]]
"""Reads the messages from one number to another, both included, as far as they are still there."""


class Tracks:
    """The tracks that fences need, each as long as there is such a fence; for any thread."""

    def __init__(
        self, seed: np.uint64, *, window: int, read: Read | None = None, json_attributes: bool = False
    ) -> None:
        """Without ``read``, messages come in order, and what came before the first is not known."""
        self._seed = seed
        self._window = window
        self._read = read
        self._json_attributes = json_attributes
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        """Held, before the other one, by whoever reads the log."""
        self._fences: dict[Track, int] = {}
        self._after: dict[Track, int] = {}
        """The lowest message after which sightings count, of the fences that there were."""
        self._trails: dict[Track, list[_Trail]] = {}
        self._segments: dict[tuple[Track, ...], Segment] = {}

    def __len__(self) -> int:
        return len(self._fences)

    @property
    def kept(self) -> tuple[Track, ...]:
        """The tracks that there are fences for."""
        return tuple(self._fences)

    def add(self, track: Track, after: int) -> None:
        """Count a fence whose sightings count after a message."""
        with self._lock:
            self._fences[track] = self._fences.get(track, 0) + 1
            if after < self._after.setdefault(track, after):
                # The trails may lack what this one needs.
                self._after[track] = after
                self._trails.pop(track, None)

    def remove(self, track: Track) -> None:
        """Count a fence no longer; with the last one the track is forgotten."""
        with self._lock:
            self._fences[track] -= 1
            if not self._fences[track]:
                for kept in (self._fences, self._after, self._trails):
                    kept.pop(track, None)
                self._segments.clear()

    @property
    def nbytes(self) -> int:
        """The memory of all trails."""
        # Without the lock: a thread may hold it while it makes a large table anew.
        return sum(trail.nbytes for trails in list(self._trails.values()) for trail in trails)

    def at_hand(self, batch: Batch) -> bool:
        """Whether the sightings before a batch are known without reading the log or waiting."""
        if not self._fences or self._read is None:
            return True
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return all(
                self._begin(track, batch.first) >= batch.first if trail is None else trail.at_hand(batch)
                for track in self._fences
                for trail in (self._find(track, batch.first),)
            )
        finally:
            self._lock.release()

    def segment(self, tracks: tuple[Track, ...]) -> Segment:
        """A segment that names the attributes of tracks, for :func:`headrace.matching.message_columns.read`."""
        segment = self._segments.get(tracks)
        if segment is None:
            tail = Tail(self._seed, 1)
            tail.append(bytes(CLIENT_BYTES), {name: Exists(True) for track in tracks for name in track})
            segment = self._segments[tracks] = tail.segment()
        return segment

    def previous(
        self, tracks: tuple[Track, ...], batch: Batch, facts: Facts, attribute_of: Ints, *, record: bool
    ) -> list[Matrix]:
        """For each track, x, y and number of the sighting previous to each message; see :func:`sightings.follow`.

        ``facts`` are the batch's, and ``attribute_of`` what :meth:`segment` calls its names. Messages are noted if they
        are to be ``record``-ed.
        """
        seen = _Seen(batch, facts, attribute_of, len(self.segment(tracks).attribute_keys), self._seed)
        places = _places(tracks)
        return [
            self._previous(track, batch, seen, place, record)
            for track, place in zip(tracks, places, strict=True)
        ]

    def _previous(self, track: Track, batch: Batch, seen: _Seen, place: Ints, record: bool) -> Matrix:
        found = self._known(track, batch, seen, place, record)
        if found is not None:
            return found
        read = self._read
        if read is None or not record or self._begin(track, batch.first) >= batch.first:
            trail, after = _Trail(batch.first, self._window), self._after.get(track, 0)
            found = trail.extend(batch, seen, place, record=record)
            if record:
                self._keep(track, trail, after)
            return found
        with self._reading:
            # Somebody else may have read it meanwhile.
            found = self._known(track, batch, seen, place, record)
            return self._read_before(track, batch, seen, place, read) if found is None else found

    def _known(self, track: Track, batch: Batch, seen: _Seen, place: Ints, record: bool) -> Matrix | None:
        with self._lock:
            trail = self._find(track, batch.first)
            return None if trail is None else trail.extend(batch, seen, place, record=record)

    def _read_before(self, track: Track, batch: Batch, seen: _Seen, place: Ints, read: Read) -> Matrix:
        """Read the log to make a trail that knows the sightings before a batch."""
        with self._lock:
            after, start, end = self._after.get(track, 0), batch.first, batch.first
            furthest = max(self._trails.get(track, ()), key=lambda each: each.next, default=None)
            if furthest is not None and furthest.next - self._window <= start < furthest.start:
                # Others will ask for what is before the furthest trail, too.
                start, end = max(furthest.next - self._window, 1), furthest.start
        trail = _Trail(start, self._window)
        segment, own = self.segment((track,)), _places((track,))[0]
        for each in read(self._begin(track, start), end - 1):
            facts, (attribute_of,) = message_columns.read(
                each, [segment], self._seed, json_attributes=self._json_attributes
            )
            past = _Seen(each, facts, attribute_of, len(segment.attribute_keys), self._seed)
            if each.last < start:
                trail.follow(each, past, own)
            else:
                trail.extend(each, past, own, record=True)
        trail.next = max(trail.next, end)
        found = trail.extend(batch, seen, place, record=True)
        self._keep(track, trail, after)
        return found

    def _begin(self, track: Track, first: int) -> int:
        """The first message that a trail from ``first`` on must have followed."""
        return max(self._after.get(track, 0) + 1, first - self._window, 1)

    def _find(self, track: Track, first: int) -> _Trail | None:
        """Find a trail that knows the sightings before a message; without a log to read, it need not know all."""
        for trail in self._trails.get(track, ()):
            if trail.start <= first and (first <= trail.next or self._read is None):
                return trail
        return None

    def _keep(self, track: Track, trail: _Trail, after: int) -> None:
        """Keep a trail of what came after a message beside the one that is furthest."""
        with self._lock:
            # A fence that came meanwhile may need more than was read.
            if track in self._fences and after <= self._after[track]:
                trails = self._trails.get(track, [])
                furthest = max((trail, *trails), key=lambda each: each.next)
                self._trails[track] = [furthest] if furthest is trail else [furthest, trail]


class _Seen:
    """The facts of a batch that tracks look at."""

    def __init__(
        self, batch: Batch, facts: Facts, attribute_of: Ints, attributes: int, seed: np.uint64
    ) -> None:
        self.facts = facts
        self.found = np.empty((len(batch), attributes), np.int32)
        sightings.find_facts(facts, attribute_of, self.found)
        self.topics = _hash_topics(batch, seed)


class _Trail:
    """What is previous to the messages from ``start`` on; it has followed those before ``next``."""

    def __init__(self, start: int, window: int) -> None:
        self.start = start
        self.next = 0
        self._window = window
        self._table = sightings.empty_table(FEWEST_SLOTS)
        self._used = 0
        self._blocks: dict[int, Matrix] = {}

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (*self._table, *self._blocks.values()))

    def at_hand(self, batch: Batch) -> bool:
        """Whether to :meth:`extend` it by a batch takes no longer than the event loop may wait."""
        slots = len(self._table.keys)
        return slots <= MOST_AT_HAND or 4 * (self._used + len(batch)) <= 3 * slots

    def follow(
        self, batch: Batch, seen: _Seen, place: Ints, begin: int = 0, *, record: bool = True
    ) -> Matrix:
        """Go through the messages of a batch from the index ``begin`` on; return what is previous to them."""
        found = np.full((3, len(batch)), np.nan)
        self._make_room(len(batch), batch.first)
        self._used += sightings.follow(
            seen.facts, seen.found, seen.topics, place,
            begin, batch.first + begin, self._window, record, self._table, found,
        )  # fmt: skip
        if record:
            self.next = batch.last + 1
        return found

    def extend(self, batch: Batch, seen: _Seen, place: Ints, *, record: bool) -> Matrix:
        """Return what is previous to the messages of a batch, and remember it for those that are new."""
        known = min(max(self.next - batch.first, 0), len(batch))
        if known == len(batch):
            return self._remembered(batch.first, len(batch))
        found = self.follow(batch, seen, place, known, record=record)
        if record:
            self._remember(batch.first + known, found[:, known:])
        if known:
            found[:, :known] = self._remembered(batch.first, known)
        return found

    def _make_room(self, more: int, seq: int) -> None:
        slots = len(self._table.keys)
        if 4 * (self._used + more) <= 3 * slots:
            return
        oldest = seq - self._window
        living = int(np.count_nonzero((self._table.keys != 0) & (self._table.seqs >= oldest)))
        # At most half full, so that it is not made again soon.
        slots = max(FEWEST_SLOTS, 1 << (2 * (living + more) - 1).bit_length())
        table = sightings.empty_table(slots)
        self._used = sightings.refill(self._table, oldest, table)
        self._table = table

    def _remember(self, seq: int, found: Matrix) -> None:
        at, end = 0, found.shape[1]
        while at < end:
            block, offset = divmod(seq + at, BLOCK)
            stop = min(end, at + BLOCK - offset)
            if not np.isnan(found[2, at:stop]).all():
                kept = self._blocks.get(block)
                if kept is None:
                    kept = self._blocks[block] = np.full((3, BLOCK), np.nan)
                kept[:, offset : offset + stop - at] = found[:, at:stop]
            at = stop
        oldest = seq + end - self._window
        while self._blocks and (first := next(iter(self._blocks))) < oldest // BLOCK:
            del self._blocks[first]
        if oldest > self.start:
            self.start = oldest

    def _remembered(self, seq: int, count: int) -> Matrix:
        found = np.full((3, count), np.nan)
        at = 0
        while at < count:
            block, offset = divmod(seq + at, BLOCK)
            stop = min(count, at + BLOCK - offset)
            if (kept := self._blocks.get(block)) is not None:
                found[:, at:stop] = kept[:, offset : offset + stop - at]
            at = stop
        return found


def _places(tracks: Sequence[Track]) -> list[Ints]:
    """The attributes of each track in :meth:`Tracks.segment`, which numbers names as they come."""
    codes: dict[str, int] = {}
    return [np.array([codes.setdefault(name, len(codes)) for name in track], np.int32) for track in tracks]


def _hash_topics(batch: Batch, seed: np.uint64) -> Hashes:
    """A hash of each message's topic: a key on another topic is another key."""
    names = () if batch.columns is None else batch.columns.schema.names
    if "topic" not in names or batch.columns is None:
        return np.full(len(batch), _hash_topic(batch.topic, seed), np.uint64)
    column = batch.columns.column("topic")
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    hashes = np.array([_hash_topic(topic, seed) for topic in encoded.dictionary.to_pylist()], np.uint64)
    indices: Ints = encoded.indices.to_numpy(zero_copy_only=False)
    return hashes[indices]


def _hash_topic(topic: str, seed: np.uint64) -> int:
    return int.from_bytes(blake2b(topic.encode(), digest_size=8, key=int(seed).to_bytes(8)).digest())
