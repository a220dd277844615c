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
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from headrace.errors import HeadraceError, RefusedError, StorageError
from headrace.hub.hub import Hub
from headrace.hub.publishers import Publishers
from headrace.message import SCHEMA, Batch, Run


class Published(NamedTuple):
    """Where the first and the last row of a publish are, if that is still known; how many were there before."""

    first: int | None
    last: int | None
    repeated: int = 0


Told: TypeAlias = Callable[[Published | HeadraceError], None]
"""Told how a publish ended, once it is committed or cannot be."""


class _Publish(NamedTuple):
    batch: Batch
    number: int
    follows: bool
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

    def newest(self, publisher: str) -> int | None:
        """The highest committed number of a publisher."""
        return self._publishers.newest(publisher)

    def publish(self, batch: Batch, told: Told, *, follows: bool = False) -> None:
        """Append a batch unless it is here already; ``told`` may be called at once."""
        if batch.number is None or not batch.publisher:
            self._hub.submit(batch, lambda result: told(_outcome(result)))
            return
        publish = _Publish(batch, batch.number, follows, told)
        line = self._lines.get(batch.publisher)
        if line is None:
            line = self._lines[batch.publisher] = _Line()
        line.waiting.append(publish)
        self._go_on(batch.publisher, line)

    def _go_on(self, publisher: str, line: _Line) -> None:
        while line.waiting and self._decide(publisher, line, line.waiting[0]):
            pass
        if not line.under_way and not line.waiting:
            self._lines.pop(publisher, None)

    def _decide(self, publisher: str, line: _Line, publish: _Publish) -> bool:
        """Take the first of those that wait, or leave it waiting."""
        batch, number, follows, told = publish
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
            outcome = _outcome(result)
            if known.repeated and isinstance(outcome, Published):
                outcome = Published(known.first, outcome.last, known.repeated)
            told(outcome)
            self._go_on(publisher, line)

        self._hub.submit(rest, settled)
        return True


def _outcome(result: Batch | StorageError) -> Published | HeadraceError:
    return Published(result.first, result.last) if isinstance(result, Batch) else result


def published(rows: pa.RecordBatch, *, origin: str, publisher: str = "", number: int | None = None) -> Batch:
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
    columns = None
    if differing:
        schema = pa.schema([SCHEMA.field(name) for name in differing])
        columns = pa.RecordBatch.from_arrays(list(differing.values()), schema=schema)
    return Batch(
        Run.from_arrow(rows.column("payload")),
        origin=origin,
        publisher=publisher,
        number=number,
        topic="" if "topic" in differing else distinct[0].as_py(),
        columns=columns,
    )
