from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.matching import Ring

names = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=6, unique=True)
ids = st.binary(min_size=12, max_size=12)


def _owner(starts: dict[str, int], client: bytes) -> str:
    """The first vnode at or after the client's hash, counted off one by one."""
    wanted = int.from_bytes(hashlib.sha1(client).digest())
    ring = 1 << 160
    vnodes = [(start + index * (ring // 16)) % ring for start in starts.values() for index in range(16)]
    distance = min((vnode - wanted) % ring for vnode in vnodes)
    place = (wanted + distance) % ring
    return min(name for name, start in starts.items() if (place - start) % (ring // 16) == 0)


@given(names, st.lists(ids, min_size=1, max_size=20))
def test_a_client_belongs_to_the_next_vnode(matchers: list[str], clients: list[bytes]) -> None:
    ring = Ring(*matchers)
    starts = {name: int.from_bytes(hashlib.sha1(name.encode()).digest()) for name in matchers}
    wanted = [_owner(starts, client) for client in clients]
    assert [ring.owner(client) for client in clients] == wanted
    rows = np.frombuffer(b"".join(clients), np.uint8).reshape(-1, 12)
    assert [ring.matchers[index] for index in ring.owners(rows)] == wanted


@given(st.binary(min_size=20, max_size=20), ids)
def test_a_vnode_at_the_very_place_of_a_client_has_it(start: bytes, client: bytes) -> None:
    ring = Ring("elsewhere")
    ring.join("there", hashlib.sha1(client).digest())
    ring.join("random", start)
    assert ring.owner(client) == "there" or start == hashlib.sha1(client).digest()


def test_zeros_at_the_end_of_a_place_change_no_order() -> None:
    ring = Ring()
    ring.join("low", b"\x10" + bytes(19))
    ring.join("high", b"\x10" + bytes(18) + b"\x01")
    assert ring.vnodes("low")[0] == b"\x10" + bytes(19)
    assert ring.matchers == ("high", "low")
    # Each sixteenth begins with a vnode of low, right before one of high: all others belong to low.
    rows = np.random.default_rng(1).integers(0, 256, (500, 12), np.uint8)
    assert {ring.matchers[index] for index in ring.owners(rows)} == {"low"}


def test_joining_and_leaving_move_only_a_share() -> None:
    rows = np.random.default_rng(2).integers(0, 256, (20_000, 12), np.uint8)

    def owners(ring: Ring) -> list[str]:
        return [ring.matchers[index] for index in ring.owners(rows)]

    ring = Ring("m1", "m2", "m3")
    before = owners(ring)
    ring.join("m4")
    after = owners(ring)
    moved = {(old, new) for old, new in zip(before, after, strict=True) if old != new}
    assert {new for _, new in moved} == {"m4"}
    assert 0 < after.count("m4") < 15_000
    assert ring.leave("m4")
    assert owners(ring) == before
    assert not ring.leave("m4")
    ring.leave("m2")
    assert all(old == new for old, new in zip(before, owners(ring), strict=True) if old != "m2")


def test_two_at_one_place() -> None:
    ring = Ring()
    for name in ("b", "a", "c"):
        ring.join(name, bytes(20))
    assert len(ring) == 3
    assert ring.owner(bytes(12)) == "a"
    assert "a" in ring
    assert ring.starts == dict.fromkeys(("b", "a", "c"), bytes(20))


def test_mistakes_are_named() -> None:
    ring = Ring()
    with pytest.raises(UsageError, match="no matcher"):
        ring.owner(bytes(12))
    with pytest.raises(UsageError, match="11 bytes"):
        Ring("a").owner(bytes(11))
    with pytest.raises(UsageError, match="19 bytes"):
        ring.join("a", bytes(19))
    with pytest.raises(UsageError, match="not on the ring"):
        ring.vnodes("a")
    with pytest.raises(UsageError, match="shape"):
        Ring("a").owners(np.zeros(12, np.uint8))
