"""Publishing once: rows that their publisher numbered are appended once, however often and wherever they are sent.

A publisher that lost its connection sends again whatever was not acknowledged, over another connection and perhaps
while the first try is still under way to the commit. So three cases are told apart by the number:

- the log has the rows: they are answered with the places they have;
- they are appended but not yet committed: the repeat waits for that, and is judged again then;
- they are new (or the rest of them is): they are appended.

What comes from one publisher is taken in the order it came: behind a request that waits, the next wait too. A publisher
that sends ahead of the answers says of each request that it ``follows`` the one before. Should that one fail, the ones
behind it are refused as well instead of leaving a gap that no repeat could fill: a repeat of lower numbers would be
taken for known.

What a frontend passes on is published once in the same way. Its rows have no number of the frontend's: they keep what
they came with. So a **mark** is appended right behind them, in the same append: an entry of the log that has the
frontend for its publisher, and a number.

Where another hub numbers, that hub is asked instead: only there it is known what is under way.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.errors import HeadraceError, RefusedError, StorageError, UnavailableError
from headrace.hub.publishing.publisher_numbers import Publishers
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Published, Told, ToldNewest
from headrace.message import NOT_A_MESSAGE, Batch, Run, envelope_rows

FRONTEND: Final = "frontend"
"""What the topic of a mark begins with."""


class _Publish(NamedTuple):
    batch: Batch
    number: int
    follows: bool
    behind: Batch | None
    told: Told


class _Line:
    """What of one publisher is under way to the commit, and what waits behind it."""

    __slots__ = ("under_way", "waiting")

    def __init__(self) -> None:
        self.under_way: deque[int] = deque()
        """For each batch, the number behind its last row."""
        self.waiting: deque[_Publish] = deque()


class Publishing:
    """The one way in for rows that may be repeated."""

    def __init__(self, hub: Hub, publishers: Publishers) -> None:
        self._hub = hub
        self._publishers = publishers
        self._lines: dict[str, _Line] = {}

    def __len__(self) -> int:
        """How many publishers have something under way."""
        return len(self._lines)

    def newest(self, publisher: str, told: ToldNewest) -> None:
        """Find out the highest committed number of a publisher."""
        if self._hub.sequencer is not None:
            self._hub.sequencer.newest(publisher, told)
        else:
            told(self._publishers.newest(publisher))

    def publish(
        self, batch: Batch, told: Told, *, follows: bool = False, behind: Batch | None = None
    ) -> None:
        """Append a batch unless it is here already; ``told`` may be called at once.

        ``behind`` is a batch that is appended right before this one, or not at all.
        """
        if batch.number is None or not batch.publisher:
            self._hub.submit(batch, lambda result: told(_outcome(result)))
            return
        if self._hub.sequencer is not None:
            self._hub.sequencer.publish(batch, told, follows=follows, behind=behind)
            return
        publish = _Publish(batch, batch.number, follows, behind, told)
        line = self._lines.get(batch.publisher)
        if line is None:
            line = self._lines[batch.publisher] = _Line()
        line.waiting.append(publish)
        self._go_on(batch.publisher, line)

    def _go_on(self, publisher: str, line: _Line) -> None:
        sequencer = self._hub.sequencer
        while sequencer is not None and line.waiting:
            # Another hub numbers now: it judges what waited here.
            batch, _, follows, behind, told = line.waiting.popleft()
            sequencer.publish(batch, told, follows=follows, behind=behind)
        while line.waiting and self._decide(publisher, line, line.waiting[0]):
            pass
        if not line.under_way and not line.waiting:
            self._lines.pop(publisher, None)

    def _decide(self, publisher: str, line: _Line, publish: _Publish) -> bool:
        """Take the first of those that wait, or leave it waiting."""
        batch, number, follows, behind, told = publish
        known = self._publishers.known(publisher, number, len(batch))
        if known.repeated < len(batch):
            if line.under_way and number < line.under_way[-1]:
                return False
            newest = line.under_way[-1] - 1 if line.under_way else self._publishers.newest(publisher)
            if follows and number > (-1 if newest is None else newest) + 1:
                line.waiting.popleft()
                reason = f"number {number} of publisher {publisher!r} follows one that was not taken"
                told(RefusedError("conflict", reason))
                return True
        line.waiting.popleft()
        if known.repeated == len(batch):
            told(Published(known.first, known.last, known.repeated))
            return True
        line.under_way.append(number + len(batch))
        rest = batch.slice(known.repeated, len(batch)) if known.repeated else batch

        def settled(result: Batch | StorageError) -> None:
            line.under_way.remove(number + len(batch))
            sequencer = self._hub.sequencer
            if isinstance(result, UnavailableError) and sequencer is not None:
                # Another hub has come to number meanwhile, and knows whether it has this.
                sequencer.publish(batch, told, follows=follows, behind=behind)
                self._go_on(publisher, line)
                return
            outcome = _outcome(result)
            if known.repeated and isinstance(outcome, Published):
                outcome = Published(known.first, outcome.last, known.repeated)
            told(outcome)
            self._go_on(publisher, line)

        if behind is not None:
            self._hub.submit(behind, tied=True)
        self._hub.submit(rest, settled)
        return True


def _outcome(result: Batch | StorageError) -> Published | HeadraceError:
    return Published(result.first, result.last) if isinstance(result, Batch) else result


def mark(frontend: str, number: int) -> Batch:
    """The entry that says which of a frontend's requests the rows before it were."""
    return Batch(
        Run.one(b""),
        origin=NOT_A_MESSAGE,
        publisher=frontend,
        number=number,
        topic=f"{FRONTEND}/{frontend}",
    )


def published(
    rows: pa.RecordBatch, *, origin: str = "", publisher: str = "", number: int | None = None
) -> Batch:
    """Rows in the schema of those to be published as a batch: what they all share is kept once."""
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
