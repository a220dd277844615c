"""The publish relay: sends everything published at this hub to the hub that numbers it, and returns the answers.

Everything that is published becomes a :class:`RelayRequest` in one queue. The driver sends the requests that are
:meth:`~PublishRelay.due`, a window's worth ahead of the answers, and reports how each was
:meth:`~PublishRelay.answered`. An answer has the place in the sequence, and the operation up to which this hub must
have the log. The publisher gets the place once that operation is committed here, so that this hub's state has it, too.

When the connection is lost, every unanswered request is sent again over the next one, in the same order and under the
same numbers, by which the other hub recognises repeats. Submissions of doors have no such number, so this hub numbers
them itself, under a unique name that lasts as long as the process; requests lost with the process were never
acknowledged. A refused request leaves a gap in those numbers, so the requests sent after it are refused as well, and
later ones go under a new name, from 0 on. Requests that consist of entries alone have a name and numbers of their own:
a hub that is short of room refuses messages and still takes entries, even those right after the messages.

Bounds: publishers wait while more than ``most`` bytes are in the queue. Without a connection they wait ``patience``
seconds; then everything is refused until there is a connection. Only an answer restarts that wait, not a mere
connection. With a connection, requests are refused when the oldest has had no answer for
:attr:`~RelayBacklog.silence` seconds. An answer that waits for the log here is given up when the log has not grown for
``patience`` seconds. So every publish gets an answer. Drivers give up their own questions (commits, names of
publishers) after the same silence.

Nothing here has a socket or a clock: ``now`` is an argument, and :attr:`PublishRelay.wake` calls the driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Final

from headrace.errors import HeadraceError, StorageError, UnavailableError
from headrace.hub.publishing.relaying.backlog import RelayBacklog, Standstill
from headrace.hub.publishing.relaying.requests import (
    MOST_BYTES,
    OwnNumbers,
    RelayRequest,
    cost_of,
    cut_up,
    joined_reply,
)
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import (
    UNCLAIMED,
    Claim,
    Commit,
    Opening,
    Published,
    Submission,
    WhenNewest,
    WhenOpened,
    WhenPublished,
    tied_groups,
)
from headrace.message import NOT_A_MESSAGE, Batch

MAX_REQUESTS: Final = 32
"""Most unanswered requests: fewer than the marks whose places a hub remembers per publisher."""

MAX_UNDER_WAY: Final = 8 << 20
"""Most bytes of unanswered requests: fewer than a hub lets one tube have uncommitted."""

_TOGETHER: Final = 512 << 10
"""Approximate size up to which submissions share a request and its mark."""

UNKNOWN: Final = "whether this was taken is not known"


class PublishRelay(RelayBacklog):
    """The :class:`~headrace.hub.sequencer.Sequencer` of a hub that follows another one.

    ``name`` makes a unique name; ``unreachable`` begins the error text when no answer comes for too long.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        name: Callable[[], str],
        patience: float,
        most: int,
        now: float,
        unreachable: str = "the upstream hub has not answered",
    ) -> None:
        super().__init__(hub, patience=patience, most=most, now=now)
        self.longest: int | None = None
        """Length of the longest message that the upstream hub takes, once known."""
        self._numbers, self._numbers_of_entries = OwnNumbers(name), OwnNumbers(name)
        self.unreachable = unreachable
        """Text for errors when no answer comes, without the time."""
        self._waiting: deque[RelayRequest] = deque()
        self._sent: dict[RelayRequest, None] = {}
        self._under_way = 0
        self._settling: list[tuple[int, int, RelayRequest, Published]] = []
        """Answered requests, by the operation that must be committed here before they are done."""
        self._settled = 0
        self._no_answer, self._no_return = Standstill(now), Standstill(now)
        self._connected = False
        self._failure: str | None = None

    # Called by the hub

    def order(self, submitted: Sequence[Submission]) -> None:
        """Queue submissions of doors."""
        submitted = self._fit(submitted)
        if not submitted:
            return
        request: list[Submission] = []
        size, only_entries = 0, False
        for group in tied_groups(submitted):
            more = sum(cost_of(each.batch) for each in group)
            entries = all(each.batch.is_entries for each in group)
            # Messages and entries go separately: a hub that is short of room refuses messages and still takes entries.
            if request and (size + more > _TOGETHER or entries is not only_entries):
                self._pass(request)
                request, size = [], 0
            request += group
            size, only_entries = size + more, entries
        self._pass(request)
        self.wake()

    def publish(
        self,
        batch: Batch,
        reply: WhenPublished,
        *,
        follows: bool,
        preceding: Sequence[Batch],
        claim: Claim = UNCLAIMED,
    ) -> None:
        """Queue rows with a publisher's number: a client's own rows, or a mark and the batches before it."""
        if preceding:

            def marked(result: Published | HeadraceError) -> None:
                # The answer is the place of the messages; the mark stands after the last one.
                if isinstance(result, Published):
                    result = result._replace(first=result.last)
                reply(result)

            self._put(
                RelayRequest(preceding, marked, True, batch.publisher, batch.number or 0, follows, claim)
            )
        else:
            pieces = list(cut_up(batch))
            joined = joined_reply(len(pieces), reply)
            for piece in pieces:
                # Each piece follows the previous one, so a publish may be cut short, but never has a hole.
                follow = follows or piece is not pieces[0]
                self._put(
                    RelayRequest([piece], joined, False, piece.publisher, piece.number or 0, follow, claim)
                )
        self.wake()

    def commit(
        self, query: str, batch: int, rows: Sequence[Batch], reply: WhenPublished, terms: Commit
    ) -> None:
        """Append a query's batch once, as a whole or not at all."""
        answer = RelayRequest([], reply, True, sent=True)
        self.send_commit(query, batch, rows, lambda result: self._after(result, answer), terms)

    def newest(self, publisher: str, reply: WhenNewest) -> None:
        """Ask for a publisher's highest number."""
        self.ask_newest(publisher, reply)

    def open(self, publisher: str, opening: Opening, reply: WhenOpened) -> None:
        """Ask for a publisher's name to be opened."""
        self.ask_to_open(publisher, opening, reply)

    send_commit: Callable[[str, int, Sequence[Batch], WhenPublished, Commit], None]
    ask_newest: Callable[[str, WhenNewest], None]
    ask_to_open: Callable[[str, Opening, WhenOpened], None]
    """Set by the driver."""

    def committed(self, op: int) -> None:
        """Answer requests whose rows are committed up to operation ``op``."""
        settled = []
        while self._settling and self._settling[0][0] <= op:
            settled.append(heappop(self._settling))
        for _, _, request, published in settled:
            self._release(request.size)
            request.reply(published)

    # Called by the driver

    def connected(self, *, here: bool = False) -> None:
        """Resend unanswered requests over a new connection, or give them to this hub if it is primary (``here``)."""
        self._connected = True
        if here:
            self._lost_at = None  # This hub answers publishers without a connection.
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        self._under_way = 0
        self.wake()

    def lost(self, now: float) -> None:
        """Note that the connection is lost."""
        if self._connected and not (self._sent or self._waiting):
            self._lost_at = None  # No answer was outstanding.
        self._connected = False
        super().lost(now)

    def due(self, *, here: bool = False) -> Iterator[RelayRequest]:
        """Yield the requests to send now; all of them, if this hub numbers messages itself (``here``)."""
        while (
            self._waiting
            and self._connected
            and (here or len(self._sent) < MAX_REQUESTS)
            and (here or not self._sent or self._under_way + self._waiting[0].size <= MAX_UNDER_WAY)
        ):
            request = self._waiting.popleft()
            self._send(request)
            yield request

    def _send(self, request: RelayRequest) -> None:
        if not request.publisher:
            only_entries = all(batch.is_entries for batch in request.rows)
            (self._numbers_of_entries if only_entries else self._numbers).give(request)
        if not request.sent:
            request.since = self._hub.log.head_op
        elif request.claim.retry is None:
            request.claim = request.claim._replace(retry=request.since)
        request.sent = True
        self._sent[request] = None
        self._under_way += request.size

    def answered(self, request: RelayRequest, result: Published | HeadraceError) -> None:
        """Handle the answer of the hub that numbers messages."""
        if request not in self._sent:
            return
        self._lost_at = None
        del self._sent[request]
        self._under_way -= request.size
        if isinstance(result, HeadraceError):
            for numbers in (self._numbers, self._numbers_of_entries):
                numbers.leave_gap(request)
            self._end(request, result)
        else:
            self._after(result, request)
        self.wake()

    def unfit(self, request: RelayRequest, error: HeadraceError) -> None:
        """Refuse a request that was just due and cannot be sent; the next one gets its number."""
        del self._sent[request]
        self._under_way -= request.size
        for numbers in (self._numbers, self._numbers_of_entries):
            numbers.take_back(request)
        self._end(request, error)

    @property
    def unfinished(self) -> bool:
        """Whether a publisher waits for an answer."""
        return self.size > 0

    def tick(self, now: float) -> None:
        """Refuse requests that have waited too long for a connection, an answer, or the log to arrive here."""
        stuck = self._is_stuck(now)
        if self._failure is not None:
            self.refuse(self._failure)
        elif self._is_away(now):
            reason = f"{self.unreachable} for {self._patience:g} s"
            self.refuse(f"{reason}: messages are refused until it does")
        elif self._is_silent(now):
            self.refuse(f"{self.unreachable} for {self.silence:g} s")
        elif stuck:
            self._give_up(f"the upstream hub has sent no log for {self._patience_connected:g} s")

    def _is_away(self, now: float) -> bool:
        """Whether the other hub has been away for too long."""
        return not self._connected and self._lost_at is not None and now - self._lost_at >= self._patience

    def _is_silent(self, now: float) -> bool:
        """Whether the other hub has not answered a request for too long, though it is connected."""
        oldest = next(iter(self._sent), None)
        awaited = self._connected and oldest is not None
        return self._no_answer.seconds(now, oldest, awaited=awaited) >= self.silence

    def _is_stuck(self, now: float) -> bool:
        """Whether answers wait for a log that has not grown for too long."""
        progress, awaited = self._hub.log.head_op, bool(self._settling)
        return self._no_return.seconds(now, progress, awaited=awaited) >= self._patience_connected

    def fail(self, reason: str) -> None:
        """Refuse everything from now on."""
        self._failure = reason
        self.refuse(reason)

    def _fit(self, submitted: Sequence[Submission]) -> Sequence[Submission]:
        """Refuse only the messages that are too long: the upstream hub would refuse the whole request."""
        if not any(self._too_long(each.batch) for each in submitted):
            return submitted
        fit: list[Submission] = []
        for group in tied_groups(submitted):
            if any(self._too_long(each.batch) for each in group):
                what = f"the upstream hub takes messages of {self.longest} bytes at most"
                self._hub.refuse(group, UnavailableError(what), "limit")
            else:
                fit += group
        return fit

    def _too_long(self, batch: Batch) -> bool:
        return (
            self.longest is not None
            # This is cheap: if all payloads together are not too long, none is.
            and batch.run.size > self.longest
            and batch.origin != NOT_A_MESSAGE
            and int(batch.run.lengths.max(initial=0)) > self.longest
        )

    def _pass(self, group: Sequence[Submission]) -> None:
        if len(group) > 1 or cost_of(group[0].batch) <= MOST_BYTES:
            self._put(
                RelayRequest([each.batch for each in group], partial(self._group_answered, group), True)
            )
            return
        # It is too long for one request. Each piece follows the previous one, so that no later one is taken alone.
        pieces = list(cut_up(group[0].batch))
        joined = joined_reply(len(pieces), partial(self._group_answered, group, whole=len(pieces) == 1))
        for piece in pieces:
            self._put(RelayRequest([piece], joined, True))

    def _group_answered(
        self, group: Sequence[Submission], result: Published | HeadraceError, *, whole: bool = True
    ) -> None:
        """Answer the submissions that shared a request; if not ``whole``, the one submission that took several."""
        if isinstance(result, Published) and result.kept:
            for batch, done, _ in group:
                self._hub.received(batch)
                if done is not None:
                    done(batch)
            return
        if isinstance(result, Published) and result.first is None:
            result = UnavailableError("it is in the log, but the upstream hub no longer knows where")
        if isinstance(result, HeadraceError):
            error = result if isinstance(result, StorageError) else UnavailableError(str(result))
            self._hub.refuse(group, error, "upstream")
            return
        last, op = (result.first or 1) - 1, 0
        if whole and result.op is not None:
            # That is the position of the mark, which stands right after the rows.
            op = result.op - sum(len(each.batch) for each in group)
        for batch, done, _ in group:
            first = last if batch.is_entries else last + 1
            numbered = batch.numbered(op, first, self._hub.log.last_time, self._hub.node)
            last, op = numbered.last, numbered.last_op + 1 if op else 0
            self._hub.received(batch)
            if done is not None:
                done(numbered)

    def _put(self, request: RelayRequest) -> None:
        self._waiting.append(request)
        self.size += request.size

    def _after(self, result: Published | HeadraceError, request: RelayRequest) -> None:
        """Reply once the rows and their mark are committed here."""
        if isinstance(result, Published) and result.op is not None and result.op > self._hub.log.head_op:
            # The count keeps requests that wait for the same operation in order.
            self._settled += 1
            heappush(self._settling, (result.op, self._settled, request, result))
            return
        self._release(request.size)
        request.reply(result)

    def _end(self, request: RelayRequest, error: HeadraceError) -> None:
        """Refuse a request and the other pieces of the same publish."""
        pieces = [each for each in self._waiting if each.reply is request.reply]
        for piece in (request, *pieces):
            if piece is not request:
                self._waiting.remove(piece)
            self._release(piece.size)
            piece.reply(error)

    def _take_settling(self) -> list[tuple[RelayRequest, Published]]:
        """Remove and return the requests that were answered and are not committed here yet."""
        taken, self._settling = sorted(self._settling), []
        return [(request, published) for _, _, request, published in taken]

    def _give_up(self, reason: str) -> None:
        """Refuse the requests that the other hub has taken, since their log entries do not arrive here."""
        for request, published in self._take_settling():
            self._release(request.size)
            request.reply(UnavailableError(f"{reason}; {_taken(published)}"))

    def refuse(self, reason: str) -> None:
        """Refuse all requests in the queue, and those that were taken but have not arrived in this hub's log."""
        self._give_up(reason)
        refused = [*self._sent, *self._waiting]
        if not refused:
            return
        if self._connected:
            self._lost_at = None
        # Requests that were sent may be in the log, so their numbers cannot be used again.
        self._numbers.begin_anew()
        self._numbers_of_entries.begin_anew()
        self._sent.clear()
        self._waiting.clear()
        self._under_way = 0
        for request in refused:
            self._release(request.size)
            outcome = UNKNOWN if request.sent else "what is published here is refused"
            request.reply(UnavailableError(f"{reason}; {outcome}"))


def _taken(published: Published) -> str:
    """Describe the place of a request that was taken but has not arrived here."""
    first, last = published.first, published.last
    if first is None or last is None:
        return "this was taken, and is not here yet"
    where = f"message {last}" if first >= last else f"messages {first} to {last}"
    return f"this was taken, as {where}, and is not here yet"
