"""Settled messages as log entries: one entry for each consumer with newly settled messages at the end of a turn.

Acknowledgements are the most frequent entries by far, so they are short. Their topic is ``consumer/``, without a name,
and the payload is msgpack: ``[since, numbers, lost, dead, letters]``, without the zeros at its end.

- ``since`` is the position of the entry that created or last reset the consumer. It tells which consumer it is, and
  that what was done before a reset does not count after it.
- ``numbers`` are the ranges that are done, ascending: the first number, how many more follow it, the distance from
  there to the next range's first number, and so on. ``[7, 2, 4, 0]`` is 7 to 9, and 13.
- ``lost`` counts the numbers among them that retention removed, ``dead`` the messages that were given up.
- ``letters`` counts the dead letters that stand right before the entry: they are done as well.

The entries of one turn are one batch, whose frame in the log they share (:class:`TurnEntries`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from headrace.errors import StorageError
from headrace.hub.sequence_ranges import Range
from headrace.hub.sequencer import Done
from headrace.message import MAX_SEQUENCE, NOT_A_MESSAGE, Batch, Run

PART: Final = "consumer"

_MOST_ENTRIES: Final = 4096
_MOST_BYTES: Final = 1 << 20
"""Entries and bytes of one batch: a turn in which more is done writes several."""


class Settled(NamedTuple):
    """Numbers to be marked as done by an entry."""

    ranges: tuple[Range, ...]
    """Ascending, and disjoint."""
    since: int
    lost: int = 0


class Settlement(NamedTuple):
    """The content of such an entry."""

    settled: Settled
    dead: int
    letters: int


def encode(settled: Settled, dead: int = 0, letters: int = 0) -> bytes:
    """Write an entry's payload.

    >>> encode(Settled(((7, 9), (13, 13)), since=5)).hex(" ")
    '92 05 94 07 02 04 00'
    """
    numbers: list[int] = []
    at = 0
    for first, last in settled.ranges:
        numbers += first - at, last - first
        at = last
    members = [settled.since, numbers, settled.lost, dead, letters]
    while len(members) > 2 and not members[-1]:
        members.pop()
    return msgspec.msgpack.encode(members)


def decode(payload: bytes) -> Settlement:
    """Read an entry's payload.

    >>> decode(encode(Settled(((7, 9), (13, 13)), since=5), dead=4)).settled.ranges
    ((7, 9), (13, 13))
    """
    order = _decoder.decode(payload)
    if len(order.numbers) % 2:
        raise msgspec.ValidationError("numbers come in pairs")
    ranges: list[Range] = []
    at = 0
    numbers = iter(order.numbers)
    for distance, more in zip(numbers, numbers, strict=True):
        first, at = at + distance, at + distance + more
        ranges.append((first, at))
    if at > MAX_SEQUENCE or (ranges and not ranges[0][0]):
        raise msgspec.ValidationError(f"numbers are 1 to {MAX_SEQUENCE}")
    return Settlement(Settled(tuple(ranges), order.since, order.lost), order.dead, order.letters)


def entries(*payloads: bytes) -> Batch:
    """Make a batch of such entries."""
    run = Run.one(payloads[0]) if len(payloads) == 1 else Run.of(payloads)
    return Batch(run, origin=NOT_A_MESSAGE, topic=f"{PART}/")


class TurnEntries:
    """Gathers newly settled messages of a hub's consumers, and writes them at the end of the turn as one batch."""

    def __init__(
        self, submit: Callable[[Batch, Done], None], soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._submit = submit
        self._soon = soon
        self._payloads: list[bytes] = []
        self._size = 0
        self._waiting: list[Callable[[StorageError | None], None]] = []

    def add(self, settled: Settled, reply: Callable[[StorageError | None], None]) -> None:
        """Write what a consumer has settled; ``reply`` is called once it is committed, or with the error."""
        if not self._payloads:
            self._soon(self.write)
        payload = encode(settled)
        self._payloads.append(payload)
        self._size += len(payload)
        self._waiting.append(reply)
        if len(self._payloads) >= _MOST_ENTRIES or self._size >= _MOST_BYTES:
            self.write()

    def write(self) -> None:
        """Write what has been gathered now, so that it precedes what comes next."""
        if not self._payloads:
            return
        payloads, self._payloads, self._size = self._payloads, [], 0
        waiting, self._waiting = self._waiting, []

        def done(result: Batch | StorageError) -> None:
            error = result if isinstance(result, StorageError) else None
            for reply in waiting:
                reply(error)

        self._submit(entries(*payloads), done)


_Count = Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)]


class _Order(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    since: _Count
    numbers: list[_Count]
    lost: _Count = 0
    dead: _Count = 0
    letters: _Count = 0


_decoder: Final = msgspec.msgpack.Decoder(_Order)
