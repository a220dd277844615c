"""Durable consumers: names whose position in the sequence the hub keeps, as part of its state.

A consumer has :class:`Terms`, fixed when it is created, and a **cursor**: a floor up to which everything is done, and
ranges above it that are done as well. A number is done when it was acknowledged, when the consumer's filter does not
match its message, when it was given up (its dead letter is in the log) or when retention removed it. The state does not
know which member has which numbers (:mod:`headrace.hub.consumers.delivery`): after a restart, everything that is not
done is delivered again.

Entries of the log, ``consumer/NAME``:

- ``{"create": terms, "from": n}``: the consumer's first number is ``n``; ignored if the consumer exists;
- ``{"reset": n}``: rewind or skip: deliver everything from ``n`` on;
- ``{"remove": true}``;

and ``consumer/``, numbers that are done (:mod:`~headrace.hub.consumers.settlements`).

Done ranges are a set, so entries may repeat and overlap. At most :data:`MAX_RANGES` of them are kept above the floor; a
range without room is forgotten and delivered again. Delivery keeps within that limit.

A message that is given up becomes a dead letter (:mod:`~headrace.hub.consumers.dead_letters`) under the consumer's
dead-letter topic. The entry that marks the original as done marks the letter as done, too: it is not the consumer's.

Others may publish under that topic as well, and those messages are not the consumer's. So the state follows messages,
too: it keeps the newest of them that is not marked as done (:attr:`Consumer.passed_over`). Up to there, a count of the
remaining messages is only a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta

from headrace.errors import LimitError, MalformedError, RefusedError, WireError
from headrace.hub.consumers.outstanding import clip, count
from headrace.hub.consumers.settlements import PART, Settled, decode, encode, entries
from headrace.hub.consumers.terms import Terms, check_terms, default_dead_letter
from headrace.hub.sequence_ranges import Range, Ranges
from headrace.hub.state import LargePart, entry
from headrace.log.snapshots.pieces import array_header, rows
from headrace.message import MAX_SEQUENCE, Batch
from headrace.protocols import DEAD_LETTER

MAX_CONSUMERS: Final = 4096
MAX_RANGES: Final = 4096
"""Most done ranges of a consumer above its floor. The limits are not settings: the state depends on the log alone."""
MAX_NAME: Final = 255


class Lag(NamedTuple):
    """The number of a consumer's messages that are not acknowledged."""

    behind: int
    exact: bool = True
    """Whether the number is exact; otherwise it is an upper bound, since not all messages have been looked at."""


def lag_facts(lag: Lag) -> dict[str, int | bool]:
    """Return a consumer's lag as the link and the status show it."""
    return {"behind": lag.behind, "behind_exact": lag.exact}


class Consumer:
    """One consumer: its terms and its cursor. Only log entries change it."""

    __slots__ = ("_done", "created", "dead", "floor", "lost", "name", "passed_over", "since", "terms", "uses")

    def __init__(self, name: str, terms: Terms, floor: int, created: int, since: int) -> None:
        self.name = name
        self.terms = terms
        self.created = created
        """Its number among all that were ever created, which orders consumers by age."""
        self.since = since
        """The log's position of the entry that created or last reset it: no other consumer has the same."""
        self.floor = floor
        """Everything up to here is done."""
        self.dead = 0
        """Messages that were given up."""
        self.lost = 0
        """Numbers that retention removed before they were done."""
        self.passed_over = 0
        """Message up to which its dead-letter topic may have messages that are neither its own nor done."""
        self.uses = 0
        """Number of reports, by any node of a cluster, that it was in use, since this node started."""
        self._done = Ranges(MAX_RANGES)

    @property
    def done(self) -> list[Range]:
        """Ranges that are done above the floor; never the number right above it."""
        return list(self._done)

    @property
    def dead_letter(self) -> str:
        """The topic of its dead letters."""
        return self.terms.dead_letter or default_dead_letter(self.name)

    @property
    def selects(self) -> bool:
        """Whether some of the messages that are not done may not be the consumer's."""
        return self.terms.selects or self.passed_over > self.floor

    def missing(self, ranges: Iterable[Range]) -> int:
        """Count the numbers of some ranges that are not done."""
        done = self.done
        ranges = [(max(first, self.floor + 1), last) for first, last in ranges]
        return sum(count([each]) - count(clip(done, *each)) for each in ranges if each[0] <= each[1])

    def lag(self, head: int) -> Lag:
        """Count the messages that are not done, as far as the state tells."""
        behind = max(0, head - self.floor) - count(clip(self.done, 1, head))
        return Lag(behind, exact=behind == 0 or not self.selects)

    def settle(self, ranges: Iterable[Range]) -> list[Range]:
        """Mark numbers as done; return the ranges for which there was no room."""
        forgotten: list[Range] = []
        for first, last in ranges:
            if first <= self.floor + 1:
                self._rise(last)
            elif not self._done.add(first, last):
                forgotten.append((first, last))
        return forgotten

    def reset(self, to: int, op: int) -> None:
        """Move the cursor to ``to``, by the entry at ``op``."""
        self.floor = to - 1
        self.since = op
        self._done = Ranges(MAX_RANGES)

    def _rise(self, to: int) -> None:
        self.floor = max(self.floor, to)
        self._done.cut_below(self.floor + 1)
        lowest = next(iter(self._done), None)
        if lowest is not None and lowest[0] == self.floor + 1:
            self.floor = lowest[1]
            self._done.cut_below(self.floor + 1)


class ConsumerReset(NamedTuple):
    """A consumer's cursor was moved, so that current deliveries no longer count."""

    consumer: Consumer


class ConsumerRemoved(NamedTuple):
    """A consumer was removed."""

    consumer: Consumer


class RangesForgotten(NamedTuple):
    """Numbers that must be delivered again, since there was no room to keep them as done."""

    consumer: Consumer
    settled: Settled


ConsumerEvent: TypeAlias = ConsumerReset | ConsumerRemoved | RangesForgotten


class Consumers(LargePart):
    """All consumers, in the order of their creation."""

    name = PART

    def __init__(self) -> None:
        self.observer: Callable[[ConsumerEvent], None] | None = None
        """Called with each event, after the state has changed."""
        self.known_lag: Callable[[Consumer, int], Lag | None] = lambda _consumer, _head: None
        """Counts unacknowledged messages by what was read for the consumer's members here, if there are any."""
        self.members: Callable[[str], int] = lambda _name: 0
        """Counts the members that a consumer has here."""
        self._consumers: dict[str, Consumer] = {}
        self._created = 0
        """Number of consumers ever created."""
        self._since: dict[int, Consumer] = {}
        """The consumers by the entry that created or last reset them."""
        self._dead_letters: dict[str, dict[str, Consumer]] = {}
        """The consumers that take everything, by dead-letter topic and name."""

    def __len__(self) -> int:
        return len(self._consumers)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._consumers.values())

    def get(self, name: str) -> Consumer | None:
        """Return the consumer of this name."""
        return self._consumers.get(name)

    def holds(self) -> dict[str, int]:
        """Return the holds that retention must respect: one per consumer, at the first number that is not done."""
        return {f"{PART}/{consumer.name}": consumer.floor + 1 for consumer in self}

    def lag(self, consumer: Consumer, head: int) -> Lag:
        """Count a consumer's messages up to the head that are not acknowledged."""
        lag, known = consumer.lag(head), self.known_lag(consumer, head)
        # Both are bounds, so the lower one is the better.
        return lag if known is None or lag.behind < known.behind else known

    def creation(self, name: str, terms: Terms, start: int) -> Batch | None:
        """Make the entry that creates a consumer; ``None`` if it exists on these terms.

        Ask again once the entry is committed: another creation may have come first, with other terms.
        """
        known = self._consumers.get(name)
        if known is None:
            if len(self) >= MAX_CONSUMERS:
                raise RefusedError("limit", f"there are {MAX_CONSUMERS} consumers already; remove one")
            return create(name, terms, start)
        if known.terms != terms:
            fields = Terms.__struct_fields__
            differing = [field for field in fields if getattr(known.terms, field) != getattr(terms, field)]
            if set(differing) <= {"readable", "denied"}:
                raise RefusedError(
                    "conflict",
                    f"consumer {name!r} was created with other rights to read, and has skipped what those leave out:"
                    " take another name, or remove it first",
                )
            raise RefusedError("conflict", f"consumer {name!r} has another {', '.join(differing)}")
        return None

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:
        """Apply a ``consumer`` entry."""
        if not name:
            self._settle(payload, seq)
            return
        order = msgspec.json.decode(payload, type=_Order)
        consumer = self._consumers.get(name)
        if consumer is None:
            if order.create is not None and len(self) < MAX_CONSUMERS:
                try:
                    _check_name(name)
                    check_terms(order.create)
                except WireError as error:
                    # Doors write no such entry; a relayed one may hold anything.
                    raise msgspec.ValidationError(str(error)) from None
                self._created += 1
                created = Consumer(name, order.create, order.start - 1, self._created, op)
                # The topics of messages already there have not been looked at.
                created.passed_over = seq
                self._add(created)
        elif order.reset is not None:
            del self._since[consumer.since]
            consumer.reset(order.reset, op)
            self._since[op] = consumer
            self._notify(ConsumerReset(consumer))
        elif order.remove:
            self._remove(consumer)
            self._notify(ConsumerRemoved(consumer))
        elif order.use:
            consumer.uses += 1

    def follow(self, batch: Batch) -> None:
        """Note messages under dead-letter topics that are not the consumer's own dead letters."""
        if not self._dead_letters or batch.is_entries:
            return
        columns = batch.columns
        if columns is None or "topic" not in columns.schema.names:
            among = self._dead_letters.get(batch.topic)
            if among is None:
                return
            if columns is None:
                self._pass_over(among, batch.origin, batch.publisher, batch.last)
                return
        elif not pc.any(pc.is_in(columns.column("topic"), pa.array(self._dead_letters))).as_py():
            return
        for message in batch:
            among = self._dead_letters.get(message.topic)
            if among is not None:
                self._pass_over(among, message.origin, message.publisher, message.seq)

    def freeze(self) -> Iterator[bytes]:
        """Return the pieces of the snapshot's section, which a thread makes."""
        kept = [
            _Kept(c.name, c.terms, c.created, c.since, c.floor, c.done, c.dead, c.lost, c.passed_over)
            for c in self
        ]
        return chain((array_header(2) + msgspec.msgpack.encode(self._created),), rows(kept))

    def load(self, section: bytes) -> None:
        """Restore the consumers from a snapshot."""
        self._consumers.clear()
        self._since.clear()
        self._dead_letters.clear()
        self._created, consumers = msgspec.msgpack.decode(section, type=tuple[int, list[_Kept]])
        for kept in consumers:
            consumer = Consumer(kept.name, kept.terms, kept.floor, kept.created, kept.since)
            self._add(consumer)
            consumer.dead, consumer.lost, consumer.passed_over = kept.dead, kept.lost, kept.passed_over
            consumer.settle(kept.done)

    def _add(self, consumer: Consumer) -> None:
        self._consumers[consumer.name] = self._since[consumer.since] = consumer
        if not consumer.terms.selects:
            self._dead_letters.setdefault(consumer.dead_letter, {})[consumer.name] = consumer

    def _remove(self, consumer: Consumer) -> None:
        del self._consumers[consumer.name]
        del self._since[consumer.since]
        if not consumer.terms.selects:
            among = self._dead_letters[consumer.dead_letter]
            del among[consumer.name]
            if not among:
                del self._dead_letters[consumer.dead_letter]

    def _pass_over(self, among: dict[str, Consumer], origin: str, publisher: str, seq: int) -> None:
        """Note a message under the dead-letter topic of some consumers."""
        for consumer in among.values():
            # Its own ones are marked as done by the entry right after them.
            if origin != DEAD_LETTER or publisher != consumer.name:
                consumer.passed_over = seq

    def _settle(self, payload: bytes, seq: int) -> None:
        settled, dead, letters = decode(payload)
        consumer = self._since.get(settled.since)
        if consumer is None:
            return  # It was reset or removed meanwhile.
        forgotten = consumer.settle(settled.ranges)
        if forgotten:
            self._notify(RangesForgotten(consumer, Settled(tuple(forgotten), consumer.since)))
        # Letters are the last messages before the entry. Delivery would skip them anyway, so they must not take the
        # room that it relies on.
        if letters and len(consumer.done) < MAX_RANGES // 4:
            consumer.settle([(max(1, seq - letters + 1), seq)])
        elif letters:
            consumer.passed_over = seq
        consumer.dead = min(consumer.dead + dead, MAX_SEQUENCE)
        consumer.lost = min(consumer.lost + settled.lost, MAX_SEQUENCE)

    def _notify(self, event: ConsumerEvent) -> None:
        if self.observer is not None:
            self.observer(event)


def create(name: str, terms: Terms, start: int) -> Batch:
    """Make the entry that creates a consumer whose first number is ``start``."""
    _check_name(name)
    check_terms(terms)
    return _entry(name, _Order(create=terms, start=start))


def settle(settled: Settled) -> Batch:
    """Make the entry that marks numbers as done."""
    return entries(encode(settled))


def reset(name: str, to: int) -> Batch:
    """Make the entry that resets a consumer to ``to``."""
    return _entry(name, _Order(reset=to))


def remove(name: str) -> Batch:
    """Make the entry that removes a consumer."""
    return _entry(name, _Order(remove=True))


def use(name: str) -> Batch:
    """Make the entry that reports a consumer in use at a node of a cluster."""
    return _entry(name, _Order(use=True))


_Seq: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_SEQUENCE + 1)]


class _Order(msgspec.Struct, frozen=True, omit_defaults=True, rename={"start": "from"}):
    create: Terms | None = None
    start: _Seq = 1
    reset: _Seq | None = None
    remove: bool = False
    use: bool = False


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    name: str
    terms: Terms
    created: int
    since: int
    floor: int
    done: list[Range]
    dead: int
    lost: int
    passed_over: int = 0


def _entry(name: str, order: _Order) -> Batch:
    return entry(PART, name, msgspec.json.encode(order))


def _check_name(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise MalformedError("link", "consumer", name, "UTF-8 text") from None
    if not size:
        raise MalformedError("link", "consumer", name, "a name")
    if size > MAX_NAME:
        raise LimitError("link", "consumer", size, MAX_NAME)
