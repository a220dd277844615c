"""Store and forward: a relay that keeps what it takes in while the upstream hub is away.

A frontend's relay refuses publishers once its upstream hub has been away for too long. This one begins to **store**
instead: what waits in its queue, in order, and everything that comes after goes to the outbox
(:mod:`~headrace.hub.publishing.storing.outbox`), and publishers are told that it is kept. Once the upstream hub is
back, the outbox is sent up by the relay's own queue, from the oldest on, and what comes in meanwhile is kept after it.
When the upstream hub has all of it, the relay passes things on directly again.

A request keeps its name and number in the outbox, so one that the upstream hub took without an answer is recognised
there. Its answer settles it, which is noted; no more is sent than the upstream hub would recognise if the notes were
lost. Small requests go up together (:mod:`~headrace.hub.publishing.storing.kept_requests`).

After a refusal for now (no room, no primary) all unsettled requests are sent again. A refusal for good **sets the
request aside** (:attr:`StoringRelay.set_aside`), and what was under way after it is sent again: marks that follow a
refused one were refused with it, and get a new name.

Kept are messages, and new services together with the messages that need them. Other changes of the hub's state
(consumers, holds, subscriptions, streams), commits and openings of names depend on the sequence: they are refused.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from headrace.errors import HeadraceError, LimitError, MalformedError, RefusedError, UnavailableError
from headrace.hub.publishing.publish_relay import UNKNOWN, PublishRelay, RelayRequest
from headrace.hub.publishing.storing.keepable import Keepable
from headrace.hub.publishing.storing.kept_requests import Groups, KeptReader, KeptRequest
from headrace.hub.publishing.storing.outbox import Outbox
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import (
    UNCLAIMED,
    Claim,
    Opened,
    Opening,
    Published,
    Submission,
    WhenOpened,
    WhenPublished,
)
from headrace.message import Batch

LOAD_BYTES: Final = 4 << 20
"""Bytes of the outbox that are in memory on their way up."""

AGAIN_SECONDS: Final = 1.0
"""Seconds until requests are sent again that were refused for now."""

MAX_UNNOTED: Final = 64
"""Requests that went up and are not safely noted, from which on no more are sent: with those under way, fewer than the
upstream hub recognises of one publisher."""

MAX_GAPS: Final = 10_000
"""Publishers of which it is known that a request was refused here."""

_FOR_GOOD: Final = frozenset({"conflict", "fenced", "unknown", "malformed", "limit", "forbidden"})
"""Codes of refusals that would be the same again."""


class StoringRelay(PublishRelay):
    """A relay with an outbox. ``enabled``: whether it begins to store; what is in the outbox goes up in any case."""

    def __init__(
        self,
        hub: Hub,
        outbox: Outbox,
        *,
        name: Callable[[], str],
        patience: float,
        most: int,
        now: float,
        enabled: bool = True,
        services: str = "service",
        most_seconds: float | None = None,
    ) -> None:
        super().__init__(hub, name=name, patience=patience, most=most, now=now)
        self.outbox = outbox
        self.storing = not outbox.empty
        """Whether what comes in is kept."""
        self.set_aside: Callable[[KeptRequest, HeadraceError, Callable[[], None]], None]
        """Keeps a request that was refused for good, and calls back once it has; set by the driver."""
        self.load: Callable[[], None] = lambda: None
        """Asks the driver to read from the outbox."""
        self.refused_for_now: str | None = None
        """Why the upstream hub does not take what is kept, if it refuses to for now."""
        self.time_of_day = 0
        """In µs since 1970, as of the last tick; set by the driver."""
        self.oldest: int | None = outbox.oldest()
        """When the oldest request was kept, in µs since 1970, about."""
        self._enabled = enabled
        self._keepable = Keepable(services)
        self._most_seconds = most_seconds
        self._make_name = name
        self._groups = Groups(name)
        self._loaded: dict[RelayRequest, KeptRequest] = {}
        """Requests of the outbox that were put in the queue."""
        self._loaded_bytes = 0
        self._parked: deque[KeptRequest] = deque()
        """Read from the outbox and not in the queue yet."""
        self._ends: dict[str, int] = {}
        """By publisher with requests in the queue, the number after the last of them."""
        self._order: deque[KeptRequest] = deque()
        """Read from the outbox and not settled, in order."""
        self._done: set[int] = set()
        """Operations of the outbox at which requests begin that are upstream, or set aside, and not settled."""
        self._reader = self._read_again()
        self._perhaps_sent = outbox.hub.log.tail_op
        """Requests up to this operation may have been sent, by this process or by one before it."""
        self._again_at: float | None = None
        self._setting_aside = False
        self._now = now
        self._gaps: OrderedDict[str, int] = OrderedDict()
        """By publisher, the number of a request that was refused here: what follows it is refused, too."""
        outbox.hub.relieved = self._relieved
        outbox.noted = self._noted
        outbox.publishing.appending = self._groups.end_before
        counters = hub.counters
        self._kept = counters.counter("outbox_kept")
        self._sent_up = counters.counter("outbox_sent")
        self._refused_above = counters.counter("outbox_aside")

    # Called by the hub

    @property
    def congested(self) -> bool:
        """Whether publishers must wait."""
        return super().congested or self.outbox.hub.crowded

    def order(self, submitted: Sequence[Submission]) -> None:
        """Queue submissions of doors; while storing, those that can be kept."""
        if self.storing and self._failure is None:
            submitted, unfit = self._keepable.groups(submitted)
            for group in unfit:
                self._hub.refuse(group, self._not_kept(), "upstream")
        super().order(submitted)

    def publish(
        self,
        batch: Batch,
        reply: WhenPublished,
        *,
        follows: bool,
        preceding: Sequence[Batch],
        claim: Claim = UNCLAIMED,
    ) -> None:
        """Queue, or keep, rows with a publisher's number."""
        if self.storing and not self._keepable.rows(preceding):
            reply(self._not_kept())
            return
        super().publish(batch, reply, follows=follows, preceding=preceding, claim=claim)

    def open(self, publisher: str, opening: Opening, reply: WhenOpened) -> None:
        """Ask for a name to be opened, unless messages that were published under it are still here."""
        outbox = self.outbox
        if self.storing and outbox.numbers.has_after(publisher, outbox.state.settled.seq):
            what = f"messages of publisher {publisher!r} are kept here until the upstream hub has them"
            reply(UnavailableError(f"{what}: open it after that"))
            return

        def opened(result: Opened | HeadraceError) -> None:
            if isinstance(result, HeadraceError):
                reply(result)
                return
            # Once it is committed here: while storing, this hub judges who holds a name.
            answer = RelayRequest([], lambda told: reply(_instead(result, told)), True, sent=True)
            self._after(Published(None, None, op=result.epoch), answer)

        super().open(publisher, opening, opened)

    # Called by the driver

    @property
    def unfinished(self) -> bool:
        """Whether somebody waits for an answer; nobody does for what is kept."""
        return self.outbox.writing > 0 if self.storing else super().unfinished

    def connected(self, *, here: bool = False) -> None:
        """Resend what is unanswered, and go on with the outbox."""
        self._again_at = None
        super().connected(here=here)
        self._advance()
        self.load()

    def tick(self, now: float) -> None:
        """Begin to store if the upstream hub has been away for too long, or try again what it refused for now."""
        self._now = now
        self.outbox.note_again()
        if not self.storing or self._failure is not None:
            super().tick(now)
        elif self._is_away(now) or self._is_stuck(now):
            self._keep_all([request for request, _ in self._take_settling()])
        elif self._again_at is not None and now >= self._again_at:
            self._again_at = None
            self.load()

    def refuse(self, reason: str) -> None:
        """Keep the requests in the queue instead of refusing them, if that is wanted."""
        if self._failure is None and self._enabled and not self.storing:
            self._begin_storing()
            return
        self._give_back()
        super().refuse(reason)

    def due(self, *, here: bool = False) -> Iterator[RelayRequest]:
        """Yield the requests to send now: none while too many are not noted to be upstream.

        After a power cut they are all sent again, and the upstream hub recognises a publisher's latest only.
        """
        if self.storing and self.outbox.unnoted >= MAX_UNNOTED:
            self.outbox.hurry()
            return iter(())
        return super().due(here=here)

    @property
    def due_from(self) -> int | None:
        """The operation of the outbox to read from, if more of it is to be sent now."""
        if not self._takes_more or self._loaded_bytes >= LOAD_BYTES or self._parked:
            return None
        # What is settled may have been removed.
        op = max(self._reader.op, self.outbox.state.settled.op)
        return op if op <= self.outbox.hub.log.head_op else None

    @property
    def _takes_more(self) -> bool:
        """Whether what is read from the outbox can be put in the queue."""
        return (
            self.storing
            and self._connected
            and self._failure is None
            and self._again_at is None
            and not self._setting_aside
        )

    def loaded(self, first: int, batches: Sequence[Batch]) -> None:
        """Send what the driver has read from operation ``first`` on."""
        if first != self.due_from:
            return
        self._parked += self._reader.take(batches)
        self._send_rest()
        self._send_parked()

    def _send_rest(self) -> None:
        """Close the last group once all of the outbox is read, and send it."""
        if self._takes_more and self._reader.op > self.outbox.hub.log.head_op:
            self._groups.close()
            if not self.outbox.writing:
                # Otherwise one that belongs to it may be on its way to the disk.
                self._parked += self._reader.rest()

    def answered(self, request: RelayRequest, result: Published | HeadraceError) -> None:
        """Take the upstream hub's answer."""
        if isinstance(result, HeadraceError) and request in self._loaded and request in self._sent:
            self._lost_at = None
            self._refuse_kept(self._loaded[request], result)
            return
        super().answered(request, result)

    def unfit(self, request: RelayRequest, error: HeadraceError) -> None:
        """Refuse a request that was just due and cannot be sent."""
        if request in self._loaded:
            self._refuse_kept(self._loaded[request], error)
        else:
            super().unfit(request, error)

    # Keeping

    def _put(self, request: RelayRequest) -> None:
        if self.storing and self._failure is None:
            self._keep(request)
        else:
            super()._put(request)

    def _begin_storing(self) -> None:
        self.storing = True
        answered = [request for request, _ in self._take_settling()]
        waiting = [*answered, *self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        self._under_way = 0
        self._numbers.begin_anew()
        self._numbers_of_entries.begin_anew()
        self._keep_all(waiting)

    def _take_settling(self) -> list[tuple[RelayRequest, Published]]:
        """Take out what was answered and has not come back, except for what is in the outbox."""
        loaded = sorted(each for each in self._settling if each[2] in self._loaded)
        self._settling = [each for each in self._settling if each[2] not in self._loaded]
        taken = super()._take_settling()
        self._settling = loaded
        return taken

    def _keep_all(self, requests: Sequence[RelayRequest]) -> None:
        """Keep requests that were in the queue, or refuse those that cannot be kept."""
        for request in requests:
            self._release(request.size)
            if request.rows and self._keepable.rows(request.rows):
                self._keep(request)
            else:
                self._refuse_here(request, self._not_kept())

    def _keep(self, request: RelayRequest) -> None:
        if self._hub.shortage is not None:
            self._refuse_here(request, self._hub.shortage)
            return
        if self.is_overdue:
            self._refuse_here(request, UnavailableError(self._overdue()))
            return
        gap = self._gaps.get(request.publisher)
        if gap is not None and request.follows and request.number > gap:
            reason = (
                f"number {request.number} of publisher {request.publisher!r} follows one that was not taken"
            )
            request.reply(RefusedError("conflict", reason))
            return
        group = None if request.publisher else self._groups.give(request)
        messages = sum(len(batch) for batch in request.rows if not batch.is_entries)

        def told(result: Published | HeadraceError) -> None:
            if isinstance(result, HeadraceError):
                self._refuse_here(request, result)
                self._send_rest()
                # The upstream hub may be back, with nothing left to wait for here.
                self._send_parked()
                return
            self._gaps.pop(request.publisher, None)
            if not (request.passed and result.repeated):
                self._kept.value += messages - result.repeated
            request.reply(result)
            self.load()

        if self.outbox.empty:
            self.oldest = self.time_of_day
        self.outbox.keep(
            request.rows,
            request.publisher,
            request.number,
            told,
            passed=request.passed,
            size=request.size,
            follows=request.follows,
            claim=request.claim,
            since=request.since if request.sent else self._hub.log.head_op,
            group=group,
        )

    def _refuse_here(self, request: RelayRequest, error: HeadraceError) -> None:
        """Refuse what the outbox does not take, and whatever is to follow it."""
        own = self._groups.leave_gap(request)
        newest = self.outbox.numbers.newest(request.publisher)
        if request.publisher and not own and (newest is None or request.number > newest):
            self._gaps[request.publisher] = request.number
            if len(self._gaps) > MAX_GAPS:
                self._gaps.popitem(last=False)
        self._hub.counters.refuse("upstream", "outbox", request.publisher, error)
        request.reply(UnavailableError(f"{error}; {UNKNOWN}") if request.sent else error)

    def _not_kept(self) -> UnavailableError:
        return UnavailableError(
            "the upstream hub is away: messages are kept here until it is back, and this is none. Try again later"
        )

    @property
    def is_overdue(self) -> bool:
        """Whether the oldest request has waited for so long that no more are kept."""
        most, oldest = self._most_seconds, self.oldest
        if most is None or oldest is None or self.outbox.empty:
            return False
        return self.time_of_day - oldest > most * 1_000_000

    def _overdue(self) -> str:
        return f"the oldest message kept here has waited for more than upstream.store_seconds = {self._most_seconds:g}"

    # Forwarding

    def _send_parked(self) -> None:
        """Put what was read in the queue, in order, and stop at a request that must wait for the one before."""
        while self._parked:
            kept = self._parked[0]
            end = self._ends.get(kept.publisher)
            if not kept.terms.passed and end not in (None, kept.number):
                break
            self._order.append(self._parked.popleft())
            self.oldest = self._order[0].time
            if kept.op not in self._done:
                self._queue(kept, follows=kept.terms.follows or end is not None)
        self._advance()
        self.wake()

    def _queue(self, kept: KeptRequest, *, follows: bool) -> None:
        # If the one before is refused, those after it must be, too: numbers never go back.
        terms = kept.terms
        claim = Claim(terms.epoch, terms.client, terms.retry)
        request = RelayRequest(kept.rows, _ignore, terms.passed, kept.publisher, kept.number, follows, claim)
        request.reply = partial(self._answered_above, request, kept)
        request.sent, request.since = kept.op <= self._perhaps_sent, terms.since
        self._perhaps_sent = max(self._perhaps_sent, kept.op)
        self._loaded[request] = kept
        self._loaded_bytes += request.size
        if not terms.passed:
            self._ends[kept.publisher] = kept.end
        super()._put(request)

    def _answered_above(
        self, request: RelayRequest, kept: KeptRequest, result: Published | HeadraceError
    ) -> None:
        """Take a request's outcome: errors come from a refused queue only, and leave it where it is."""
        if self._loaded.pop(request, None) is not None:
            self._loaded_bytes -= request.size
            if not kept.terms.passed and self._ends.get(kept.publisher) == kept.end:
                del self._ends[kept.publisher]
        if isinstance(result, HeadraceError):
            return
        self.refused_for_now = None
        if kept.op >= self.outbox.state.settled.op and kept.op not in self._done:
            self._sent_up.value += kept.terms.messages
            self._done.update(kept.ops)
            self._advance()
        self._send_parked()
        self.load()

    def _advance(self) -> None:
        """Note how far the upstream hub has everything; stop storing once it has it all."""
        settled: list[KeptRequest] = []
        while self._order and self._order[0].op in self._done:
            settled.append(self._order.popleft())
            self._done.difference_update(settled[-1].ops)
        if settled:
            terms = [each.terms for each in settled]
            self.outbox.settle(
                settled[-1],
                sum(len(each.ops) for each in settled),
                sum(each.messages for each in terms),
                sum(each.size for each in terms),
            )
            self.oldest = self._order[0].time if self._order else self.oldest
        if self.storing and self.outbox.empty and not self.outbox.unnoted and self._connected:
            self.storing, self.oldest = False, None
            self._gaps.clear()

    def _noted(self) -> None:
        self._advance()
        self.wake()

    def _refuse_kept(self, kept: KeptRequest, error: HeadraceError) -> None:
        self._give_back()
        code = error.code if isinstance(error, RefusedError) else ""
        if kept.terms.passed and code == "conflict":
            # It has none of the marks from this one on: it has forgotten the name, or refused one before.
            self._setting_aside = True
            self.outbox.rename(kept, kept.number, self._make_name(), self._went_on)
        elif _is_for_good(kept, error) and len(kept.ops) > 1:
            self._take_apart(kept)
        elif _is_for_good(kept, error):
            self._setting_aside = True
            self.set_aside(kept, error, partial(self._is_aside, kept))
        else:
            self.refused_for_now = str(error)
            self._again_at = self._now + AGAIN_SECONDS

    def _take_apart(self, kept: KeptRequest) -> None:
        """Send joined requests again one by one: only some of them are refused."""
        if kept.terms.passed:
            self._setting_aside = True
            self.outbox.take_apart(kept, self._make_name(), self._went_on)
        else:
            self._reader = self._read_again(apart=kept.last_op)
            self.load()

    def _is_aside(self, kept: KeptRequest) -> None:
        self._refused_above.value += kept.terms.messages
        self._done.update(kept.ops)
        self.outbox.refuse(kept, self._make_name(), self._went_on)

    def _went_on(self, noted: bool) -> None:
        self._setting_aside = False
        if noted:
            self.load()
        else:
            # The disk has refused the note: what was refused above is sent, and refused, once more.
            self._again_at = self._now + AGAIN_SECONDS

    def _give_back(self) -> None:
        """Take all kept requests out of the queue: they are read again from the oldest unsettled one on."""
        settling = [request for _, _, request, _ in self._settling]
        back = [each for each in (*self._sent, *self._waiting, *settling) if each in self._loaded]
        self._settling = sorted(each for each in self._settling if each[2] not in self._loaded)
        self._waiting = deque(each for each in self._waiting if each not in self._loaded)
        for request in back:
            if request in self._sent:
                del self._sent[request]
                self._under_way -= request.size
            self._release(request.size)
        self._loaded.clear()
        self._loaded_bytes = 0
        self._order.clear()
        self._parked.clear()
        self._ends.clear()
        self._reader = self._read_again()

    def _read_again(self, apart: int = 0) -> KeptReader:
        state = self.outbox.state
        return KeptReader(state.settled.op, state.renamed, self._done, apart)

    def _relieved(self) -> None:
        if not self._hub.congested:
            self._hub.relieved()


def _ignore(_: Published | HeadraceError) -> None:
    """Stand in for the reply that needs the request itself."""


def _instead(opened: Opened, told: Published | HeadraceError) -> Opened | HeadraceError:
    """Return what was opened, unless it has not come back."""
    return told if isinstance(told, HeadraceError) else opened


def _is_for_good(kept: KeptRequest, error: HeadraceError) -> bool:
    """Whether the upstream hub would refuse a request again, whenever it is sent."""
    match error:
        case LimitError() | MalformedError():
            return True
        case RefusedError(code=code):
            # A frontend that may not pass anything on is told so, and keeps what it has.
            return code in _FOR_GOOD and not (code == "forbidden" and kept.terms.passed)
        case _:
            return False
