"""Taxis and buses that move at random, and the events of a subscription with fences, by a plain loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from tests.matching import naive

from headrace.client.conditions import AnyConditions, Condition, alternatives_of
from headrace.message import Message
from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import split_events

WINDOW = 1_000_000


class Move(NamedTuple):
    """A message of a key."""

    taxi: str
    kind: str
    x: float
    y: float


def drive(random: Random, count: int) -> list[Move]:
    """Moves of ten keys, in no order."""
    places = {f"taxi {n}": (random.uniform(0, 100), random.uniform(0, 100)) for n in range(10)}
    moves = []
    for _ in range(count):
        taxi = random.choice(list(places))
        x, y = places[taxi]
        places[taxi] = ((x + random.uniform(-30, 30)) % 100, (y + random.uniform(-30, 30)) % 100)
        moves.append(Move(taxi, random.choice(["bus", "tram"]), *places[taxi]))
    return moves


def published(moves: Sequence[Move]) -> list[Mapping[str, Any]]:
    """The moves as rows for a link."""
    return [{"payload": move.taxi.encode(), "attributes": move._asdict()} for move in moves]


def expected(
    conditions: Mapping[str, Condition] | AnyConditions, moves: Sequence[Move], first: int
) -> dict[int, tuple[str, ...]]:
    """The events of each message, the first of which has the number ``first``."""
    messages = [
        Message(
            first + place,
            b"",
            attributes={"taxi": move.taxi, "kind": move.kind},
            numbers={"x": move.x, "y": move.y},
        )
        for place, move in enumerate(moves)
    ]
    found: dict[int, set[str]] = {}
    for predicates in split_events(alternatives_of(conditions)):
        ((x, fence),) = ((name, each) for name, each in predicates.items() if isinstance(each, Fence))
        others = {name: each for name, each in predicates.items() if name != x}
        for place, message in enumerate(messages):
            if naive.matches(others, message):
                event = naive.event(fence, x, messages[:place], message, WINDOW)
                if event in fence.events:
                    found.setdefault(message.seq, set()).add(event)
    return {seq: tuple(sorted(events)) for seq, events in sorted(found.items())}
