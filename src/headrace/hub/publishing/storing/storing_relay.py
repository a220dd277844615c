"""Store and forward: a relay that keeps what it takes in while the upstream hub is away.

A frontend's relay refuses publishers once its upstream hub has been away for too long. This one begins to **store**
instead: the requests in its queue, in order, and all later ones go to the outbox
(:mod:`~headrace.hub.publishing.storing.outbox`), and publishers are told that they are kept. Once the upstream hub is
back, the outbox is sent up (:mod:`~headrace.hub.publishing.storing.forwarding`), and new requests are kept after it.
When the upstream hub has all of it, the relay passes requests on directly again.

Messages are kept, and new services together with the messages that need them. Other changes of the hub's state
(consumers, holds, subscriptions, streams), commits and openings of names depend on the sequence: they are refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from headrace.errors import HeadraceError, RefusedError, UnavailableError
from headrace.hub.publishing.relaying.publishes import UNKNOWN
from headrace.hub.publishing.relaying.requests import RelayRequest
from headrace.hub.publishing.storing.forwarding import ForwardingRelay
from headrace.hub.publishing.storing.keepable import Keepable
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

MAX_GAPS: Final = 10_000
"""Most publishers for which it is remembered that a request was refused here."""


class StoringRelay(ForwardingRelay):
    """A relay with an outbox. Unless ``enabled``, it only sends up what is in the outbox, and keeps nothing new."""

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
        super().__init__(hub, outbox, name=name, patience=patience, most=most, now=now)
        self._enabled = enabled
        self._keepable = Keepable(services)
        self._most_seconds = most_seconds
        self._gaps: OrderedDict[str, int] = OrderedDict()
        """For each publisher with a request that was refused here, that request's number: later ones are refused."""
        outbox.hub.relieved = self._relieved
        self._kept = hub.counters.counter("outbox_kept")

    # Called by the hub

    @property
    def congested(self) -> bool:
        """Whether publishers must wait."""
        return super().congested or self.outbox.hub.crowded

    def order(self, submitted: Sequence[Submission]) -> None:
        """Queue submissions of doors; while storing, refuse those that cannot be kept."""
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
        """Queue rows with a publisher's number, or keep them while storing."""
        if self.storing and not self._keepable.rows(preceding):
            reply(self._not_kept())
            return
        super().publish(batch, reply, follows=follows, preceding=preceding, claim=claim)

    def open(self, publisher: str, opening: Opening, reply: WhenOpened) -> None:
        """Ask for a name to be opened, unless messages published under it are still here."""
        outbox = self.outbox
        if self.storing and outbox.numbers.has_after(publisher, outbox.state.settled.seq):
            what = f"messages of publisher {publisher!r} are kept here until the upstream hub has them"
            reply(UnavailableError(f"{what}: open it after that"))
            return

        def opened(result: Opened | HeadraceError) -> None:
            if isinstance(result, HeadraceError):
                reply(result)
                return
            # Answer once it is committed here: while storing, this hub judges who holds a name.
            answer = RelayRequest([], lambda told: reply(_instead(result, told)), True, sent=True)
            self._after(Published(None, None, op=result.epoch), answer)

        super().open(publisher, opening, opened)

    # Called by the driver

    @property
    def unfinished(self) -> bool:
        """Whether a publisher waits for an answer; nobody waits for kept requests."""
        return self.outbox.writing > 0 if self.storing else super().unfinished

    def tick(self, now: float) -> None:
        """Begin to store if the upstream hub has been away for too long; send again what it refused for now."""
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
        """Keep the requests in the queue instead of refusing them, if storing is enabled."""
        if self._failure is None and self._enabled and not self.storing:
            self._begin_storing()
            return
        self._give_back()
        super().refuse(reason)

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
                # The upstream hub may be back, and this request was the last one it waited for.
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
        """Refuse a request that the outbox does not take, and all requests that follow it."""
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
            "the upstream hub is away: only messages are kept until it is back, and this is not one. Try again later"
        )

    @property
    def is_overdue(self) -> bool:
        """Whether the oldest request has waited for so long that no more requests are kept."""
        most, oldest = self._most_seconds, self.oldest
        if most is None or oldest is None or self.outbox.empty:
            return False
        return self.time_of_day - oldest > most * 1_000_000

    def _overdue(self) -> str:
        return f"the oldest message kept here has waited for more than upstream.store_seconds = {self._most_seconds:g}"

    def _stop_storing(self) -> None:
        super()._stop_storing()
        self._gaps.clear()

    def _relieved(self) -> None:
        if not self._hub.congested:
            self._hub.relieved()


def _instead(opened: Opened, told: Published | HeadraceError) -> Opened | HeadraceError:
    """Return what was opened, unless it has not come back."""
    return told if isinstance(told, HeadraceError) else opened
