"""Idempotent publishing: rows with a publisher's number are appended once, however often and wherever they are sent.

A publisher that lost its connection resends every unacknowledged request, perhaps while the first try is not yet
committed. The number tells the cases apart:

- the log has the same rows under these numbers: the answer is their place;
- they are appended but not yet committed: the repeat waits for the commit and is judged again;
- some or all of them are new: those are appended;
- the log has other rows under these numbers, or has only higher numbers: this is a conflict, and refused;
- the hub no longer knows whether the log has them: this is refused as unknown. So nothing is acknowledged that is not
  in the log, and nothing is appended that may be there already.

Requests of one publisher are taken in order: if one waits, later ones wait, too. A request that may be a repeat waits
until it has been compared with the log (:mod:`~headrace.hub.publishing.same_rows`). A publisher that does not await
each answer marks each request as one that ``follows`` the previous one. If a request fails, those that follow it are
refused as well: they would leave a gap that cannot be filled, since lower numbers are refused.

A name that was opened has an epoch (:mod:`~headrace.hub.publishing.publisher_numbers`), and only the holder of that
epoch may publish under it. While a name is being opened, its publisher's requests wait, so that the new holder finds
in the log everything that the previous one has published.

What a frontend relays is published once in the same way. Its rows keep their own numbers, so a **mark** is appended
right after them, in the same append: a log entry with a number, and with the frontend as its publisher. The mark stands
after the last message of the request, so its place tells the place of all of them.

If another hub numbers messages, that hub decides: only it knows what is being appended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.errors import HeadraceError, RefusedError, StorageError, UnavailableError
from headrace.hub.publishing.publisher_numbers import Holder, PublisherNumbers, Span, opening
from headrace.hub.publishing.same_rows import Comparisons, Difference, Elsewhere
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import (
    KEPT,
    UNCLAIMED,
    Claim,
    Opened,
    Opening,
    Published,
    WhenNewest,
    WhenOpened,
    WhenPublished,
    is_kept,
)
from headrace.message import NOT_A_MESSAGE, Batch, Run, envelope_rows

FRONTEND: Final = "frontend"
"""First part of a mark's topic."""


class _Publish(NamedTuple):
    batch: Batch
    number: int
    follows: bool
    preceding: Sequence[Batch]
    reply: WhenPublished
    claim: Claim


class _Open(NamedTuple):
    opening: Opening
    reply: WhenOpened


class _Compared(NamedTuple):
    """The result of a comparison with the log."""

    request: _Publish
    places: list[Span]
    difference: Difference


class _Line:
    """One publisher's batches that are appended but not committed, and its requests that wait."""

    __slots__ = ("compared", "comparing", "opening", "under_way", "waiting")

    def __init__(self) -> None:
        self.under_way: deque[int] = deque()
        """The number after each batch's last row."""
        self.waiting: deque[_Publish | _Open] = deque()
        self.opening = False
        """Whether the name is being opened."""
        self.comparing = False
        """Whether the first waiting request is being compared with the log."""
        self.compared: _Compared | None = None

    @property
    def idle(self) -> bool:
        """Whether the line can be forgotten."""
        return not (self.under_way or self.waiting or self.opening or self.comparing)


class IdempotentPublishing:
    """Appends each publisher's rows once, even if they are sent again."""

    def __init__(self, hub: Hub, publishers: PublisherNumbers, elsewhere: Elsewhere | None = None) -> None:
        self.appending: Callable[[str], None] = lambda _: None
        """Called with a publisher's name before its rows are appended, which may be long after they were published."""
        self._hub = hub
        self._publishers = publishers
        self._comparisons = Comparisons(hub.log, elsewhere)
        self._lines: dict[str, _Line] = {}
        self._repeated = hub.counters.counter("repeated")

    def newest(self, publisher: str, reply: WhenNewest) -> None:
        """Ask for a publisher's highest committed number."""
        if self._hub.sequencer is not None:
            self._hub.sequencer.newest(publisher, reply)
        else:
            reply(self._publishers.newest(publisher))

    def open(self, publisher: str, opening: Opening, reply: WhenOpened) -> None:
        """Open a name: ``reply`` gets its new epoch; from now on only its holder may publish under the name."""
        if self._hub.sequencer is not None:
            self._hub.sequencer.open(publisher, opening, reply)
            return
        self._queue(publisher, _Open(opening, reply))

    def publish(
        self,
        batch: Batch,
        reply: WhenPublished,
        *,
        follows: bool = False,
        preceding: Sequence[Batch] = (),
        claim: Claim = UNCLAIMED,
    ) -> None:
        """Append a batch unless it is in the log already; ``reply`` may be called at once.

        The ``preceding`` batches are appended right before this one, together with it or not at all.
        """
        if batch.number is None or not batch.publisher:
            self._hub.submit(batch, lambda result: reply(_outcome(result)))
            return
        if self._hub.sequencer is not None:
            self._hub.sequencer.publish(batch, reply, follows=follows, preceding=preceding, claim=claim)
            return
        self._queue(batch.publisher, _Publish(batch, batch.number, follows, preceding, reply, claim))

    def pass_on(
        self,
        frontend: str,
        number: int,
        batches: Sequence[Batch],
        reply: WhenPublished,
        *,
        retry: int | None = None,
    ) -> None:
        """Append what a frontend relays, with its mark, unless the log has it.

        ``reply`` gets the place of the messages. Without messages, ``last`` is the message before the entries, and
        ``first`` the number after it.
        """
        count = sum(len(batch) for batch in batches if not batch.is_entries)

        def marked(result: Published | HeadraceError) -> None:
            if isinstance(result, Published) and result.last is not None:
                # The mark stands after the last message.
                result = result._replace(first=result.last - count + 1)
            reply(result)

        claim = UNCLAIMED if retry is None else Claim(retry=retry)
        self.publish(mark(frontend, number), marked, follows=number > 0, preceding=batches, claim=claim)

    def _queue(self, publisher: str, request: _Publish | _Open) -> None:
        line = self._lines.get(publisher)
        if line is None:
            line = self._lines[publisher] = _Line()
        line.waiting.append(request)
        self._go_on(publisher, line)

    def _go_on(self, publisher: str, line: _Line) -> None:
        while self._hub.sequencer is not None and line.waiting:
            # Another hub numbers messages now, so it decides about the requests that waited here.
            waiting = line.waiting.popleft()
            if isinstance(waiting, _Open):
                self._hub.sequencer.open(publisher, *waiting)
            else:
                batch, _, follows, preceding, reply, claim = waiting
                self._hub.sequencer.publish(batch, reply, follows=follows, preceding=preceding, claim=claim)
        while line.waiting and not line.opening and not line.comparing:
            if not self._decide(publisher, line, line.waiting[0]):
                break
        if line.idle:
            self._lines.pop(publisher, None)

    def _decide(self, publisher: str, line: _Line, request: _Publish | _Open) -> bool:
        """Answer or append the first waiting request; return ``False`` if it must wait."""
        if isinstance(request, _Open):
            line.waiting.popleft()
            self._open(publisher, line, request)
            return True
        batch, number, follows, _, reply, claim = request
        newest = self._publishers.newest(publisher)
        repeated = 0 if newest is None or number > newest else min(len(batch), newest - number + 1)
        if repeated < len(batch) and line.under_way and number < line.under_way[-1]:
            return False
        found = self._publishers.places(publisher, number, number + repeated) if repeated else None
        refused = None if batch.is_entries else self._refusal(publisher, claim)
        retried = repeated == len(batch) and self._is_retry_of_another_epoch(publisher, claim)
        comparable = found if not batch.is_entries and (refused is None or retried) else None
        if comparable and not self._is_compared(publisher, line, request, comparable):
            return False
        difference = None if line.compared is None else line.compared.difference
        line.compared = None
        line.waiting.popleft()
        try:
            if refused is not None and not (retried and self._taken_before(publisher, found, difference)):
                raise refused
            if claim.retry is not None:
                self._check_retry(publisher, claim.retry)
            if repeated < len(batch):
                if line.under_way:
                    newest = line.under_way[-1] - 1
                if follows and number > (-1 if newest is None else newest) + 1:
                    reason = f"number {number} of publisher {publisher!r} follows one that was not taken"
                    raise RefusedError("conflict", reason)
            places = self._places(batch, number, found, difference) if repeated else []
        except HeadraceError as error:
            reply(error)
            return True
        self._repeated.value += repeated
        if repeated == len(batch):
            reply(self._place_of_repeat(batch, places))
        else:
            self._append(line, request, repeated, places)
        return True

    def _is_compared(self, publisher: str, line: _Line, request: _Publish, places: list[Span]) -> bool:
        """Return whether a request has been compared with these places of the log; if not, start the comparison."""
        compared = line.compared
        if compared is not None and compared.request is request and compared.places == places:
            return True
        line.comparing = True
        at_once = True

        def done(difference: Difference) -> None:
            line.comparing = False
            line.compared = _Compared(request, places, difference)
            if not at_once:
                self._go_on(publisher, line)

        self._comparisons.compare(request.batch, places, done)
        at_once = False
        return not line.comparing

    def _refusal(self, publisher: str, claim: Claim) -> RefusedError | None:
        """Return why somebody may not publish under a name, or ``None`` if they may."""
        holder = self._publishers.holder(publisher)
        if claim.epoch != (holder.epoch or None):
            return _fenced(publisher, claim, holder)
        if holder.client and claim.client and holder.client != claim.client:
            return _forbidden(publisher, holder)
        return None

    def _is_retry_of_another_epoch(self, publisher: str, claim: Claim) -> bool:
        holder = self._publishers.holder(publisher)
        if claim.retry is None or claim.epoch == holder.epoch or not holder.epoch:
            return False
        return not (holder.client and claim.client and holder.client != claim.client)

    def _taken_before(self, publisher: str, places: list[Span] | None, difference: Difference) -> bool:
        """Return whether all rows of a retry were appended before somebody else opened the name.

        Then only the answer was lost. A publisher that is fenced now must not conclude that its rows were not taken,
        and send them elsewhere. Rows that the next holder has published under these numbers do not count, even if they
        look the same.
        """
        if not places or difference is not None:
            return False
        last = places[-1]
        try:
            op = self._hub.log.op_of(last.seq + last.end - last.number - 1)
        except StorageError:
            return False
        return op < self._publishers.holder(publisher).epoch

    def _check_retry(self, publisher: str, since: int) -> None:
        """Raise an error if a request first sent after position ``since`` may be in the log, but forgotten."""
        if self._publishers.forgotten > since and not self._publishers.remembers(publisher):
            raise RefusedError(
                "unknown",
                f"this may have been sent before, and publisher {publisher!r} may have been forgotten since, so it is "
                "not known whether this is in the log. Look there before you publish it again",
            )

    def _places(
        self, batch: Batch, number: int, places: list[Span] | None, difference: Difference
    ) -> list[Span]:
        """Return where the log has the first rows of a batch; raise an error unless they are the same."""
        publisher = batch.publisher
        if places is None:
            oldest = self._publishers.oldest(publisher)
            if oldest is None or number >= oldest:
                raise RefusedError(
                    "conflict",
                    f"the log has number {self._publishers.newest(publisher)} of publisher {publisher!r}, but not "
                    f"all from {number} on: numbers never go back. Somebody else may publish under this name; open it "
                    "to learn which number comes next",
                )
            if batch.is_entries:
                return []
            raise RefusedError(
                "unknown",
                f"number {number} of publisher {publisher!r} is lower than {oldest}, the lowest that is remembered, so "
                "it is not known whether this is in the log. Look there before you publish it again",
            )
        if difference is not None:
            raise difference
        return places

    def _place_of_repeat(self, batch: Batch, places: list[Span]) -> Published:
        # Any operation that is committed here will do: it comes after the rows.
        op = self._hub.log.head_op
        if not places:
            return Published(None, None, len(batch), op)
        last = places[-1]
        if batch.is_entries:
            return Published(places[0].seq, last.seq, len(batch), last.op or op)
        return Published(places[0].seq, last.seq + last.end - last.number - 1, len(batch), op)

    def _append(self, line: _Line, request: _Publish, repeated: int, places: list[Span]) -> None:
        batch, number, follows, preceding, reply, claim = request
        line.under_way.append(number + len(batch))
        rest = batch.slice(repeated, len(batch)) if repeated else batch

        def settled(result: Batch | StorageError) -> None:
            line.under_way.remove(number + len(batch))
            sequencer = self._hub.sequencer
            if isinstance(result, UnavailableError) and sequencer is not None:
                # Another hub numbers messages by now, and it knows whether the log has this.
                sequencer.publish(batch, reply, follows=follows, preceding=preceding, claim=claim)
                self._go_on(batch.publisher, line)
                return
            outcome = _outcome(result)
            if repeated and isinstance(outcome, Published):
                outcome = outcome._replace(first=places[0].seq if places else None, repeated=repeated)
            reply(outcome)
            self._go_on(batch.publisher, line)

        self.appending(batch.publisher)
        for each in preceding:
            self._hub.submit(each, tied=True)
        self._hub.submit(rest, settled)

    def _open(self, publisher: str, line: _Line, request: _Open) -> None:
        wanted, reply = request
        before = self._publishers.holder(publisher)
        if before.client and wanted.client and before.client != wanted.client:
            reply(_forbidden(publisher, before))
            return
        if before.epoch and before.holder == wanted.holder:
            # This is a retry: the first answer was lost.
            reply(Opened(before.epoch, self._publishers.newest(publisher)))
            return
        line.opening = True

        def settled(result: Batch | StorageError) -> None:
            line.opening = False
            sequencer = self._hub.sequencer
            if isinstance(result, Batch):
                # If the entry was relayed after all, its position may not be known.
                epoch = result.op or self._publishers.holder(publisher).epoch
                reply(Opened(epoch, self._publishers.newest(publisher)))
            elif isinstance(result, UnavailableError) and sequencer is not None:
                sequencer.open(publisher, wanted, reply)
            else:
                reply(result)
            self._go_on(publisher, line)

        self._hub.submit(opening(publisher, *wanted), settled)


def _fenced(publisher: str, claim: Claim, holder: Holder) -> RefusedError:
    """Explain why somebody who does not hold a name may not publish under it."""
    if not holder.epoch:
        return RefusedError(
            "unknown",
            f"publisher {publisher!r} is not open: it was silent for so long that the hub has forgotten it. Open it "
            "again; look in the log for whatever it sent before and got no answer for",
        )
    when = datetime.fromtimestamp(holder.time / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    opened = f"by {holder.by or 'somebody'} at {when}"
    if claim.epoch is None:
        return RefusedError(
            "fenced", f"publisher {publisher!r} was opened {opened}: open it before you publish under it"
        )
    taken = "nothing was taken"
    if claim.retry is not None:
        taken += " now; look in the log for whether it was taken when it was first sent"
    return RefusedError(
        "fenced",
        f"publisher {publisher!r} was opened anew {opened}, so this connection may not publish under it: {taken}. If "
        "both should publish, give each its own name; if this one should, open it again",
    )


def _forbidden(publisher: str, holder: Holder) -> RefusedError:
    return RefusedError(
        "forbidden", f"publisher {publisher!r} belongs to client {holder.client}: take another name"
    )


def _outcome(result: Batch | StorageError) -> Published | HeadraceError:
    if isinstance(result, Batch):
        if is_kept(result):
            return KEPT
        return Published(result.first, result.last, op=result.last_op if result.op else None)
    return result


def mark(frontend: str, number: int) -> Batch:
    """Make the entry that marks the rows before it as one of a frontend's requests."""
    return Batch(
        Run.one(b""), origin=NOT_A_MESSAGE, publisher=frontend, number=number, topic=f"{FRONTEND}/{frontend}"
    )


def published(
    rows: pa.RecordBatch, *, origin: str = "", publisher: str = "", number: int | None = None
) -> Batch:
    """Make a batch of rows to be published; a topic that all rows share is stored once."""
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
