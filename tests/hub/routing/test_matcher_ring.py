from __future__ import annotations

import hashlib

import pytest

from headrace.hub.routing.matcher_ring import Matchers, join, leave
from headrace.message import Batch, node_id


def start(name: str) -> bytes:
    return hashlib.sha1(name.encode()).digest()


def take(matchers: Matchers, batch: Batch, seq: int) -> None:
    (message,) = batch
    kind, _, name = message.topic.partition("/")
    assert kind == matchers.name
    matchers.apply(name, message.payload, seq)


def test_matchers_join_and_leave_by_entries() -> None:
    matchers, seqs = Matchers(), list[int]()
    matchers.changed = seqs.append
    assert matchers.owner(bytes(12)) is None
    take(matchers, join("one", start("one")), 1)
    assert matchers.owner(bytes(12)) == node_id("one")
    take(matchers, join("two", start("two")), 2)
    owners = {matchers.owner(n.to_bytes(12)) for n in range(100)}
    assert owners == {node_id("one"), node_id("two")}
    take(matchers, leave("one"), 3)
    assert {matchers.owner(n.to_bytes(12)) for n in range(100)} == {node_id("two")}
    assert seqs == [1, 2, 3]


def test_a_snapshot_brings_the_ring_back() -> None:
    one, other = Matchers(), Matchers()
    for name in ("a", "b", "c"):
        take(one, join(name, start(name)), 1)
    other.load(one.dump())
    assert other.ring.starts == one.ring.starts


@pytest.mark.parametrize("payload", [b"x", b'{"start": "zz"}', b'{"start": "00"}'])
def test_an_entry_that_says_nothing_is_passed_over(payload: bytes) -> None:
    matchers = Matchers()
    matchers.apply("one", payload, 1)
    assert not len(matchers.ring)


def test_a_ring_has_so_many_whoever_wrote_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.hub.routing.matcher_ring.MAX_MATCHERS", 2)
    matchers = Matchers()
    for seq, name in enumerate(("one", "two", "three", "one"), 1):
        take(matchers, join(name, start(name)), seq)
    assert matchers.ring.matchers == ("one", "two")
