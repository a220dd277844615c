"""Messages that were kept here and refused upstream for good: they have a log of their own until a person decides.

``headrace log dump`` reads it like any other log. An entry before the messages of a request says whose they are and why
they were refused; a later entry says that they were sent again or dropped. A request is set aside once, even if a crash
comes before the outbox has noted that.

Messages are sent again without their publisher's numbers, which somebody else may have used since, and with a mark that
names the request: if a crash makes them be sent twice, they are taken once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.errors import HeadraceError, RefusedError
from headrace.hub.publishing.idempotent import mark
from headrace.hub.publishing.relaying.passed import column_texts
from headrace.hub.publishing.storing.kept_requests import KeptRequest
from headrace.hub.state import entry
from headrace.log import Log
from headrace.message import Batch

_PART: Final = "aside"
_DONE: Final = "aside-done"

MAX_TOPICS: Final = 5
"""Most topics that are listed for a request."""

Outcome: TypeAlias = Literal["retried", "dropped"]


class Refusal(msgspec.Struct, frozen=True):
    """The publisher whose messages were refused, and the reason."""

    publisher: str
    number: int
    reason: str


class AsideRequest(msgspec.Struct):
    """A request that was set aside, as it is listed."""

    request: str
    """The request's name, for sending it again or dropping it."""
    time: int
    """Time when it was set aside, in µs since 1970."""
    publisher: str
    number: int
    reason: str
    messages: int = 0
    bytes: int = 0
    topics: list[str] = []


@dataclass(slots=True)
class _Place:
    """The operations between which a request's rows are."""

    request: AsideRequest
    mark: str
    """The name of its mark: the outbox that it was in, and its first operation there."""
    first: int
    last: int


class SetAside:
    """The messages set aside from the outbox named ``outbox``; for one thread at a time."""

    def __init__(self, log: Log, outbox: UUID) -> None:
        self.log = log
        self._outbox = outbox
        self._last = ""
        self._waiting: dict[str, _Place] = {}
        """Requests that nobody has dealt with, in order."""
        self._newest: _Place | None = None
        """The request whose rows come next."""
        for batch in log.scan_ops(log.first_op):
            self._take(batch)

    @property
    def requests(self) -> list[AsideRequest]:
        """Return the requests that nobody has dealt with, oldest first."""
        return [place.request for place in list(self._waiting.values())]

    @property
    def messages(self) -> int:
        """Number of messages in those requests."""
        return sum(request.messages for request in self.requests)

    @property
    def size(self) -> int:
        """Bytes on the disk; 0 if nothing is set aside."""
        return self.log.size if self.log.tail_op else 0

    def put(self, request: KeptRequest, error: HeadraceError, time: int) -> None:
        """Add a request unless it is there; this waits for the disk."""
        refusal = Refusal(request.publisher, request.number, str(error))
        described = entry(_PART, f"{self._outbox}/{request.op}", msgspec.json.encode(refusal))
        if described.topic != self._last:
            self._append((described, *request.rows), time)

    def rows(self, name: str) -> list[Batch]:
        """Read the rows to pass on to the hub that numbers messages, with their mark last; this waits for the disk."""
        place = self._find(name)
        return [*map(_unnumbered, self.log.scan_ops(place.first, place.last)), mark(place.mark, 0)]

    def finish(self, name: str, outcome: Outcome, time: int) -> None:
        """Note that a request is dealt with; this waits for the disk."""
        self._find(name)
        self._append((entry(_DONE, name, outcome.encode()),), time)

    def _find(self, name: str) -> _Place:
        place = self._waiting.get(name)
        if place is None:
            raise RefusedError("missing", f"no request {name[:64]!r} is set aside here")
        return place

    def _append(self, batches: Sequence[Batch], time: int) -> None:
        log = self.log
        op, seq, time = log.tail_op + 1, log.tail, max(time, log.last_time)
        numbered: list[Batch] = []
        for batch in batches:
            numbered.append(batch.numbered(op, seq if batch.is_entries else seq + 1, time, batch.node))
            op, seq = op + len(batch), numbered[-1].last
        log.append(numbered)
        if log.fsync != "never":
            log.sync()
        log.commit(log.tail_op)
        for batch in numbered:
            self._take(batch)

    def _take(self, batch: Batch) -> None:
        part, _, name = batch.topic.partition("/")
        if batch.is_entries and part == _DONE:
            self._waiting.pop(name, None)
            self._newest = None
        elif batch.is_entries and part == _PART:
            self._last = batch.topic
            self._newest = place = _described(batch, name)
            self._waiting[place.request.request] = place
        elif self._newest is not None:
            self._newest.last = batch.last_op
            if not batch.is_entries:
                _count(self._newest.request, batch)


def _described(batch: Batch, name: str) -> _Place:
    outbox, _, op = name.partition("/")
    refusal = msgspec.json.decode(batch.run[0], type=Refusal)
    request = AsideRequest(
        f"{outbox[:8]}-{op}", batch.time, refusal.publisher, refusal.number, refusal.reason
    )
    return _Place(request, name, batch.last_op + 1, batch.last_op)


def _count(request: AsideRequest, batch: Batch) -> None:
    request.messages += len(batch)
    request.bytes += batch.run.size
    topics = dict.fromkeys((*request.topics, *column_texts(batch, "topic")))
    request.topics = list(topics)[:MAX_TOPICS]


def _unnumbered(batch: Batch) -> Batch:
    """Return rows without their publisher's numbers."""
    columns = batch.columns
    if columns is not None and "number" in columns.schema.names:
        columns = columns.drop_columns("number") if columns.num_columns > 1 else None
    return replace(batch, number=None, columns=columns)
