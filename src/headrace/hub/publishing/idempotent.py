"""Idempotent publishing: rows with a publisher's number are appended once, however often and wherever they are sent.

A publisher that lost its connection resends every unacknowledged request, perhaps while the first try is not yet
committed. The number tells three cases apart:

- the log has the rows: the answer is their place;
- they are appended but not yet committed: the repeat waits for the commit and is judged again;
- they, or some of them, are new: those are appended.

Requests of one publisher are taken in order: if one waits, so do the next. A publisher that does not await each answer
marks each request as one that ``follows`` the one before. If that one fails, those after it are refused as well: the
gap they would leave could not be filled, since a repeat of lower numbers would be taken for known.

What a frontend relays is published once in the same way. Its rows keep their own numbers, so a **mark** is appended
right after them, in the same append: a log entry with the frontend as its publisher, and a number. It stands after the
last message of the request, which tells the place of all of them.

If another hub numbers messages, that hub decides: only it knows what is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.errors import HeadraceError, RefusedError, StorageError, UnavailableError
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Published, WhenNewest, WhenPublished
from headrace.message import NOT_A_MESSAGE, Batch, Run, envelope_rows

FRONTEND: Final = "frontend"
"""First part of a mark's topic."""


class _Publish(NamedTuple):
    batch: Batch
    number: int
    follows: bool
    preceding: Sequence[Batch]
    reply: WhenPublished


class _Line:
    """One publisher's batches: those appended but not committed, and those that wait."""

    __slots__ = ("under_way", "waiting")

    def __init__(self) -> None:
        self.under_way: deque[int] = deque()
        """The number after each batch's last row."""
        self.waiting: deque[_Publish] = deque()


class IdempotentPublishing:
    """Appends each publisher's rows once, even if they are sent again."""

    def __init__(self, hub: Hub, publishers: PublisherNumbers) -> None:
        self._hub = hub
        self._publishers = publishers
        self._lines: dict[str, _Line] = {}

    def newest(self, publisher: str, reply: WhenNewest) -> None:
        """Ask for a publisher's highest committed number."""
        if self._hub.sequencer is not None:
            self._hub.sequencer.newest(publisher, reply)
        else:
            reply(self._publishers.newest(publisher))

    def publish(
        self,
        batch: Batch,
        reply: WhenPublished,
        *,
        follows: bool = False,
        preceding: Sequence[Batch] = (),
    ) -> None:
        """Append a batch unless it is in the log already; ``reply`` may be called at once.

        ``preceding`` are batches to append right before this one, together or not at all.
        """
        if batch.number is None or not batch.publisher:
            self._hub.submit(batch, lambda result: reply(_outcome(result)))
            return
        if self._hub.sequencer is not None:
            self._hub.sequencer.publish(batch, reply, follows=follows, preceding=preceding)
            return
        publish = _Publish(batch, batch.number, follows, preceding, reply)
        line = self._lines.get(batch.publisher)
        if line is None:
            line = self._lines[batch.publisher] = _Line()
        line.waiting.append(publish)
        self._go_on(batch.publisher, line)

    def pass_on(self, frontend: str, number: int, batches: Sequence[Batch], reply: WhenPublished) -> None:
        """Append what a frontend relays, with its mark, unless the log has it.

        ``reply`` gets the place of the messages; if there are none, ``last`` is the message that the entries stand
        after, and ``first`` the number after it.
        """
        count = sum(len(batch) for batch in batches if not batch.is_entries)

        def marked(result: Published | HeadraceError) -> None:
            if isinstance(result, Published) and result.last is not None:
                # The mark stands after the last message.
                result = result._replace(first=result.last - count + 1)
            reply(result)

        self.publish(_mark(frontend, number), marked, follows=number > 0, preceding=batches)

    def _go_on(self, publisher: str, line: _Line) -> None:
        sequencer = self._hub.sequencer
        while sequencer is not None and line.waiting:
            # Another hub numbers messages now: it decides about what waited here.
            batch, _, follows, preceding, reply = line.waiting.popleft()
            sequencer.publish(batch, reply, follows=follows, preceding=preceding)
        while line.waiting and self._decide(publisher, line, line.waiting[0]):
            pass
        if not line.under_way and not line.waiting:
            self._lines.pop(publisher, None)

    def _decide(self, publisher: str, line: _Line, publish: _Publish) -> bool:
        """Answer or append the first waiting batch; return ``False`` if it must wait."""
        batch, number, follows, preceding, reply = publish
        known = self._publishers.known(publisher, number, len(batch))
        if known.repeated < len(batch):
            if line.under_way and number < line.under_way[-1]:
                return False
            newest = line.under_way[-1] - 1 if line.under_way else self._publishers.newest(publisher)
            if follows and number > (-1 if newest is None else newest) + 1:
                line.waiting.popleft()
                reason = f"number {number} of publisher {publisher!r} follows one that was not taken"
                reply(RefusedError("conflict", reason))
                return True
        line.waiting.popleft()
        if known.repeated == len(batch):
            op = self._publishers.mark(publisher, number) if batch.is_entries else None
            # Wherever the rows are: who has all that is committed here has them.
            reply(Published(known.first, known.last, known.repeated, op or self._hub.log.head_op))
            return True
        line.under_way.append(number + len(batch))
        rest = batch.slice(known.repeated, len(batch)) if known.repeated else batch

        def settled(result: Batch | StorageError) -> None:
            line.under_way.remove(number + len(batch))
            sequencer = self._hub.sequencer
            if isinstance(result, UnavailableError) and sequencer is not None:
                # Another hub numbers messages by now, and knows whether it has this.
                sequencer.publish(batch, reply, follows=follows, preceding=preceding)
                self._go_on(publisher, line)
                return
            outcome = _outcome(result)
            if known.repeated and isinstance(outcome, Published):
                outcome = outcome._replace(first=known.first, repeated=known.repeated)
            reply(outcome)
            self._go_on(publisher, line)

        for each in preceding:
            self._hub.submit(each, tied=True)
        self._hub.submit(rest, settled)
        return True


def _outcome(result: Batch | StorageError) -> Published | HeadraceError:
    if isinstance(result, Batch):
        return Published(result.first, result.last, op=result.last_op if result.op else None)
    return result


def _mark(frontend: str, number: int) -> Batch:
    """Make the entry that marks the rows before it as one of a frontend's requests."""
    return Batch(
        Run.one(b""), origin=NOT_A_MESSAGE, publisher=frontend, number=number, topic=f"{FRONTEND}/{frontend}"
    )


def published(
    rows: pa.RecordBatch, *, origin: str = "", publisher: str = "", number: int | None = None
) -> Batch:
    """Make a batch of rows to be published; a value that all share is kept once."""
    topics = rows.column("topic")
    distinct = topics.unique()
    differing = {}
    if len(distinct) > 1:
        differing["topic"] = topics
    for name in ("attributes", "numbers"):
        maps = rows.column(name)
        if maps.offsets[0] != maps.offsets[-1]:
            differing[name] = maps
    return Batch(
        Run.from_arrow(rows.column("payload")),
        origin=origin,
        publisher=publisher,
        number=number,
        topic="" if "topic" in differing else distinct[0].as_py(),
        columns=envelope_rows(differing) if differing else None,
    )
