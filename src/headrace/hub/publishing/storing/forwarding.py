"""Forwarding: the requests in the outbox go up to the upstream hub through the relay's own queue, oldest first.

A request keeps its name and number in the outbox, so the upstream hub recognises one that it took before without an
answer. Its answer settles it, which is noted on the disk; no more is sent than the upstream hub would recognise if the
notes were lost. Small requests go up together (:mod:`~headrace.hub.publishing.storing.kept_requests`).

After a refusal for now (no room, no primary) all unsettled requests are sent again. A refusal for good **sets the
request aside** (:attr:`ForwardingRelay.set_aside`), and everything sent after it is sent again: the upstream hub also
refused the marks that follow a refused one, so those get a new name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from headrace.errors import HeadraceError, LimitError, MalformedError, RefusedError
from headrace.hub.publishing.relaying.publishes import PublishRelay
from headrace.hub.publishing.relaying.requests import RelayRequest
from headrace.hub.publishing.storing.kept_requests import Groups, KeptReader, KeptRequest
from headrace.hub.publishing.storing.outbox import Outbox
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Claim, Published
from headrace.message import Batch

LOAD_BYTES: Final = 4 << 20
"""Most bytes of the outbox that are in memory on their way up."""

AGAIN_SECONDS: Final = 1.0
"""Seconds until requests that were refused for now are sent again."""

MAX_UNNOTED: Final = 64
"""Number of requests upstream but not safely noted, at which no more are sent. Together with the unanswered ones these
must be fewer than the upstream hub recognises of one publisher."""

_FOR_GOOD: Final = frozenset({"conflict", "fenced", "unknown", "malformed", "limit", "forbidden"})
"""Codes of refusals that would be repeated for the same request."""


class ForwardingRelay(PublishRelay):
    """A relay whose queue begins with what is in the outbox."""

    def __init__(
        self, hub: Hub, outbox: Outbox, *, name: Callable[[], str], patience: float, most: int, now: float
    ) -> None:
        super().__init__(hub, name=name, patience=patience, most=most, now=now)
        self.outbox = outbox
        self.storing = not outbox.empty
        """Whether new requests go to the outbox."""
        self.set_aside: Callable[[KeptRequest, HeadraceError, Callable[[], None]], None]
        """Keeps a request that was refused for good, and calls back once that is done; set by the driver."""
        self.load: Callable[[], None] = lambda: None
        """Asks the driver to read from the outbox."""
        self.refused_for_now: str | None = None
        """Why the upstream hub does not take what is kept for now, if it does not."""
        self.time_of_day = 0
        """Time of the last tick, in µs since 1970; set by the driver."""
        self.oldest: int | None = outbox.oldest()
        """Approximate time when the oldest request was kept, in µs since 1970."""
        self._make_name = name
        self._groups = Groups(name)
        self._loaded: dict[RelayRequest, KeptRequest] = {}
        """Requests of the outbox that were put in the queue."""
        self._loaded_bytes = 0
        self._parked: deque[KeptRequest] = deque()
        """Requests that were read from the outbox and are not in the queue yet."""
        self._ends: dict[str, int] = {}
        """For each publisher with requests in the queue, the number after the last of them."""
        self._order: deque[KeptRequest] = deque()
        """Requests that were read from the outbox and are not settled, in order."""
        self._done: set[int] = set()
        """First operations, in the outbox, of requests that are upstream or set aside, and not settled."""
        self._reader = self._read_again()
        self._perhaps_sent = outbox.hub.log.tail_op
        """Operation up to which requests may have been sent, by this process or by an earlier one."""
        self._again_at: float | None = None
        self._setting_aside = False
        self._now = now
        outbox.noted = self._noted
        outbox.publishing.appending = self._groups.end_before
        self._sent_up = hub.counters.counter("outbox_sent")
        self._refused_above = hub.counters.counter("outbox_aside")

    def connected(self, *, here: bool = False) -> None:
        """Resend unanswered requests, and continue with the outbox."""
        self._again_at = None
        super().connected(here=here)
        self._advance()
        self.load()

    def due(self, *, here: bool = False) -> Iterator[RelayRequest]:
        """Yield the requests to send now: none while too many are upstream but not safely noted.

        After a power cut all of those are sent again, and the upstream hub recognises only a publisher's latest ones.
        """
        if self.storing and self.outbox.unnoted >= MAX_UNNOTED:
            self.outbox.hurry()
            return iter(())
        return super().due(here=here)

    @property
    def due_from(self) -> int | None:
        """The operation of the outbox to read from, if more of it can be sent now."""
        if not self._takes_more or self._loaded_bytes >= LOAD_BYTES or self._parked:
            return None
        # What is settled may have been removed.
        op = max(self._reader.op, self.outbox.state.settled.op)
        return op if op <= self.outbox.hub.log.head_op else None

    @property
    def _takes_more(self) -> bool:
        """Whether requests from the outbox can be put in the queue."""
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
                # Otherwise another member of the group may be on its way to the disk.
                self._parked += self._reader.rest()

    def answered(self, request: RelayRequest, result: Published | HeadraceError) -> None:
        """Handle the upstream hub's answer."""
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

    def _take_settling(self) -> list[tuple[RelayRequest, Published]]:
        """Remove and return the answered requests that are not committed here, except those from the outbox."""
        loaded = sorted(each for each in self._settling if each[2] in self._loaded)
        self._settling = [each for each in self._settling if each[2] not in self._loaded]
        taken = super()._take_settling()
        self._settling = loaded
        return taken

    def _send_parked(self) -> None:
        """Put requests from the outbox in the queue, in order; stop at one that must wait for the previous one."""
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
        # If the previous request is refused, later ones must be refused, too: numbers never go back.
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
        """Handle a request's outcome; an error means that the whole queue was refused, and leaves it in the outbox."""
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
        """Note up to where the upstream hub has everything; stop storing once it has all of it."""
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
            self._stop_storing()

    def _stop_storing(self) -> None:
        self.storing, self.oldest = False, None

    def _noted(self) -> None:
        self._advance()
        self.wake()

    def _refuse_kept(self, kept: KeptRequest, error: HeadraceError) -> None:
        self._give_back()
        code = error.code if isinstance(error, RefusedError) else ""
        if kept.terms.passed and code == "conflict":
            # The upstream hub has none of the marks from this one on: it forgot the name or refused an earlier mark.
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
        """Send joined requests again one by one, since only some of them may be refused."""
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
            # The disk refused the note, so the refused request is sent, and refused, once more.
            self._again_at = self._now + AGAIN_SECONDS

    def _give_back(self) -> None:
        """Remove all kept requests from the queue; they are read again from the oldest unsettled one on."""
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


def _ignore(_: Published | HeadraceError) -> None:
    """Do nothing, in place of a reply that is set once its request exists."""


def _is_for_good(kept: KeptRequest, error: HeadraceError) -> bool:
    """Return whether the upstream hub would refuse a request again, whenever it is sent."""
    match error:
        case LimitError() | MalformedError():
            return True
        case RefusedError(code=code):
            # A frontend that may not pass anything on reports that and keeps its messages.
            return code in _FOR_GOOD and not (code == "forbidden" and kept.terms.passed)
        case _:
            return False
