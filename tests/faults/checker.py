"""Whether what clients were told can be true, by Headrace's promises alone.

    for violation in violations(history):
        print(violation)

The checker knows nothing of how a hub works. Messages are told apart by their bytes: a publisher never sends the same
ones twice in one history, except to try again. The rules:

``other message``   a number belongs to one message: whoever was told of it was told the same bytes
``doubled``         a message has one number
``invented``        what is read was published by somebody
``lost``            what was acknowledged is there, under the number that was told, whoever reads everything afterwards
``refused``         what was refused for certain is not there
``hole``            a reader's numbers are 5, 6, 7, …: none is missing, none comes again, none goes back (but those of
                    durable consumers, which get everything at least once)
``order``           a publisher's messages have numbers in the order in which it sent them
``went back``       a node's head never falls, and covers what that node has acknowledged before it was asked
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.history import Acknowledged, Event, Failed, Forgot, History, Invoked, ReadAll, Saw, Told


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a history breaks, and where."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


def violations(history: History) -> Iterator[Violation]:
    """Find everything in a history that cannot be."""
    events = list(_remembered(history.events))
    facts = _Facts(events)
    yield from facts.found
    yield from _lost(facts, events)
    yield from _refused(facts, events)
    yield from _holes(events)
    yield from _order(facts, events)
    yield from _went_back(events)


class _Facts:
    """Which message has which number, as anybody was told."""

    def __init__(self, events: list[Event | None]) -> None:
        self.found: list[Violation] = []
        self.sent: dict[int, Invoked] = {}
        self.published: set[bytes] = set()
        self.message_of: dict[int, bytes] = {}
        self.number_of: dict[bytes, int] = {}
        self._source: dict[int, str] = {}
        for event in events:
            match event:
                case Invoked(op, _, payloads):
                    self.sent[op] = event
                    self.published.update(payloads)
                case Acknowledged(op, int(first), int(last), _):
                    payloads = self.sent[op].payloads
                    source = f"the answer to publish {op}"
                    if last - first + 1 != len(payloads):
                        text = f"{source}: {len(payloads)} messages have the numbers {first} to {last}"
                        self.found.append(Violation("other message", text))
                        continue
                    for seq, payload in enumerate(payloads, first):
                        self._learn(seq, payload, source)
                case Saw(reader, seq, payload, _):
                    self._learn(seq, payload, reader)
                    if payload not in self.published:
                        text = f"{reader} has {_shown(payload)} as number {seq}, which nobody sent"
                        self.found.append(Violation("invented", text))

    def _learn(self, seq: int, payload: bytes, source: str) -> None:
        known = self.message_of.setdefault(seq, payload)
        if known != payload:
            text = (
                f"number {seq} is {_shown(known)} to {self._source[seq]}, and {_shown(payload)} to {source}"
            )
            self.found.append(Violation("other message", text))
        self._source.setdefault(seq, source)
        number = self.number_of.setdefault(payload, seq)
        if number != seq:
            text = f"{_shown(payload)} is number {number} to {self._source[number]}, and {seq} to {source}"
            self.found.append(Violation("doubled", text))


def _remembered(events: list[Event]) -> Iterator[Event | None]:
    """The events that still bind after all power failures that were allowed to take something.

    Each keeps its place: what was told of a forgotten number is ``None``.
    """
    kept = None
    newest_first: list[Event | None] = []
    for event in reversed(events):
        match event:
            case Forgot(upto):
                kept = upto if kept is None else min(kept, upto)
                newest_first.append(None)
            case Acknowledged(_, _, last, _) if kept is not None and (last is None or last > kept):
                newest_first.append(None)
            case Saw(_, seq, _, _) if kept is not None and seq > kept:
                newest_first.append(None)
            case Told() | ReadAll() if kept is not None:
                newest_first.append(None)
            case _:
                newest_first.append(event)
    return reversed(newest_first)


def _lost(facts: _Facts, events: list[Event | None]) -> Iterator[Violation]:
    acknowledged: dict[int, int] = {}
    somewhere: dict[bytes, int] = {}
    seen: dict[str, dict[int, bytes]] = {}
    for event in events:
        match event:
            case Acknowledged(op, int(first), int(last), _):
                acknowledged.update(dict.fromkeys(range(first, last + 1), op))
            case Acknowledged(op, _, _, _):
                somewhere.update(dict.fromkeys(facts.sent[op].payloads, op))
            case Saw(reader, seq, payload, _):
                seen.setdefault(reader, {})[seq] = payload
            case ReadAll(reader, first, last):
                has = seen.get(reader, {})
                for seq in range(first, last + 1):
                    if seq not in has:
                        yield Violation("hole", f"{reader} has read {first} to {last} without {seq}")
                for seq, op in acknowledged.items():
                    if seq >= first and seq not in has:
                        yield Violation("lost", f"number {seq} of publish {op} is not what {reader} has read")
                if somewhere:
                    messages = set(has.values())
                    for payload, op in somewhere.items():
                        if payload not in messages:
                            text = f"{_shown(payload)} of publish {op} is not what {reader} has read"
                            yield Violation("lost", text)


def _refused(facts: _Facts, events: list[Event | None]) -> Iterator[Violation]:
    for event in events:
        if isinstance(event, Failed) and event.refused:
            for payload in facts.sent[event.op].payloads:
                if payload in facts.number_of:
                    text = f"{_shown(payload)} is number {facts.number_of[payload]} and was refused ({event.why})"
                    yield Violation("refused", text)


def _holes(events: list[Event | None]) -> Iterator[Violation]:
    newest: dict[str, int] = {}
    for event in events:
        if isinstance(event, Saw) and event.whole:
            before = newest.get(event.reader)
            if before is not None and event.seq != before + 1:
                yield Violation("hole", f"{event.reader} was given {event.seq} after {before}")
            newest[event.reader] = event.seq


def _order(facts: _Facts, events: list[Event | None]) -> Iterator[Violation]:
    newest: dict[str, tuple[int, bytes]] = {}
    for event in events:
        if not isinstance(event, Invoked):
            continue
        for payload in event.payloads:
            seq = facts.number_of.get(payload)
            if seq is None:
                continue
            before, earlier = newest.get(event.publisher, (0, b""))
            if seq <= before:
                text = f"{_shown(payload)} of {event.publisher} is number {seq}"
                yield Violation("order", f"{text}, and {_shown(earlier)}, sent before it, {before}")
            newest[event.publisher] = (seq, payload)


def _went_back(events: list[Event | None]) -> Iterator[Violation]:
    heads: dict[str, int] = {}
    """For each reader and node, the last head."""
    promised: dict[str, tuple[list[int], list[int]]] = {}
    """For each node, where in the history it acknowledged something, and how far its acknowledgements went by then."""
    for place, event in enumerate(events):
        match event:
            case Acknowledged(_, _, int(last), str(node)):
                places, reached = promised.setdefault(node, ([-1], [0]))
                places.append(place)
                reached.append(max(last, reached[-1]))
            case Told(reader, node, head, since):
                key = f"{reader} at {node}"
                before = heads.get(key, 0)
                if head < before:
                    yield Violation("went back", f"{node} told {reader} of head {head} after {before}")
                heads[key] = head
                places, reached = promised.get(node, ([-1], [0]))
                least = reached[bisect_left(places, since) - 1]
                if head < least:
                    text = f"{node} told {reader} of head {head}, and had acknowledged {least} before"
                    yield Violation("went back", text)


def _shown(payload: bytes) -> str:
    return repr(payload[:40])
