"""The publish relay: passes what this hub takes in to the hub that numbers it, and brings back the answers.

Everything taken in becomes a :class:`RelayRequest` in one queue. The driver sends what is :meth:`~PublishRelay.due`, a
window's worth ahead of the answers, and reports how each was :meth:`~PublishRelay.answered`: with a place in the
sequence, and the operation up to which this hub must have the log. The publisher gets the place once that operation is
committed here, so that this hub's own state has it as well.

When the connection is lost, every unanswered request is sent again over the next one, in the same order and under the
same numbers, by which the other hub recognises repeats. What doors submit has no such number, so this hub numbers those
requests itself, under a unique name that does not outlive the process; requests lost with the process were never
acknowledged. A refused request leaves a gap in those numbers, so the requests sent after it are refused as well, and
later ones go under a new name, from 0 on. Requests of nothing but entries have a name and numbers of their own: a hub
that is short of room refuses messages and still takes entries, those right behind the messages among them.

Bounds: publishers wait while more than ``most`` bytes are here. Without a connection they wait ``patience`` seconds;
then everything is refused until there is one again. Only an answer restarts that wait, not a mere connection. With one,
requests are refused when the oldest has had no answer for :attr:`~RelayBacklog.silence` seconds, and an answer that
waits for the log here is given up when the log has not grown for ``patience`` seconds. So every publish ends. What
drivers ask for themselves (commits, names of publishers) they give up after the same silence.

Nothing here has a socket or a clock: ``now`` is an argument, and :attr:`PublishRelay.wake` calls the driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Final

from headrace.errors import HeadraceError, StorageError, UnavailableError
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import (
    KEPT,
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
"""Most requests under way: fewer than the marks whose places a hub remembers per publisher."""

MAX_UNDER_WAY: Final = 8 << 20
"""Most bytes under way: fewer than a hub lets one tube have uncommitted."""

_TOGETHER: Final = 512 << 10
"""Submissions share a request, and its mark, up to about this size."""

_MOST: Final = 4 << 20
"""Larger batches are sent in pieces: a message of the link has at most 8 MiB."""

_ROW_COST: Final = 64
"""Approximate bytes of a row beside its payload."""


SILENCES: Final = 3
"""How many times ``patience`` a connected hub may take for an answer: it may have such patience itself."""

LEAST_SECONDS: Final = 1.0
"""A connected hub has at least as much patience: with none, publishers would be refused before an answer can come."""

_SLOWEST: Final = 4 << 20
"""Bytes of a commit that the slowest of hubs takes in a second: it may pass them on to another one itself."""

UNKNOWN: Final = "whether this was taken is not known"


@dataclass(slots=True, eq=False)
class RelayRequest:
    """Rows to relay: a publisher's own, or (``passed``) any messages and entries, with a mark after them."""

    rows: Sequence[Batch]
    reply: WhenPublished
    passed: bool
    publisher: str = ""
    """Owner of the number; a request that this hub numbers gets both when it is first sent."""
    number: int = 0
    follows: bool = False
    claim: Claim = UNCLAIMED
    sent: bool = False
    """Whether it may have been taken, though there was no answer."""
    since: int = 0
    """The newest operation here when it was first sent."""
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(map(_size, self.rows))


class OwnNumbers:
    """The name and the numbers that this hub gives to requests which have none."""

    def __init__(self, make_name: Callable[[], str]) -> None:
        self._make_name = make_name
        self._name, self._next = make_name(), 0

    def give(self, request: RelayRequest) -> None:
        """Number a request that is sent for the first time."""
        request.publisher, request.number = self._name, self._next
        request.follows = self._next > 0
        self._next += 1

    def take_back(self, request: RelayRequest) -> None:
        """Number the next request as this one, if it was the last: it is not sent after all."""
        if (request.publisher, request.number) == (self._name, self._next - 1):
            self._next -= 1

    def leave_gap(self, request: RelayRequest) -> bool:
        """Begin anew after a request that was refused, if it has this name: what follows it would be, too."""
        if request.publisher != self._name:
            return False
        self.begin_anew()
        return True

    def begin_anew(self) -> None:
        """Use another name from now on."""
        self._name, self._next = self._make_name(), 0


class Standstill:
    """How long something that is awaited has made no progress."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._progress: object = None

    def seconds(self, now: float, progress: object, *, awaited: bool) -> float:
        """Return for how long ``progress`` has been the same while something was awaited."""
        if not awaited or progress != self._progress:
            self._since, self._progress = now, progress
        return now - self._since


class RelayBacklog:
    """The queue to another hub: publishers wait while it is too long; what waits in it too long is refused."""

    def __init__(self, hub: Hub, *, patience: float, most: int, now: float) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Asks the driver to send what is due."""
        self._hub = hub
        self._patience = patience
        self._patience_connected = max(patience, LEAST_SECONDS)
        self.silence = silence_of(patience)
        """For how many seconds a connected hub may give no answer to a request."""
        self._most = most
        self.size = 0
        """Bytes that wait or are under way."""
        self._lost_at: float | None = now
        """When the connection was lost; ``None`` once the next one has worked."""

    @property
    def congested(self) -> bool:
        """Whether publishers must wait."""
        return self.size > self._most

    def lost(self, now: float) -> None:
        """Note that the connection is lost."""
        if self._lost_at is None:
            self._lost_at = now

    def _release(self, size: int) -> None:
        was_congested = self.congested
        self.size -= size
        if was_congested and not self._hub.congested:
            self._hub.relieved()


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
        """The longest message that the upstream hub takes, once known."""
        self._numbers, self._numbers_of_entries = OwnNumbers(name), OwnNumbers(name)
        self.unreachable = unreachable
        """What to say when no answer comes, without the time."""
        self._waiting: deque[RelayRequest] = deque()
        self._sent: dict[RelayRequest, None] = {}
        self._under_way = 0
        self._settling: list[tuple[int, int, RelayRequest, Published]] = []
        """Answered, and not committed here yet: by the operation that must be."""
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
            more = sum(_size(each.batch) for each in group)
            entries = all(each.batch.is_entries for each in group)
            # Messages and entries apart: a hub that is short of room refuses the former and still takes the latter.
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
        """Queue rows with a publisher's number: a client's own, or a mark and the batches before it."""
        if preceding:

            def marked(result: Published | HeadraceError) -> None:
                # The answer is the place of the messages; the mark stands after the last of them.
                if isinstance(result, Published):
                    result = result._replace(first=result.last)
                reply(result)

            self._put(
                RelayRequest(preceding, marked, True, batch.publisher, batch.number or 0, follows, claim)
            )
        else:
            pieces = list(_pieces(batch))
            joined = _joined(len(pieces), reply)
            for piece in pieces:
                # Each piece follows the one before: a publish may be cut short, but never has a hole.
                follow = follows or piece is not pieces[0]
                self._put(
                    RelayRequest([piece], joined, False, piece.publisher, piece.number or 0, follow, claim)
                )
        self.wake()

    def commit(
        self, query: str, batch: int, rows: Sequence[Batch], reply: WhenPublished, terms: Commit
    ) -> None:
        """Append a query's batch once, all of it or none."""
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
        """Resend unanswered requests: there is a connection, or this hub numbers messages itself (``here``)."""
        self._connected = True
        if here:
            self._lost_at = None  # Publishers here are answered without a connection.
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
        """Yield the requests to send now; all, if this hub numbers messages itself (``here``)."""
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
        """Take the answer of the hub that numbers messages."""
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
        """Refuse a request that was just due and cannot be sent; its number goes to the next."""
        del self._sent[request]
        self._under_way -= request.size
        for numbers in (self._numbers, self._numbers_of_entries):
            numbers.take_back(request)
        self._end(request, error)

    @property
    def unfinished(self) -> bool:
        """Whether somebody waits for an answer."""
        return self.size > 0

    def tick(self, now: float) -> None:
        """Refuse what has waited too long for a connection, for an answer, or for the log to come back."""
        stuck = self._is_stuck(now)
        if self._failure is not None:
            self.refuse(self._failure)
        elif self._is_away(now):
            reason = f"{self.unreachable} for {self._patience:g} s"
            self.refuse(f"{reason}: nothing more is taken until it does")
        elif self._is_silent(now):
            self.refuse(f"{self.unreachable} for {self.silence:g} s")
        elif stuck:
            self._give_up(f"nothing has come back for {self._patience_connected:g} s")

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
            # Cheap: if the total is not too long, no message is.
            and batch.run.size > self.longest
            and batch.origin != NOT_A_MESSAGE
            and int(batch.run.lengths.max(initial=0)) > self.longest
        )

    def _pass(self, group: Sequence[Submission]) -> None:
        if len(group) > 1 or _size(group[0].batch) <= _MOST:
            self._put(
                RelayRequest([each.batch for each in group], partial(self._group_answered, group), True)
            )
            return
        # Too long for one request. Each piece follows the one before, so that no later one is taken alone.
        pieces = list(_pieces(group[0].batch))
        joined = _joined(len(pieces), partial(self._group_answered, group, whole=len(pieces) == 1))
        for piece in pieces:
            self._put(RelayRequest([piece], joined, True))

    def _group_answered(
        self, group: Sequence[Submission], result: Published | HeadraceError, *, whole: bool = True
    ) -> None:
        """Answer each of the submissions that shared a request, or, unless ``whole``, the one that took several."""
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
            # The mark, right after the rows, is at that position.
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
        """Reply once the rows, and the mark after them, are committed here."""
        if isinstance(result, Published) and result.op is not None and result.op > self._hub.log.head_op:
            # The count keeps requests that wait for the same operation in order.
            self._settled += 1
            heappush(self._settling, (result.op, self._settled, request, result))
            return
        self._release(request.size)
        request.reply(result)

    def _end(self, request: RelayRequest, error: HeadraceError) -> None:
        """Refuse a request, and the other pieces of the same publish."""
        pieces = [each for each in self._waiting if each.reply is request.reply]
        for piece in (request, *pieces):
            if piece is not request:
                self._waiting.remove(piece)
            self._release(piece.size)
            piece.reply(error)

    def _take_settling(self) -> list[tuple[RelayRequest, Published]]:
        """Take out what was answered and has not come back."""
        taken, self._settling = sorted(self._settling), []
        return [(request, published) for _, _, request, published in taken]

    def _give_up(self, reason: str) -> None:
        """Answer those who wait for what was taken to come back: nobody knows whether it will."""
        for request, published in self._take_settling():
            self._release(request.size)
            request.reply(UnavailableError(f"{reason}; {_taken(published)}"))

    def refuse(self, reason: str) -> None:
        """Refuse all requests in the queue, and give up what was taken and has not come back."""
        self._give_up(reason)
        refused = [*self._sent, *self._waiting]
        if not refused:
            return
        if self._connected:
            self._lost_at = None
        # Requests that were sent may be in the log all the same, so their numbers are used up.
        self._numbers.begin_anew()
        self._numbers_of_entries.begin_anew()
        self._sent.clear()
        self._waiting.clear()
        self._under_way = 0
        for request in refused:
            self._release(request.size)
            outcome = UNKNOWN if request.sent else "what is published here is refused"
            request.reply(UnavailableError(f"{reason}; {outcome}"))


def silence_of(patience: float) -> float:
    """Return for how many seconds a connected hub may give no answer to a request.

    >>> silence_of(10.0), silence_of(0.0)
    (30.0, 3.0)
    """
    return SILENCES * max(patience, LEAST_SECONDS)


def silence_after(rows: Sequence[Batch], patience: float) -> float:
    """Return for how many seconds it may give no answer to a commit of these rows."""
    return silence_of(patience) + sum(batch.size for batch in rows) / _SLOWEST


def _joined(pieces: int, reply: WhenPublished) -> WhenPublished:
    """Make one answer of several: from the first's beginning to the last's end, or the first error."""
    results: list[Published | HeadraceError] = []

    def joined(result: Published | HeadraceError) -> None:
        results.append(result)
        if len(results) < pieces:
            return
        error = next((each for each in results if isinstance(each, HeadraceError)), None)
        if error is not None:
            reply(error)
            return
        places = [each for each in results if isinstance(each, Published)]
        repeated = sum(each.repeated for each in places)
        if any(each.kept for each in places):
            reply(KEPT._replace(repeated=repeated))
            return
        ops = [each.op for each in places if each.op is not None]
        reply(Published(places[0].first, places[-1].last, repeated, max(ops, default=None)))

    return joined


def _taken(published: Published) -> str:
    """Say where something is in the sequence that has not come back."""
    first, last = published.first, published.last
    if first is None or last is None:
        return "this was taken, and is not here yet"
    where = f"message {last}" if first >= last else f"messages {first} to {last}"
    return f"this was taken, as {where}, and is not here yet"


def _size(batch: Batch) -> int:
    return batch.size + _ROW_COST * len(batch)


def _pieces(batch: Batch) -> Iterator[Batch]:
    if _size(batch) <= _MOST or len(batch) == 1:
        yield batch
        return
    half = len(batch) // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half, len(batch)))
