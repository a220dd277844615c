"""Indexes large enough to have trees, many keys, and wide and narrow intervals find what a plain loop finds."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from tests.matching import naive
from tests.matching.drawn import batch_of

from headrace.matching import Matcher
from headrace.message import Batch
from headrace.wire.sdk.predicate import Any, Between, Equals, Exists, In, Not, Predicate, Prefix

Draw = Callable[[random.Random], Mapping[str, Predicate]]

NUMBERS = [f"n{index}" for index in range(4)]
TEXTS = [f"t{index}" for index in range(3)]


def _between(draw: random.Random) -> Between:
    low = draw.uniform(0, 1000)
    width = draw.choice([0.0, 1e-3, 1.0, 10.0, 10.0, 10.0, 100.0, 1e6])
    return Between(low, low + width)


def _extra(draw: random.Random) -> Predicate:
    value: tuple[str | float, ...] = tuple(draw.choice([f"v{draw.randrange(60)}", 7.0]) for _ in range(3))
    return draw.choice(
        [
            In(value),
            Prefix(f"v{draw.randrange(10)}"),
            Not(In(value)),
            Any((In(value), Prefix("v5"))),
            Exists(True),
        ]
    )


def ranges(draw: random.Random) -> Mapping[str, Predicate]:
    return {name: _between(draw) for name in draw.sample(NUMBERS, 2)}


def one_range(draw: random.Random) -> Mapping[str, Predicate]:
    return {"n0": _between(draw)}


def keys(draw: random.Random) -> Mapping[str, Predicate]:
    return {draw.choice(TEXTS): Equals(f"v{draw.randrange(60)}"), draw.choice(NUMBERS): _between(draw)}


def popular_key(draw: random.Random) -> Mapping[str, Predicate]:
    return {"t0": Equals("v1"), **ranges(draw)}


def extras(draw: random.Random) -> Mapping[str, Predicate]:
    return {
        draw.choice(TEXTS): _extra(draw),
        draw.choice(NUMBERS): draw.choice([_between(draw), _extra(draw)]),
    }


def everything(draw: random.Random) -> Mapping[str, Predicate]:
    return draw.choice([ranges, one_range, keys, popular_key, extras])(draw)


def _batch(draw: random.Random) -> Batch:
    said = []
    for _ in range(40):
        texts = {name: f"v{draw.randrange(60)}" for name in TEXTS if draw.random() < 0.8}
        if draw.random() < 0.5:
            texts["t0"] = "v1"
        numbers = {name: draw.choice([7.0, draw.uniform(0, 1000)]) for name in NUMBERS if draw.random() < 0.9}
        said.append((texts, numbers, b"", ("", "spp", "")))
    return batch_of(said)


@pytest.mark.parametrize("kind", [ranges, one_range, keys, popular_key, extras, everything])
def test_a_large_index_finds_what_a_plain_loop_finds(kind: Draw) -> None:
    draw = random.Random(f"index {kind.__name__}")
    batch = _batch(draw)
    matcher = Matcher(seed=4)
    asked: dict[bytes, Mapping[str, Predicate]] = {}
    for number in range(6000):
        client = number.to_bytes(12)
        asked[client] = kind(draw)
        matcher.subscribe(client, asked[client])
    for client in draw.sample(sorted(asked), 500):
        del asked[client]
        assert matcher.withdraw(client)

    wanted = [
        sorted(client for client, each in asked.items() if naive.matches(each, message)) for message in batch
    ]
    assert sum(map(len, wanted)) > 40
    for step in range(3):
        matches = matcher.match(batch)
        assert [sorted(matches[index]) for index in range(len(batch))] == wanted, step
        assert matcher.rebuild(everything=step == 1) or step != 1
    assert len(matcher._view.segments) == 1
    for client in draw.sample(sorted(asked), 20):
        assert matcher.predicates(client) == asked[client]
        alone = matcher.matches(client, batch)
        assert alone.tolist() == [client in some for some in wanted]


def test_trees_and_keys_are_really_made() -> None:
    draw = random.Random("shape")
    matcher = Matcher(seed=5)
    for number in range(6000):
        low, left = draw.uniform(0, 990), draw.uniform(0, 990)
        pair = {"n0": Between(low, low + 10), "n1": Between(left, left + 10)}
        matcher.subscribe(number.to_bytes(12), popular_key(draw) if number % 2 else pair)
    matcher.rebuild(everything=True)
    (segment,) = matcher._view.segments
    keyless = int(segment.key_group[0])
    assert segment.boxes.size
    assert (segment.group_dims[:keyless, 1] >= 0).any(), "pairs of ranges without key"
    assert (segment.group_dims[keyless:, 0] >= 0).any(), "trees below a key"
    assert (np.diff(segment.group_begin) > 0).all()


def test_memory_of_many_subscriptions() -> None:
    matcher = Matcher(seed=6)
    draw = random.Random("memory")
    for number in range(20_000):
        matcher.subscribe(number.to_bytes(12), keys(draw))
    matcher.rebuild(everything=True)
    total, each = matcher.memory()
    assert each < 200
    assert total == pytest.approx(each * 20_000)


def test_attributes_of_many_names() -> None:
    """Each subscription names attributes of its own; a message has two of them."""
    matcher = Matcher(seed=11)
    for number in range(5000):
        asked: dict[str, Predicate] = {f"n{number}": Between(0, 1), f"m{number}": Between(0, 1)}
        matcher.subscribe(number.to_bytes(12), asked)
    matcher.rebuild(everything=True)
    said = [({}, {f"n{i}": 0.5, f"m{i + i % 2}": 0.5}, b"", ("", "", "")) for i in range(0, 4000, 7)]
    batch = batch_of(said)
    matches = matcher.match(batch)
    wanted = [[i.to_bytes(12)] if i % 2 == 0 else [] for i in range(0, 4000, 7)]
    assert [matches[index] for index in range(len(batch))] == wanted
