"""Publishers' own numbers, which make it harmless to retry a publish.

A publisher may number its messages with a counter of its own. The log keeps those numbers, so the newest of each
publisher, and the place of its latest messages, are a function of the log. A publish of known numbers is a repeat: it
is answered with the old range and not appended. A frontend's marks are numbered in the same way; a mark is an entry,
and its place is the message that it stands after.

Bounds: :data:`MAX_PUBLISHERS` publishers, the one silent for longest forgotten first, and the last
:data:`MAX_SPANS` spans of each. An older repeat is still recognised, but its place is not known.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

import msgspec
import numpy as np

from headrace.message import Batch

MAX_PUBLISHERS: Final = 100_000
MAX_SPANS: Final = 64


class Span(NamedTuple):
    """Numbers from ``number`` to before ``end``, in the sequence from ``seq`` on; of a mark, after message ``seq``."""

    number: int
    end: int
    seq: int
    op: int = 0
    """The position of a mark in the log; 0 for messages."""


class Known(NamedTuple):
    """How many messages of a publish, from its first on, the log has, and their place if it is still known."""

    repeated: int
    first: int | None
    last: int | None


class PublisherNumbers:
    """The numbers of all publishers, as part of the hub's state."""

    name = "publisher"

    def __init__(self) -> None:
        self._spans: OrderedDict[str, deque[Span]] = OrderedDict()

    def newest(self, publisher: str) -> int | None:
        """Return a publisher's highest number."""
        spans = self._spans.get(publisher)
        return spans[-1].end - 1 if spans else None

    def known(self, publisher: str, number: int, count: int) -> Known:
        """Find how much of a publish of ``count`` messages from ``number`` on the log has."""
        newest = self.newest(publisher)
        if newest is None or number > newest:
            return Known(0, None, None)
        repeated = min(count, newest - number + 1)
        return Known(repeated, self._seq(publisher, number), self._seq(publisher, number + repeated - 1))

    def mark(self, publisher: str, number: int) -> int | None:
        """Return the position of a mark in the log, if it is still known."""
        span = self._span(publisher, number)
        return None if span is None else span.op

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:
        """Do nothing: marks are noted as they are followed, like messages."""

    def follow(self, batch: Batch) -> None:
        """Note a batch's numbers."""
        if batch.is_entries:
            if batch.number is not None and batch.publisher:
                # They take no sequence numbers, so each is a span of its own.
                for row in range(len(batch)):
                    number = batch.number + row
                    self._note(batch.publisher, Span(number, number + 1, batch.first, batch.op + row))
            return
        if batch.columns is None or not {"number", "publisher"} & set(batch.columns.schema.names):
            if batch.number is not None and batch.publisher:
                self._note(batch.publisher, _messages(batch.number, len(batch), batch.first))
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
                self._note(
                    names[codes[begin]], _messages(int(numbers[begin]), end - begin, batch.first + begin)
                )

    def dump(self) -> bytes:
        """Return the numbers as a snapshot's section."""
        return msgspec.msgpack.encode([(name, list(spans)) for name, spans in self._spans.items()])

    def load(self, section: bytes) -> None:
        """Restore the numbers from a snapshot."""
        loaded = msgspec.msgpack.decode(section, type=list[tuple[str, list[tuple[int, int, int, int]]]])
        self._spans = OrderedDict(
            (name, deque((Span(*span) for span in spans), MAX_SPANS)) for name, spans in loaded
        )

    def _note(self, publisher: str, span: Span) -> None:
        spans = self._spans.get(publisher)
        if spans is None:
            spans = self._spans[publisher] = deque(maxlen=MAX_SPANS)
            if len(self._spans) > MAX_PUBLISHERS:
                self._spans.popitem(last=False)
        self._spans.move_to_end(publisher)
        if not spans:
            spans.append(span)
            return
        last = spans[-1]
        follows = span.number == last.end and span.seq == last.seq + last.end - last.number
        if follows and not (span.op or last.op):
            spans[-1] = Span(last.number, span.end, last.seq)
        elif span.number >= last.end:
            spans.append(span)
        # Numbers that go back are the publisher's mistake. They are in the log for `verify` to see; the newest number
        # stays, so that a retry is still recognised.

    def _seq(self, publisher: str, number: int) -> int | None:
        span = self._span(publisher, number)
        return None if span is None else span.seq + number - span.number

    def _span(self, publisher: str, number: int) -> Span | None:
        spans = self._spans.get(publisher, ())
        return next((span for span in spans if span.number <= number < span.end), None)


def _messages(number: int, count: int, seq: int) -> Span:
    return Span(number, number + count, seq)
