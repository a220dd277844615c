"""The publish relay: what this hub takes in and another one numbers, on its way there and back.

Everything taken in becomes a :class:`RelayRequest` and waits in one line. The driver sends what is
:meth:`~PublishRelay.due`, a window's worth ahead of the answers, and reports how each was
:meth:`~PublishRelay.answered`. An answer is a place in the sequence. The publisher gets it once that place is committed
here: then this hub's own state has it as well.

When the connection is lost, every unanswered request is sent again over the next one, in the same order and under the
same numbers: the hub that numbers messages knows which of them are there. What doors submit has no such number, so this
hub numbers those requests itself, under a unique name that lives no longer than the process. Requests that are lost
with the process were never acknowledged.

A refused request leaves a gap in those numbers, and the requests under way after it are refused for that. Later ones go
under a new name, from 0 on.

Bounds: publishers wait while more than ``most`` bytes are here. Without a connection they wait ``patience`` seconds;
then everything is refused until there is one again. A connection that comes and goes without an answer is as good as
none: only an answer restarts the wait.

Nothing here has a socket or a clock: ``now`` is an argument, and :attr:`PublishRelay.wake` calls for the driver.
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
from headrace.hub.sequencer import Published, Submission, Told, ToldNewest, tied_groups
from headrace.message import NOT_A_MESSAGE, Batch

MAX_REQUESTS: Final = 32
"""Requests under way: fewer than the marks whose places a hub remembers for one publisher."""

MAX_UNDER_WAY: Final = 8 << 20
"""Bytes under way: fewer than a hub lets one tube have uncommitted."""

_TOGETHER: Final = 512 << 10
"""Submissions share a request, and its mark, up to about this size."""

_MOST: Final = 4 << 20
"""Longer batches are sent in pieces: a link's message has 8 MiB at most."""

_ROW_COST: Final = 64
"""Approximate bytes of a row beside its payload."""


@dataclass(slots=True, eq=False)
class RelayRequest:
    """Rows on their way: a publisher's own, or (``passed``) any others, with a mark after them."""

    rows: Sequence[Batch]
    told: Told
    passed: bool
    publisher: str = ""
    """Owner of the number; a passed request of this hub gets both when it is first sent."""
    number: int = 0
    follows: bool = False
    sent: bool = False
    """Whether it may have been taken, though no answer says so."""
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(map(_size, self.rows))


class RelayBacklog:
    """What waits for another hub: publishers wait while it is too long, and it is refused when it waits too long."""

    def __init__(self, hub: Hub, *, patience: float, most: int, now: float) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Asks the driver to send what is due."""
        self._hub = hub
        self._patience = patience
        self._most = most
        self._size = 0
        self._lost_at: float | None = now
        """When the connection was lost, until the next one is known to work."""

    @property
    def congested(self) -> bool:
        """Whether publishers must wait."""
        return self._size > self._most

    @property
    def size(self) -> int:
        """Bytes that wait or are under way."""
        return self._size

    def lost(self, now: float) -> None:
        """Note that the connection is lost."""
        if self._lost_at is None:
            self._lost_at = now

    def _release(self, size: int) -> None:
        was_congested = self.congested
        self._size -= size
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
        self._make_name = name
        self._name, self._number = name(), 0
        self._unreachable = unreachable
        self._waiting: deque[RelayRequest] = deque()
        self._sent: dict[RelayRequest, None] = {}
        self._under_way = 0
        self._settling: list[tuple[int, int, RelayRequest, Published]] = []
        """Answered, and not committed here yet: by the number of the last row."""
        self._settled = 0
        self._connected = False
        self._failure: str | None = None

    # What the hub asks

    def order(self, submitted: Sequence[Submission]) -> None:
        """Send what doors submitted."""
        submitted = self._fit(submitted)
        if not submitted:
            return
        group: list[Submission] = []
        size = 0
        for submission in submitted:
            more = _size(submission.batch)
            if group and size + more > _TOGETHER and not group[-1].tied:
                self._pass(group)
                group, size = [], 0
            group.append(submission)
            size += more
        self._pass(group)
        self.wake()

    def publish(self, batch: Batch, told: Told, *, follows: bool, behind: Batch | None) -> None:
        """Send rows with a publisher's number: a client's own, or a mark and the batch before it."""
        if behind is not None:

            def marked(result: Published | HeadraceError) -> None:
                # The answer is the place of the rows; the mark comes right after them.
                if isinstance(result, Published) and result.last is not None:
                    result = Published(result.last + 1, result.last + 1, result.repeated)
                told(result)

            self._put(RelayRequest([behind], marked, True, batch.publisher, batch.number or 0, follows))
        else:
            pieces = list(_pieces(batch))
            joined = _joined(len(pieces), told)
            for piece in pieces:
                # Pieces follow one another: a publish may end early, but never has a hole.
                follow = follows or piece is not pieces[0]
                self._put(RelayRequest([piece], joined, False, piece.publisher, piece.number or 0, follow))
        self.wake()

    def commit(self, query: str, batch: int, rows: Sequence[Batch], told: Told) -> None:
        """Have a query's batch appended, all or none, once."""
        # The entry that marks the commit comes right after its rows.
        self.send_commit(query, batch, rows, lambda result: self._after(result, RelayRequest([], told, True)))

    def newest(self, publisher: str, told: ToldNewest) -> None:
        """Find out a publisher's highest number."""
        self.ask_newest(publisher, told)

    send_commit: Callable[[str, int, Sequence[Batch], Told], None]
    ask_newest: Callable[[str, ToldNewest], None]
    """How the driver does these two."""

    def committed(self, head: int) -> None:
        """Answer everything up to ``head``."""
        settled = []
        while self._settling and self._settling[0][0] <= head:
            settled.append(heappop(self._settling))
        for _, _, request, published in settled:
            self._release(request.size)
            request.told(published)

    # What the driver tells

    def connected(self, *, here: bool = False) -> None:
        """Send what is not answered again, then the rest: there is a connection, or this hub numbers itself."""
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
        """Yield what is to be sent now; everything, if this hub numbers messages itself (``here``)."""
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
            request.publisher, request.number = self._name, self._number
            request.follows = self._number > 0
            self._number += 1
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
            if request.publisher == self._name:
                self._name, self._number = self._make_name(), 0
            self._end(request, result)
        else:
            self._after(result, request)
        self.wake()

    def unfit(self, request: RelayRequest, error: HeadraceError) -> None:
        """Refuse a request that was due just now and cannot be sent: its number is free for the next."""
        del self._sent[request]
        self._under_way -= request.size
        if (request.publisher, request.number) == (self._name, self._number - 1):
            self._number -= 1
        self._end(request, error)

    def tick(self, now: float) -> None:
        """Refuse what has waited too long for a connection."""
        if self._failure is not None:
            self.refuse(self._failure)
        elif not self._connected and self._lost_at is not None and now - self._lost_at >= self._patience:
            reason = f"{self._unreachable} for {self._patience:g} s"
            self.refuse(f"{reason}: nothing more is taken until it does")

    def fail(self, reason: str) -> None:
        """Refuse everything from now on."""
        self._failure = reason
        self.refuse(reason)

    # Within

    def _fit(self, submitted: Sequence[Submission]) -> Sequence[Submission]:
        """Refuse messages that are too long, alone: the upstream hub would refuse the whole request."""
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
            # If all together are not too long, none is.
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
        # Too long for one request. Its pieces follow one another, so that no later one is taken alone.
        pieces = list(_pieces(group[0].batch))
        joined = _joined(len(pieces), partial(self._group_answered, group))
        for piece in pieces:
            self._put(RelayRequest([piece], joined, True))

    def _group_answered(self, group: Sequence[Submission], result: Published | HeadraceError) -> None:
        """Answer each of the submissions that shared a request."""
        if isinstance(result, Published) and result.first is None:
            result = UnavailableError("it is in the log, but the upstream hub no longer knows where")
        if isinstance(result, HeadraceError):
            error = result if isinstance(result, StorageError) else UnavailableError(str(result))
            self._hub.refuse(group, error, "upstream")
            return
        first, log = result.first or 0, self._hub.log
        for batch, done, _ in group:
            self._hub.received(batch)
            if done is not None:
                done(batch.numbered(first, log.last_time, self._hub.node))
            first += len(batch)

    def _put(self, request: RelayRequest) -> None:
        self._waiting.append(request)
        self._size += request.size

    def _after(self, result: Published | HeadraceError, request: RelayRequest) -> None:
        """Answer once the rows, and the mark after them, are committed here."""
        if isinstance(result, Published) and result.last is not None:
            last = result.last + request.passed
            if last > self._hub.log.head:
                # The count keeps requests with the same last row (a repeat and the first try) in order.
                self._settled += 1
                heappush(self._settling, (last, self._settled, request, result))
                return
        self._release(request.size)
        request.told(result)

    def _end(self, request: RelayRequest, error: HeadraceError) -> None:
        """Refuse a request, and the other pieces of the same publish."""
        pieces = [each for each in self._waiting if each.told is request.told]
        for piece in (request, *pieces):
            if piece is not request:
                self._waiting.remove(piece)
            self._release(piece.size)
            piece.told(error)

    def refuse(self, reason: str) -> None:
        """Refuse everything that is here now."""
        refused = [*self._sent, *self._waiting]
        if not refused:
            return
        if self._connected:
            self._lost_at = None
        # What was sent may be in the log all the same. It is not sent again, so its numbers are used up.
        self._name, self._number = self._make_name(), 0
        self._sent.clear()
        self._waiting.clear()
        self._under_way = 0
        for request in refused:
            self._release(request.size)
            outcome = (
                "whether this was taken is not known" if request.sent else "what is published here is refused"
            )
            request.told(UnavailableError(f"{reason}; {outcome}"))


def _joined(pieces: int, told: Told) -> Told:
    """Make one answer of several: the first's beginning and the last's end, or the first error."""
    results: list[Published | HeadraceError] = []

    def joined(result: Published | HeadraceError) -> None:
        results.append(result)
        if len(results) < pieces:
            return
        error = next((each for each in results if isinstance(each, HeadraceError)), None)
        if error is not None:
            told(error)
            return
        places = [each for each in results if isinstance(each, Published)]
        told(Published(places[0].first, places[-1].last, sum(each.repeated for each in places)))

    return joined


def _size(batch: Batch) -> int:
    return batch.size + _ROW_COST * len(batch)


def _pieces(batch: Batch) -> Iterator[Batch]:
    if _size(batch) <= _MOST or len(batch) == 1:
        yield batch
        return
    half = len(batch) // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half, len(batch)))
