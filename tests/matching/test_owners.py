"""Owners of ids against a plain dictionary, compiled and in plain Python, while ids come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.matching import Matches, owners, warm
from headrace.matching.owners import FIRST_ROOM, Owners

CLIENTS = st.integers(0, 5).map(lambda n: bytes([0xC, n]) * 6)
IDS = st.integers(0, 200).map(lambda n: bytes([0x1D, n]) * 6)
ADD, RELEASE = st.tuples(IDS, CLIENTS), st.tuples(IDS, st.none())
FOUND = st.lists(st.lists(st.one_of(IDS, CLIENTS), unique=True, max_size=12), max_size=6)


def matches_of(found: list[list[bytes]]) -> Matches:
    offsets = np.cumsum([0, *map(len, found)], dtype=np.int64)
    ids = b"".join(each for some in found for each in some)
    return Matches(offsets, np.frombuffer(ids, np.uint8).reshape(-1, 12))


@given(st.lists(st.one_of(ADD, RELEASE), max_size=400), FOUND)
def test_owners_follow_a_plain_model(
    changes: list[tuple[bytes, bytes | None]], found: list[list[bytes]]
) -> None:
    warm()
    table, model = Owners(seed=3), dict[bytes, bytes]()
    for each, owner in changes:
        if owner is None:
            table.release(each)
            model.pop(each, None)
        else:
            table.add(each, owner)
            model[each] = owner
    merged = table.merge(matches_of(found))
    assert [sorted(merged[row]) for row in range(len(merged))] == [
        sorted({model.get(each, each) for each in some}) for some in found
    ]
    distinct, numbers = table.number(matches_of(found))
    clients = [client.tobytes() for client in distinct]
    assert len(set(clients)) == len(clients)
    assert [clients[number] for number in numbers] == [
        model.get(each, each) for some in found for each in some
    ]


def test_released_ids_make_room() -> None:
    """A client that renames its subscriptions for ever takes no more memory."""
    table = Owners(seed=4)
    kept = b"kept-for-all"
    table.add(kept, b"client-01234")
    for number in range(50 * FIRST_ROOM):
        each = number.to_bytes(12)
        table.add(each, b"client-56789")
        table.release(each)
    assert len(table._table.ids) <= 2 * FIRST_ROOM
    assert table.merge(matches_of([[kept, each]]))[0] == [b"client-01234", each]


@pytest.mark.parametrize("name", ["file_owned", "number_owners", "take_once"])
def test_plain_python_finds_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a kernel is compiled, plain Python does its work on the same table."""
    warm()

    def merged() -> list[list[bytes]]:
        table = Owners(seed=5)
        for number in range(3 * FIRST_ROOM):
            table.add(number.to_bytes(12), (1000 + number % 7).to_bytes(12))
        found = table.merge(matches_of([[n.to_bytes(12) for n in range(row, 300, 11)] for row in range(9)]))
        return [found[row] for row in range(len(found))]

    compiled = merged()
    plain: Callable[..., Any] = getattr(owners, name)._plain
    monkeypatch.setattr(owners, name, plain)
    assert merged() == compiled


def test_another_thread_finds_an_unchanged_id_while_others_come_and_go() -> None:
    warm()
    table, kept, client = Owners(seed=6), b"kept-for-all", b"client-01234"
    table.add(kept, client)
    found, stop = matches_of([[kept]] * 64), threading.Event()
    wrong: list[bytes] = []

    def look() -> None:
        while not stop.is_set():
            wrong.extend(each.tobytes() for each in table.merge(found).clients if each.tobytes() != client)

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(20_000):
        table.add((number % 5000).to_bytes(12), client)
        if number % 3:
            table.release((number % 4999).to_bytes(12))
    stop.set()
    thread.join()
    assert not wrong
