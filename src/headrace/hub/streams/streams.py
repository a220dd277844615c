"""All streams, as a part of the hub's state: the same on every node that has the same log.

Entries ``stream/TOPIC``, each with the time at which it was made (streams expire, and the state must depend on the log
alone):

- ``{"create": shape}``: ignored if the stream exists;
- ``{"append": …}``: what to remember of the append right before it;
- ``{"touch": true}``: the stream was read, which extends its life;
- ``{"delete": true}``: a stream with forks is kept for its forks, and gone for everybody else.

A topic that has messages is a stream even if nobody created it, but not part of the state. A deleted or expired stream
leaves a mark (:meth:`Streams.forgotten`), so that its messages do not become a stream again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import msgspec
import pyarrow.compute as pc

from headrace.hub.state import entry
from headrace.hub.streams.stream import (
    MAX_INHERITED,
    MAX_PRODUCERS,
    Micros,
    Producer,
    ProducerAppend,
    Range,
    Shape,
    Stream,
    Text,
)
from headrace.message import Batch

MAX_STREAMS: Final = 100_000
MAX_FORGOTTEN: Final = 100_000

STREAM_BYTES: Final = 1024
PRODUCER_BYTES: Final = 512
"""Approximate bytes that a stream, and each of its producers, takes in memory and in snapshots."""

Wake = Callable[[], None]


class Appended(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered of an append."""

    producer: ProducerAppend | None = None
    writer: Text | None = None
    closes: bool = False


class StreamOwner(Protocol):
    """An account that streams are charged to."""

    state_bytes: int
    """Bytes of state that it has, streams and services."""


class Streams:
    """The streams of a hub."""

    name = "stream"

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._by_id: dict[int, Stream] = {}
        self._forgotten: dict[str, int] = {}
        """For each topic, the message up to which there is no stream."""
        self._watchers: dict[str, dict[Wake, None]] = {}
        self._charges: dict[int, list[tuple[StreamOwner, int]]] = {}
        """For each stream's id, who is charged for which part of it, as far as it was made here."""

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    @property
    def full(self) -> bool:
        """Whether no more streams may be created."""
        return len(self._streams) >= MAX_STREAMS

    def get(self, topic: str) -> Stream | None:
        """Return a stream that was created, expired or not."""
        return self._streams.get(topic)

    def charge(self, topic: str, owner: StreamOwner, size: int) -> None:
        """Charge an owner for a part of a stream until the stream is gone."""
        stream = self._streams.get(topic)
        if stream is not None:
            self._charges.setdefault(stream.id, []).append((owner, size))
            owner.state_bytes += size

    def forgotten(self, topic: str) -> int:
        """Return the message up to which a topic's messages belong to a deleted stream."""
        return self._forgotten.get(topic, 0)

    def watch(self, topic: str, wake: Wake) -> None:
        """Call ``wake`` whenever a topic has a message, or its stream changes."""
        self._watchers.setdefault(topic, {})[wake] = None

    def unwatch(self, topic: str, wake: Wake) -> None:
        """Undo :meth:`watch`."""
        watchers = self._watchers.get(topic, {})
        watchers.pop(wake, None)
        if not watchers:
            self._watchers.pop(topic, None)

    # The state

    def follow(self, batch: Batch) -> None:
        """Note the newest message of each stream."""
        if not (self._streams or self._watchers) or batch.is_entries:
            return
        columns = batch.columns
        if columns is None or "topic" not in columns.schema.names:
            self._note(batch.topic, batch.last, batch.last_time)
            return
        topics = columns.column("topic")
        for topic in pc.unique(topics).to_pylist():
            if topic in self._streams or topic in self._watchers:
                places = pc.indices_nonzero(pc.equal(topics, topic))
                self._note(topic, batch.first + places[-1].as_py(), batch.last_time)

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:
        """Apply a ``stream`` entry."""
        order = msgspec.json.decode(payload, type=_Order)
        known = self._streams.get(name)
        if known is not None and known.is_expired(order.time) and not known.deleted:
            self._remove(known, seq)
            known = self._streams.get(name)
        if order.create is not None:
            if known is None:
                self._create(name, order.create, order.time, seq, op)
        elif known is None or known.deleted:
            return
        elif order.append is not None:
            self._append(known, order.append, order.time)
        elif order.touch:
            known.touched = max(known.touched, order.time)
        elif order.delete:
            self._remove(known, seq)
        self._wake(name)

    def dump(self) -> bytes:
        """Return the streams as a snapshot's section."""
        return msgspec.msgpack.encode((list(self._streams.values()), self._forgotten))

    def load(self, section: bytes) -> None:
        """Restore the streams from a snapshot."""
        streams, self._forgotten = msgspec.msgpack.decode(section, type=tuple[list[Stream], dict[str, int]])
        self._streams = {stream.topic: stream for stream in streams}
        self._by_id = {stream.id: stream for stream in streams}

    def _create(self, topic: str, shape: Shape, time: int, seq: int, op: int) -> None:
        if self.full:
            return
        stream = Stream(topic, op, shape, seq, seq, time)
        if shape.fork is not None:
            source = self._streams.get(shape.fork.topic)
            if source is None or source.deleted:
                return
            stream.inherited = source.ranges_until(shape.fork.upto)
            if len(stream.inherited) > MAX_INHERITED:
                return
            stream.source = source.id
            source.forks += 1
        self._streams[topic] = self._by_id[op] = stream
        self._forgotten.pop(topic, None)

    def _append(self, stream: Stream, append: Appended, time: int) -> None:
        stream.touched = max(stream.touched, time)
        if append.writer is not None:
            stream.writer = append.writer
        if append.producer is not None:
            given = append.producer
            if given.id in stream.producers or len(stream.producers) < MAX_PRODUCERS:
                stream.producers = {**stream.producers, given.id: Producer(given.epoch, given.seq)}
        if append.closes:
            stream.closed, stream.closer = True, append.producer

    def _remove(self, stream: Stream, seq: int) -> None:
        """Remove a stream, and its deleted sources that were only kept for it; or keep it for its forks."""
        if stream.forks:
            stream.deleted = True
            return
        leaving: Stream | None = stream
        while leaving is not None:
            source = self._by_id.get(leaving.source)
            self._forget(leaving, seq)
            if source is not None:
                source.forks -= 1
            leaving = source if source is not None and source.deleted and not source.forks else None

    def _forget(self, stream: Stream, seq: int) -> None:
        del self._streams[stream.topic], self._by_id[stream.id]
        for owner, size in self._charges.pop(stream.id, ()):
            owner.state_bytes -= size
        self._forgotten.pop(stream.topic, None)
        while len(self._forgotten) >= MAX_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
        self._forgotten[stream.topic] = seq

    def _note(self, topic: str, seq: int, time: int) -> None:
        stream = self._streams.get(topic)
        # Messages that others publish on the topic of a closed stream are not part of it.
        if stream is not None and not stream.closed and not stream.deleted:
            stream.tail = seq
            stream.touched = max(stream.touched, time)
        self._wake(topic)

    def _wake(self, topic: str) -> None:
        for wake in tuple(self._watchers.get(topic, ())):
            wake()


def create(topic: str, shape: Shape, time: int) -> Batch:
    """Make the entry that creates a stream."""
    return _entry(topic, create=shape, time=time)


def append(topic: str, appended: Appended, time: int) -> Batch:
    """Make the entry that remembers an append."""
    return _entry(topic, append=appended, time=time)


def touch(topic: str, time: int) -> Batch:
    """Make the entry that extends a stream's life."""
    return _entry(topic, touch=True, time=time)


def delete(topic: str, time: int) -> Batch:
    """Make the entry that deletes a stream."""
    return _entry(topic, delete=True, time=time)


def _entry(topic: str, **order: Any) -> Batch:
    return entry(Streams.name, topic, msgspec.json.encode(_Order(**order)))


class _Order(msgspec.Struct, frozen=True, omit_defaults=True):
    time: Micros
    create: Shape | None = None
    append: Appended | None = None
    touch: bool = False
    delete: bool = False


__all__ = ["Appended", "Range", "Streams", "append", "create", "delete", "touch"]
