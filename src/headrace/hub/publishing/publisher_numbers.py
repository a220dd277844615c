"""Publishers' names and numbers, which make it safe to retry a publish.

A publisher may number its messages with a counter of its own. The log keeps those numbers, so the newest number of each
publisher, and the place of its latest messages, are a function of the log. A publish of known numbers is a repeat: it
is answered with the old range and not appended. A frontend's marks are numbered in the same way; a mark is an entry,
and its place is the message before it.

A name that several programs may use is **opened**: an entry ``publisher/NAME`` gives it a new epoch, which is the
position of that entry in the log, so epochs only grow. The holder of an older epoch is fenced. Where clients prove who
they are, an opened name belongs to the client that opened it.

Bounds: :data:`MAX_PUBLISHERS` publishers; the one silent for longest is forgotten first. Each has at most
:data:`MAX_SPANS` spans, and all together :data:`MAX_ALL_SPANS`; publishers silent for longest lose their oldest spans
first, but never the newest. At most :data:`MAX_UNUSED` names that were only opened push out others.
:attr:`PublisherNumbers.forgotten` says up to where publishers may be forgotten, which tells the retry of a forgotten
request from a request that never came.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

import msgspec
import numpy as np

from headrace.hub.state import LargePart, entry
from headrace.log.snapshots.pieces import array_header, rows
from headrace.message import Batch

MAX_PUBLISHERS: Final = 100_000
MAX_SPANS: Final = 256
"""Most spans of a publisher: as many as a client has open requests, since all of them may be retried."""
MAX_ALL_SPANS: Final = 1_000_000
MAX_NAME: Final = 1024
"""Characters of a publisher's name, and of who holds it: doors allow fewer."""
MAX_UNUSED: Final = 1024
"""Most unused names that push out others: enough for all that are opened at about the same time."""


class Span(NamedTuple):
    """Numbers from ``number`` to before ``end``, in the sequence from ``seq`` on; of a mark, after message ``seq``."""

    number: int
    end: int
    seq: int
    op: int = 0
    """The position of a mark in the log; 0 for messages."""


class Holder(NamedTuple):
    """Who opened a name last."""

    epoch: int
    """The position of the entry; 0 if the name was never opened."""
    holder: str
    client: str
    """The id of the client; empty where clients need none."""
    by: str
    time: int
    """Time of the opening, in µs since 1970."""


NOBODY: Final = Holder(0, "", "", "", 0)


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    holder: str
    client: str = ""
    by: str = ""


class _Publisher:
    """What is known of one publisher."""

    __slots__ = ("holder", "op", "spans")

    def __init__(self, op: int = 0, holder: Holder = NOBODY) -> None:
        self.op = op
        """The position of its latest message or entry."""
        self.holder = holder
        self.spans: deque[Span] = deque(maxlen=MAX_SPANS)


class PublisherNumbers(LargePart):
    """The names and numbers of all publishers, as part of the hub's state."""

    name = "publisher"

    def __init__(self) -> None:
        self.forgotten = 0
        """The latest log position of a forgotten publisher: whoever is forgotten was silent after it."""
        self._publishers: OrderedDict[str, _Publisher] = OrderedDict()
        self._several: OrderedDict[str, None] = OrderedDict()
        """Publishers with more than one span, in the same order."""
        self._unused: OrderedDict[str, None] = OrderedDict()
        """Publishers without a span, whose names were only opened, in the same order."""
        self._spans = 0
        """Number of spans of all publishers."""
        self._opened: list[str] = []
        """Names opened by the entries of the batch being applied; their time is the batch's."""

    def newest(self, publisher: str) -> int | None:
        """Return a publisher's highest number."""
        known = self._publishers.get(publisher)
        return known.spans[-1].end - 1 if known is not None and known.spans else None

    def holder(self, publisher: str) -> Holder:
        """Return who opened a name last; :data:`NOBODY` if nobody did, or if that is forgotten."""
        known = self._publishers.get(publisher)
        return NOBODY if known is None else known.holder

    def remembers(self, publisher: str) -> bool:
        """Whether anything is known of a publisher."""
        return publisher in self._publishers

    def oldest(self, publisher: str) -> int | None:
        """Return a publisher's lowest number whose place is known; below it, nothing is known."""
        known = self._publishers.get(publisher)
        return known.spans[0].number if known is not None and known.spans else None

    def places(self, publisher: str, number: int, end: int) -> list[Span] | None:
        """Return the places of numbers from ``number`` to before ``end``; ``None`` if any place is not known."""
        known = self._publishers.get(publisher)
        found: list[Span] = []
        for span in () if known is None else known.spans:
            if span.end <= number:
                continue
            if span.number > number:
                break
            upto = min(end, span.end)
            found.append(Span(number, upto, span.seq + number - span.number, span.op))
            number = upto
            if number == end:
                return found
        return None

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:  # noqa: ARG002
        """Apply a ``publisher`` entry, which opens a name; a repeat by the same holder changes nothing."""
        opened = msgspec.json.decode(payload, type=_Entry)
        if max(map(len, (name, opened.holder, opened.client, opened.by))) > MAX_NAME:
            # Doors write no such entry; a relayed one may hold anything.
            raise msgspec.ValidationError(f"a publisher's names have at most {MAX_NAME} characters")
        known = self._known(name, op)
        if not known.spans:
            self._unused[name] = None
        if known.holder.holder != opened.holder:
            known.holder = Holder(op, opened.holder, opened.client, opened.by, 0)
            self._opened.append(name)

    def follow(self, batch: Batch) -> None:
        """Note a batch's numbers."""
        if batch.number is None and batch.columns is None and not self._opened:
            return
        if batch.is_entries:
            if self._opened:
                self._date(batch.last_time)
            if batch.number is not None and batch.publisher:
                # Entries take no sequence numbers, so each is a span of its own.
                for row in range(len(batch)):
                    number, op = batch.number + row, batch.op + row
                    self._note(batch.publisher, Span(number, number + 1, batch.first, op), op)
            return
        if batch.columns is None or not {"number", "publisher"} & set(batch.columns.schema.names):
            if batch.number is not None and batch.publisher:
                self._note(
                    batch.publisher,
                    Span(batch.number, batch.number + batch.run.count, batch.first),
                    batch.last_op,
                )
            return
        rows = batch.to_arrow()
        column = rows.column("number")
        if column.null_count == len(column):
            return
        numbers = column.fill_null(-1).to_numpy()
        publishers = rows.column("publisher").dictionary_encode()
        codes = publishers.indices.to_numpy()
        names = publishers.dictionary.to_pylist()
        # A span ends where the publisher changes, or its numbers skip.
        breaks = np.flatnonzero((np.diff(codes) != 0) | (np.diff(numbers) != 1)) + 1
        for begin, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(numbers)], strict=True):
            if numbers[begin] >= 0 and names[codes[begin]]:
                number = int(numbers[begin])
                self._note(
                    names[codes[begin]],
                    Span(number, number + end - begin, batch.first + begin),
                    batch.op + end - 1,
                )

    def freeze(self) -> Iterator[bytes]:
        """Return the pieces of the snapshot's section, which a thread makes."""
        publishers = [
            (name, known.op, known.holder, tuple(known.spans)) for name, known in self._publishers.items()
        ]
        return chain((array_header(2) + msgspec.msgpack.encode(self.forgotten),), rows(publishers))

    def load(self, section: bytes) -> None:
        """Restore the names and numbers from a snapshot."""
        self.forgotten, publishers = msgspec.msgpack.decode(
            section,
            type=tuple[
                int,
                list[tuple[str, int, tuple[int, str, str, str, int], list[tuple[int, int, int, int]]]],
            ],
        )
        self._publishers, self._spans = OrderedDict(), 0
        self._several, self._unused = OrderedDict(), OrderedDict()
        for name, op, holder, spans in publishers:
            known = self._publishers[name] = _Publisher(op, Holder(*holder))
            known.spans.extend(Span(*span) for span in spans)
            self._spans += len(known.spans)
            if len(known.spans) > 1:
                self._several[name] = None
            elif not known.spans:
                self._unused[name] = None

    def _date(self, time: int) -> None:
        for name in self._opened:
            known = self._publishers.get(name)
            if known is not None:
                known.holder = known.holder._replace(time=time)
        self._opened.clear()

    def _known(self, publisher: str, op: int) -> _Publisher:
        """Return what is known of a publisher that was just active; forget another one if there are too many."""
        known = self._publishers.get(publisher)
        if known is None:
            known = self._publishers[publisher] = _Publisher()
            if len(self._publishers) > MAX_PUBLISHERS:
                self._forget()
        else:
            self._publishers.move_to_end(publisher)
            for some in (self._several, self._unused):
                if publisher in some:
                    some.move_to_end(publisher)
        known.op = op
        return known

    def _forget(self) -> None:
        name = next(iter(self._unused if len(self._unused) > MAX_UNUSED else self._publishers))
        silent = self._publishers.pop(name)
        self._several.pop(name, None)
        self._unused.pop(name, None)
        if silent.spans:
            # A publisher without spans has nothing in the log that could be retried.
            self.forgotten = max(self.forgotten, silent.op)
        self._spans -= len(silent.spans)

    def _shorten(self) -> None:
        """Forget the oldest span of the publisher that was silent for longest and has several."""
        name = next(iter(self._several))
        spans = self._publishers[name].spans
        spans.popleft()
        self._spans -= 1
        if len(spans) == 1:
            del self._several[name]

    def _note(self, publisher: str, span: Span, op: int) -> None:
        spans = self._known(publisher, op).spans
        if spans:
            last = spans[-1]
            if span.number < last.end:
                # Numbers that go back are the publisher's mistake. They are in the log for `verify` to see; the newest
                # number stays, so that a retry is still recognised.
                return
            follows = span.number == last.end and span.seq == last.seq + last.end - last.number
            if follows and not (span.op or last.op):
                spans[-1] = Span(last.number, span.end, last.seq)
                return
        self._spans += len(spans) < MAX_SPANS
        spans.append(span)
        if len(spans) == 1:
            self._unused.pop(publisher, None)
        elif publisher not in self._several:
            self._several[publisher] = None
        while self._spans > MAX_ALL_SPANS and self._several:
            self._shorten()


def opening(name: str, holder: str, client: str, by: str) -> Batch:
    """Make the entry that opens a publisher's name."""
    return entry(PublisherNumbers.name, name, msgspec.json.encode(_Entry(holder, client, by)))
