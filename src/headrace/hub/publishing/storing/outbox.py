"""The outbox: requests that a frontend keeps on its disk until its upstream hub has them.

It is a log of its own beside the frontend's, with the same framing, syncs and recovery, and a hub without doors around
it. A kept request is one append: an entry that describes it, its rows, and, for rows that a hub relays, the mark under
which the upstream hub knows them. So a request that was acknowledged as kept is complete after a crash, and keeps the
numbers under which it is sent.

Publishers' numbers are judged here as they are upstream (:class:`~headrace.hub.publishing.idempotent`): a repeat is
recognised, and the same numbers with other content are a conflict. The frontend's own state says who holds a
publisher's name.

Other entries than ``kept`` say up to where the upstream hub has everything (``settled``), that marks are counted anew
after one that it refused, or each by itself (``renamed``), that a publisher's message was refused (``refused``), and
which history the messages are for (``history``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from headrace.errors import FullError, HeadraceError, StorageError, UsageError
from headrace.hub.publishing.idempotent import IdempotentPublishing, mark
from headrace.hub.publishing.publisher_numbers import Holder, PublisherNumbers
from headrace.hub.publishing.same_rows import Elsewhere
from headrace.hub.publishing.storing.kept_requests import PART, KeptRequest, KeptTerms, Renamed
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import KEPT, Claim, Published, WhenPublished
from headrace.hub.state import HubState, entry
from headrace.log import Log
from headrace.message import Batch

MAX_UNCOMMITTED: Final = 16 << 20
"""Bytes that may wait for the disk before publishers are made to wait."""

REQUEST_COST: Final = 512
"""Approximate bytes that a request takes in addition to its rows, on the disk and in the index of its places."""

WhenNoted: TypeAlias = Callable[[bool], None]
"""Called with true once an entry is committed, or with false once the disk has refused it."""


class _Settled(msgspec.Struct, frozen=True):
    """What the upstream hub has: everything before operation ``op``, with totals since the outbox was made."""

    op: int
    seq: int
    requests: int
    messages: int
    size: int


class Waiting(NamedTuple):
    """Totals of requests that were kept."""

    requests: int
    messages: int
    size: int


class KeptNumbers(PublisherNumbers):
    """The numbers of kept messages; the frontend's own log says who holds a name."""

    def __init__(self, above: PublisherNumbers) -> None:
        super().__init__()
        self._above = above

    def holder(self, publisher: str) -> Holder:
        """Return who opened a name last."""
        return self._above.holder(publisher)

    def has_after(self, publisher: str, seq: int) -> bool:
        """Return whether any message of a publisher was kept after message ``seq`` of the outbox."""
        known = self._publishers.get(publisher)
        return known is not None and bool(known.spans) and known.spans[-1].seq > seq

    def clear(self) -> None:
        """Forget all numbers, since the upstream hub knows them."""
        super().__init__()

    def forget(self, publisher: str) -> None:
        """Forget a publisher whose message was refused: what it sends again is not a repeat."""
        known = self._publishers.pop(publisher, None)
        if known is not None:
            self._spans -= len(known.spans)
            self._several.pop(publisher, None)
            self._unused.pop(publisher, None)


class OutboxState:
    """The outbox's own part of its state."""

    name = PART

    def __init__(self, numbers: KeptNumbers) -> None:
        self._numbers = numbers
        self.history = ""
        """The uuid of the log that the messages are for."""
        self.settled = _Settled(1, 0, 0, 0, 0)
        self.kept = Waiting(0, 0, 0)
        """Totals of everything ever kept."""
        self.renamed: list[Renamed] = []

    @property
    def waiting(self) -> Waiting:
        """Totals of what is not upstream yet."""
        kept, settled = self.kept, self.settled
        return Waiting(
            kept.requests - settled.requests, kept.messages - settled.messages, kept.size - settled.size
        )

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:  # noqa: ARG002
        """Apply one of the outbox's entries."""
        match name:
            case "kept":
                terms = msgspec.json.decode(payload, type=KeptTerms)
                requests, messages, size = self.kept
                self.kept = Waiting(requests + 1, messages + terms.messages, size + terms.size)
            case "settled":
                settled = msgspec.json.decode(payload, type=_Settled)
                if settled.op >= self.settled.op:
                    self.settled = settled
                # Decide by this entry, not by a later uncommitted note: the result must be the same after a crash.
                if settled.requests == self.kept.requests:
                    self.renamed.clear()
                    self._numbers.clear()
            case "refused":
                self._numbers.forget(payload.decode())
            case "renamed":
                self.renamed.append(msgspec.json.decode(payload, type=Renamed))
            case "history":
                self.history = payload.decode()
            case _:
                pass

    def dump(self) -> bytes:
        """Return the part as its section of a snapshot."""
        return msgspec.msgpack.encode((self.history, self.settled, self.kept, self.renamed))

    def load(self, section: bytes) -> None:
        """Restore the part from a snapshot."""
        self.history, self.settled, kept, self.renamed = msgspec.msgpack.decode(
            section, type=tuple[str, _Settled, tuple[int, int, int], list[Renamed]]
        )
        self.kept = Waiting(*kept)


class Outbox:
    """Requests that are kept for the hub that numbers the log ``history``; ``most`` bounds their bytes."""

    def __init__(
        self,
        log: Log,
        history: UUID,
        holders: PublisherNumbers,
        *,
        most: int,
        node: int = 0,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.most = most
        self.numbers = KeptNumbers(holders)
        self.state = OutboxState(self.numbers)
        self.hub = Hub(log, node, max_uncommitted=MAX_UNCOMMITTED, state=HubState(self.state, self.numbers))
        self.writing = 0
        """Number of requests on their way to the disk."""
        self.aside_bytes = 0
        """Bytes of messages that the upstream hub refused; they count against the bound."""
        self.noted: Callable[[], None] = lambda: None
        """Called when it is safe on the disk what is settled; set by the relay."""
        self.hurry: Callable[[], None] = lambda: None
        """Asks for a sync, which the relay waits for; set by the driver."""
        self._safe = self.state.settled.requests
        """Number of requests that are safely noted to be upstream."""
        self._noting = 0
        """Number of notes on their way to the disk."""
        self._written: deque[tuple[int, int]] = deque()
        """Notes that the next sync makes safe: their operation, and the number of settled requests."""
        self.publishing = IdempotentPublishing(self.hub, self.numbers, elsewhere)
        self._coming = 0
        """Bytes of the requests that are on their way to the disk."""
        if self.state.history not in ("", str(history)) and self.state.waiting.requests:
            raise UsageError(
                f"{log.directory} holds {self.state.waiting.messages} messages for the log {self.state.history}, and "
                f"this hub follows the log {history}: follow that log's hub, or move {log.directory} away"
            )
        if self.state.history != str(history):
            self.hub.submit(entry(PART, "history", str(history).encode()))

    @property
    def empty(self) -> bool:
        """Whether the upstream hub has everything, and nothing is on its way to the disk."""
        return not self.writing and not self.state.waiting.requests

    @property
    def size(self) -> int:
        """Bytes that count against the bound."""
        return self.state.waiting.size + self._coming + self.aside_bytes

    def oldest(self) -> int | None:
        """Return the time when the oldest request was kept, in µs since 1970."""
        log, op = self.hub.log, self.state.settled.op
        first = log.read_ops(op, op) if self.state.waiting.requests else []
        return first[0].time if first else None

    def keep(
        self,
        rows: Sequence[Batch],
        publisher: str,
        number: int,
        reply: WhenPublished,
        *,
        passed: bool,
        size: int,
        follows: bool,
        claim: Claim,
        since: int,
        group: int | None = None,
    ) -> None:
        """Keep a request; ``reply`` gets :data:`~headrace.hub.sequencer.KEPT` once it is as safe as a commit.

        ``passed`` rows are recognised by a mark here, and upstream by their ``group`` if they have one; other rows by
        their own numbers.
        """
        size += REQUEST_COST
        if self.size + size > self.most:
            path = str(self.hub.log.directory)
            reply(FullError(path, f"{self.size} bytes are kept of upstream.store_bytes = {self.most}"))
            return
        messages = sum(len(batch) for batch in rows if not batch.is_entries)
        terms = KeptTerms(
            batches=len(rows) + passed,
            messages=messages,
            size=size,
            passed=passed,
            follows=follows,
            epoch=claim.epoch,
            client=claim.client,
            retry=claim.retry,
            since=since if claim.retry is None else min(since, claim.retry),
            group=group,
        )
        described = entry(PART, "kept", msgspec.json.encode(terms))
        self.writing += 1
        self._coming += size

        def kept(result: Published | HeadraceError) -> None:
            self.writing -= 1
            self._coming -= size
            reply(result if isinstance(result, HeadraceError) else KEPT._replace(repeated=result.repeated))

        preceding = [described, *rows] if passed else [described]
        batch = mark(publisher, number) if passed else rows[0]
        # The upstream hub judges whether it follows the previous request, since only it knows that.
        judged = Claim() if passed else claim._replace(retry=None)
        self.publishing.publish(batch, kept, preceding=preceding, claim=judged)

    def settle(self, upto: KeptRequest, requests: int, messages: int, size: int) -> None:
        """Note that the upstream hub has taken or refused everything up to a request; add to the totals."""
        before = self.state.settled
        settled = _Settled(
            upto.last_op + 1,
            upto.rows[-1].last,
            before.requests + requests,
            before.messages + messages,
            before.size + size,
        )
        # Apply it at once, before it is committed: the next note adds to this one.
        self.state.settled = settled
        self._note()

    @property
    def unnoted(self) -> int:
        """Number of requests that are upstream, but not safely noted as such.

        After a power cut they are sent again, and the upstream hub must recognise all of them.
        """
        return self.state.settled.requests - self._safe

    def note_again(self) -> None:
        """Write again what is settled, if the disk refused that before; it may have room now."""
        if self.unnoted and not self._noting and not self._written and self.hub.failed is None:
            self._note()

    def synced(self, op: int) -> None:
        """Note that everything up to an operation is on the disk."""
        before = self._safe
        while self._written and self._written[0][0] <= op:
            self._safe = self._written.popleft()[1]
        if self._safe != before:
            self.noted()

    def _note(self) -> None:
        settled = self.state.settled

        def noted(result: Batch | StorageError) -> None:
            self._noting -= 1
            if not isinstance(result, Batch):
                return
            self._written.append((result.last_op, settled.requests))
            if self.hub.log.fsync != "interval":
                # A commit is as safe as it can be.
                self.synced(result.last_op)

        self._noting += 1
        self.hub.submit(entry(PART, "settled", msgspec.json.encode(settled)), noted)

    def leave_out(self, op: int) -> None:
        """Skip everything before operation ``op``: the outbox is empty, and older segments may be removed."""
        self.state.settled = msgspec.structs.replace(self.state.settled, op=op)

    def refuse(self, request: KeptRequest, new: str | None, done: WhenNoted) -> None:
        """Note that the upstream hub refused a request for good.

        The upstream hub also refused the marks after it, so those are counted anew under the name ``new``.
        """
        if request.terms.passed:
            self.rename(request, request.number + 1, new or "", done)
        else:
            refused = entry(PART, "refused", request.publisher.encode())
            self.hub.submit(refused, lambda result: done(isinstance(result, Batch)))

    def rename(self, request: KeptRequest, number: int, new: str, done: WhenNoted) -> None:
        """Count the marks of a request's name from ``number`` on anew, since the upstream hub has none of them."""
        self._rename(Renamed(request.publisher, number, new), done)

    def take_apart(self, request: KeptRequest, new: str, done: WhenNoted) -> None:
        """Let the members of a group go up one by one, and then all that follows, under the name ``new``."""
        self._rename(Renamed(request.publisher, request.number, new, len(request.ops), request.mark), done)

    def _rename(self, renamed: Renamed, done: WhenNoted) -> None:
        noted = entry(PART, "renamed", msgspec.json.encode(renamed))
        self.hub.submit(noted, lambda result: done(isinstance(result, Batch)))
