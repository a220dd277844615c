"""The outbox: requests that a frontend keeps on its disk until its upstream hub has them.

It is a log of its own beside the frontend's, with the same framing, syncs and recovery, and a hub around it that owns
no door. A kept request is one append: an entry that describes it, its rows, and for rows that this hub or another one
relays the mark under which they are known upstream. So what was acknowledged as kept is there after a crash, whole,
under the numbers it is sent with, however often.

Publishers' numbers are judged here as they are upstream (:class:`~headrace.hub.publishing.idempotent`): a request that
comes again is the one that is kept, and the same numbers with other content are a conflict. Who holds a publisher's
name is a matter of the frontend's own state.

Entries besides ``kept`` say how far the upstream hub has it all (``settled``), that marks are counted anew after one
that it refused (``renamed``), that a publisher's message was refused (``refused``), and which history the messages
are for (``history``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from headrace.errors import FullError, HeadraceError, StorageError, UsageError
from headrace.hub.publishing.idempotent import IdempotentPublishing, mark
from headrace.hub.publishing.publisher_numbers import Holder, PublisherNumbers
from headrace.hub.publishing.same_rows import Elsewhere
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import KEPT, Claim, Published, WhenPublished
from headrace.hub.state import HubState, entry
from headrace.log import Log
from headrace.message import Batch

MAX_UNCOMMITTED: Final = 16 << 20
"""Bytes that may wait for the disk before publishers are made to wait."""

REQUEST_COST: Final = 512
"""About what a request takes beside its rows, on the disk and in the index of its places."""

_PART: Final = "outbox"

WhenNoted: TypeAlias = Callable[[bool], None]
"""Called once an entry is committed, or, with false, once the disk has refused it."""


class KeptTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a request beside its rows."""

    batches: int
    """How many follow: its rows, and a mark if they are passed on."""
    messages: int
    size: int
    passed: bool = False
    follows: bool = False
    epoch: int | None = None
    client: str = ""
    retry: int | None = None
    since: int = 0
    """A position of the frontend's log before which it was never sent."""


class KeptRequest(NamedTuple):
    """A request as the outbox has it: the operations ``op`` to ``last_op`` of its log."""

    op: int
    last_op: int
    time: int
    """When it was kept, in µs since 1970."""
    terms: KeptTerms
    rows: Sequence[Batch]
    publisher: str
    number: int


class _Settled(msgspec.Struct, frozen=True):
    """How far the upstream hub has it all: to before operation ``op``, so much since the outbox was made."""

    op: int
    seq: int
    requests: int
    messages: int
    size: int


class Renamed(msgspec.Struct, frozen=True):
    """Marks of the name ``old`` from ``number`` on go under ``new``, from 0 on."""

    old: str
    number: int
    new: str


class Waiting(NamedTuple):
    """What is kept and not yet upstream."""

    requests: int
    messages: int
    size: int


class KeptNumbers(PublisherNumbers):
    """The numbers of what is kept; who holds a name is known from the frontend's own log."""

    def __init__(self, above: PublisherNumbers) -> None:
        super().__init__()
        self._above = above

    def holder(self, publisher: str) -> Holder:
        """Return who opened a name last."""
        return self._above.holder(publisher)

    def has_after(self, publisher: str, seq: int) -> bool:
        """Whether anything of a publisher was kept after message ``seq`` of the outbox."""
        known = self._publishers.get(publisher)
        return known is not None and bool(known.spans) and known.spans[-1].seq > seq

    def clear(self) -> None:
        """Forget all numbers: the upstream hub knows them."""
        super().__init__()

    def forget(self, publisher: str) -> None:
        """Forget a publisher of which something was refused: what it sends again is no repeat."""
        known = self._publishers.pop(publisher, None)
        if known is not None:
            self._spans -= len(known.spans)
            self._several.pop(publisher, None)
            self._unused.pop(publisher, None)


class OutboxState:
    """The outbox's own part of its state."""

    name = _PART

    def __init__(self, numbers: KeptNumbers) -> None:
        self._numbers = numbers
        self.history = ""
        """The uuid of the log that the messages are for."""
        self.settled = _Settled(1, 0, 0, 0, 0)
        self.kept = Waiting(0, 0, 0)
        """All that was ever kept."""
        self.renamed: list[Renamed] = []

    @property
    def waiting(self) -> Waiting:
        """What is not upstream yet."""
        kept, settled = self.kept, self.settled
        return Waiting(
            kept.requests - settled.requests, kept.messages - settled.messages, kept.size - settled.size
        )

    def known_as(self, publisher: str, number: int) -> tuple[str, int]:
        """Return the name and the number that a mark has by now."""
        for old, since, new in map(msgspec.structs.astuple, self.renamed):
            if publisher == old and number >= since:
                publisher, number = new, number - since
        return publisher, number

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
                # By this entry, not by a later note that is not committed yet: after a crash it must be the same.
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
    """What is kept for the hub that numbers the log ``history``; ``most`` bounds its bytes."""

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
        """Requests on their way to the disk."""
        self.aside_bytes = 0
        """Bytes of what the upstream hub refused; they count against the bound."""
        self._unnoted = False
        self._publishing = IdempotentPublishing(self.hub, self.numbers, elsewhere)
        self._coming = 0
        """Bytes of those requests."""
        if self.state.history not in ("", str(history)) and self.state.waiting.requests:
            raise UsageError(
                f"{log.directory} holds {self.state.waiting.messages} messages for the log {self.state.history}, and "
                f"this hub follows the log {history}: follow that log's hub, or move {log.directory} away"
            )
        if self.state.history != str(history):
            self.hub.submit(entry(_PART, "history", str(history).encode()))

    @property
    def empty(self) -> bool:
        """Whether the upstream hub has everything, and nothing is on its way here."""
        return not self.writing and not self.state.waiting.requests

    @property
    def size(self) -> int:
        """Bytes that count against the bound."""
        return self.state.waiting.size + self._coming + self.aside_bytes

    def oldest(self) -> int | None:
        """Return when the oldest request was kept, in µs since 1970."""
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
    ) -> None:
        """Keep a request; ``reply`` gets :data:`~headrace.hub.sequencer.KEPT` once it is as safe as the log's own.

        ``passed`` rows are known by a mark, others by their own numbers.
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
        )
        described = entry(_PART, "kept", msgspec.json.encode(terms))
        self.writing += 1
        self._coming += size

        def kept(result: Published | HeadraceError) -> None:
            self.writing -= 1
            self._coming -= size
            reply(result if isinstance(result, HeadraceError) else KEPT._replace(repeated=result.repeated))

        preceding = [described, *rows] if passed else [described]
        batch = mark(publisher, number) if passed else rows[0]
        # Whether it follows what came before is judged upstream, where that is known.
        judged = Claim() if passed else claim._replace(retry=None)
        self._publishing.publish(batch, kept, preceding=preceding, claim=judged)

    def settle(self, upto: KeptRequest, requests: int, messages: int, size: int) -> None:
        """Note that the upstream hub has, or has refused, everything up to a request: so many more than before."""
        before = self.state.settled
        settled = _Settled(
            upto.last_op + 1,
            upto.rows[-1].last,
            before.requests + requests,
            before.messages + messages,
            before.size + size,
        )
        # At once, though it is not committed yet: the next note adds to this one.
        self.state.settled = settled
        self.note(lambda: None)

    def note(self, done: Callable[[], None]) -> None:
        """Write down what is settled; ``done`` is called once that is committed."""

        def noted(result: Batch | StorageError) -> None:
            self._unnoted = not isinstance(result, Batch)
            if not self._unnoted:
                done()

        self.hub.submit(entry(_PART, "settled", msgspec.json.encode(self.state.settled)), noted)

    @property
    def unnoted(self) -> bool:
        """Whether the disk has refused the newest note, and may take it later."""
        return self._unnoted and self.hub.failed is None

    def leave_out(self, op: int) -> None:
        """Read from operation ``op`` on from now on: the outbox is empty, and what is before may be removed."""
        self.state.settled = msgspec.structs.replace(self.state.settled, op=op)

    def refuse(self, request: KeptRequest, new: str | None, done: WhenNoted) -> None:
        """Note that the upstream hub refused a request for good.

        It has none of the marks after a refused one, so those are counted anew under the name ``new``.
        """
        if request.terms.passed:
            self.rename(request, request.number + 1, new or "", done)
        else:
            refused = entry(_PART, "refused", request.publisher.encode())
            self.hub.submit(refused, lambda result: done(isinstance(result, Batch)))

    def rename(self, request: KeptRequest, number: int, new: str, done: WhenNoted) -> None:
        """Count the marks of a request's name anew from ``number`` on: the upstream hub has none of them."""
        renamed = Renamed(request.publisher, number, new)
        noted = entry(_PART, "renamed", msgspec.json.encode(renamed))
        self.hub.submit(noted, lambda result: done(isinstance(result, Batch)))


class KeptReader:
    """Makes requests of what is read from the outbox's log, piece by piece."""

    def __init__(self, state: OutboxState) -> None:
        self._state = state
        self._next = 0
        self._described: tuple[Batch, KeptTerms] | None = None
        self._rows: list[Batch] = []

    @property
    def op(self) -> int:
        """The operation to read from; what is settled may have been removed."""
        return max(self._next, self._state.settled.op)

    def take(self, batches: Sequence[Batch]) -> list[KeptRequest]:
        """Take the next operations; return the requests that are whole now."""
        found: list[KeptRequest] = []
        for batch in batches:
            self._next = batch.last_op + 1
            if self._described is None:
                if batch.topic == f"{_PART}/kept":
                    self._described = batch, msgspec.json.decode(batch.run[0], type=KeptTerms)
                continue
            self._rows.append(batch)
            described, terms = self._described
            if len(self._rows) == terms.batches:
                found.append(self._request(described, terms))
                self._described, self._rows = None, []
        return found

    def _request(self, described: Batch, terms: KeptTerms) -> KeptRequest:
        last = self._rows[-1]
        publisher, number = last.publisher, last.number or 0
        if terms.passed:
            publisher, number = self._state.known_as(publisher, number)
        rows = self._rows[:-1] if terms.passed else self._rows
        return KeptRequest(described.op, last.last_op, described.time, terms, rows, publisher, number)
