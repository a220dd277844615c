"""Owners of ids against a plain dictionary, compiled and in plain Python, while names come and go."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.matching.drawn import batch_of

from headrace.errors import UsageError
from headrace.matching import Matcher, Matches, owners, warm
from headrace.matching.owners import FIRST_SLOTS, merge_owners, number_owners
from headrace.wire.sdk.predicate import Between

CLIENTS = st.integers(0, 5).map(lambda n: bytes([0xC, n]) * 6)
IDS = st.integers(0, 200).map(lambda n: bytes([0x1D, n]) * 6)
FOUND = st.lists(st.dictionaries(IDS, CLIENTS, max_size=12), max_size=6)
BATCH = batch_of([({}, {"n": float(number)}, b"", ("", "", "")) for number in range(8)])


def matches_of(found: list[dict[bytes, bytes]]) -> Matches:
    offsets = np.cumsum([0, *map(len, found)], dtype=np.int64)
    ids, owning = (
        np.frombuffer(b"".join(b"".join(each) for each in some), np.uint8).reshape(-1, 12)
        for some in (found, [each.values() for each in found])
    )
    return Matches(offsets, ids, owning)


@given(FOUND)
def test_owners_follow_a_plain_model(found: list[dict[bytes, bytes]]) -> None:
    warm()
    matches = matches_of(found)
    merged = merge_owners(matches)
    assert [sorted(merged[row]) for row in range(len(merged))] == [
        sorted(set(some.values())) for some in found
    ]
    distinct, numbers = number_owners(matches)
    clients = [client.tobytes() for client in distinct]
    assert len(set(clients)) == len(clients)
    assert [clients[number] for number in numbers] == [each for some in found for each in some.values()]


def many() -> Matches:
    """More owners than the first table has room for, each of several ids."""
    some = {number.to_bytes(12): (1 << 40 | number % 700).to_bytes(12) for number in range(3 * FIRST_SLOTS)}
    return matches_of([some, {}, dict(list(some.items())[::3])])


def test_a_table_of_owners_grows() -> None:
    warm()
    merged = merge_owners(many())
    assert [len(merged[row]) for row in range(3)] == [700, 0, 3 * FIRST_SLOTS // 3]
    assert len(set(merged[2])) == len(merged[2])


@pytest.mark.parametrize("name", ["number_some", "take_once"])
def test_plain_python_finds_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a kernel is compiled, plain Python does its work on the same arrays."""
    warm()
    compiled = merge_owners(many())
    plain: Callable[..., Any] = getattr(owners, name)._plain
    monkeypatch.setattr(owners, name, plain)
    merged = merge_owners(many())
    assert [merged[row] for row in range(3)] == [compiled[row] for row in range(3)]


def test_a_matcher_names_the_owner_of_each_id() -> None:
    matcher, owner = Matcher(seed=1), b"client-01234"
    for number in range(4):
        matcher.subscribe(number.to_bytes(12), {"n": Between(number, 9)})
    assert matcher.match(BATCH).owners is None
    matcher.subscribe((1).to_bytes(12), {"n": Between(1, 9)}, owner)
    matcher.subscribe((2).to_bytes(12), {"n": Between(2, 9)}, owner)
    for _ in range(2):
        merged = merge_owners(matcher.match(BATCH))
        assert [sorted(merged[row]) for row in range(4)] == [
            [bytes(12)],
            [bytes(12), owner],
            [bytes(12), owner],
            sorted([bytes(12), owner, (3).to_bytes(12)]),
        ]
        matcher.rebuild(everything=True)
    # Its own again: nothing is left of the owner, in the tail and in the index.
    for number in (1, 2):
        matcher.subscribe(number.to_bytes(12), {"n": Between(0, 9)})
    matcher.rebuild(everything=True)
    assert matcher.match(BATCH).owners is None
    with pytest.raises(UsageError):
        matcher.subscribe(bytes(12), {"n": Between(0, 1)}, b"short")


def test_every_id_has_its_own_owner_while_names_come_and_go() -> None:
    """One thread changes names and another rebuilds; a third matches, and never finds another client's."""
    warm()
    matcher, stop, draw = Matcher(seed=6), threading.Event(), random.Random("names")
    wrong: list[tuple[bytes, bytes]] = []

    def owner_of(each: int) -> bytes:
        return (1 << 40 | each // 10).to_bytes(12)

    def look() -> None:
        while not stop.is_set():
            matches = matcher.match(BATCH)
            if matches.owners is not None:
                pairs = zip(matches.clients, matches.owners, strict=True)
                found = {(one.tobytes(), other.tobytes()) for one, other in pairs}
                wrong.extend(pair for pair in found if owner_of(int.from_bytes(pair[0])) != pair[1])

    def rebuild() -> None:
        while not stop.is_set():
            matcher.rebuild(everything=True)

    threads = [threading.Thread(target=work) for work in (look, rebuild)]
    for thread in threads:
        thread.start()
    for _ in range(8000):
        number = draw.randrange(400)
        if draw.random() < 0.4:
            matcher.withdraw(number.to_bytes(12))
        else:
            matcher.subscribe(number.to_bytes(12), {"n": Between(0, draw.random() * 9)}, owner_of(number))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
