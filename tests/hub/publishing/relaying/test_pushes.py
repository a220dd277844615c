"""Pushing on without a socket: what a PUSH carries, what is refused, what a lost hub means."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import HeadraceError, StorageError, UnavailableError
from headrace.hub.publishing.relaying.pushes import PushRelay
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import UNCLAIMED, Commit, Published
from headrace.log import Log
from headrace.message import Batch, Run


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(Log.open(tmp_path, fsync="never"), 1, max_uncommitted=1 << 20)


@pytest.fixture
def pushing(hub: Hub) -> PushRelay:
    made = PushRelay(hub, longest=10, patience=5.0, most=100, now=0.0)
    hub.sequencer = made
    return made


def submit(hub: Hub, payload: bytes, origin: str = "fyrehose") -> list[Batch | StorageError]:
    told: list[Batch | StorageError] = []
    hub.submit(Batch(Run.of([payload]), origin=origin), told.append)
    hub.turn(0)
    return told


def test_messages_are_pushed_in_order_and_nothing_more_is_known(hub: Hub, pushing: PushRelay) -> None:
    told = [submit(hub, b"a"), submit(hub, b"b", "spp")]
    assert pushing.first() is None, "there is no connection yet"
    pushing.connected()
    for payload in (b"a", b"b"):
        batch = pushing.first()
        assert batch is not None
        assert list(batch.run) == [payload]
        pushing.pushed(batch)
    assert [isinstance(each[0], Batch) for each in told] == [True, True]
    assert (pushing.size, pushing.first()) == (0, None)
    assert hub.counters.as_dict()["received"] == {"fyrehose": 1, "spp": 1}


@pytest.mark.parametrize(("payload", "origin"), [(b"a", "log"), (b"a", "tube"), (b"a" * 11, "fyrehose")])
def test_what_a_push_cannot_carry_is_refused(
    hub: Hub, pushing: PushRelay, payload: bytes, origin: str
) -> None:
    pushing.connected()
    (error,) = submit(hub, payload, origin)
    assert isinstance(error, UnavailableError)
    assert pushing.first() is None


def test_what_belongs_together_is_refused_whole(hub: Hub, pushing: PushRelay) -> None:
    pushing.connected()
    told: list[Batch | StorageError] = []
    hub.submit(Batch(Run.of([b"one"]), origin="spp"), told.append, tied=True)
    hub.submit(Batch(Run.of([b"two"]), origin="spp"), told.append, tied=True)
    hub.submit(Batch(Run.of([b"three"]), origin="spp"), told.append)
    alone = submit(hub, b"four", "spp")
    assert [type(each) for each in told] == [UnavailableError] * 3
    first = pushing.first()
    assert first is not None
    assert list(first.run) == [b"four"]
    pushing.pushed(first)
    assert (len(alone), pushing.first(), pushing.size) == (1, None, 0)


def test_what_wants_an_answer_is_refused(pushing: PushRelay) -> None:
    told: list[Published | HeadraceError | int | None] = []
    pushing.publish(
        Batch(Run.of([b"a"]), publisher="p", number=0),
        told.append,
        follows=False,
        preceding=(),
        claim=UNCLAIMED,
    )
    pushing.commit("q", 0, [], told.append, Commit())
    pushing.newest("p", told.append)
    assert [type(each) for each in told] == [UnavailableError] * 3


def test_who_waits_too_long_is_refused(hub: Hub, pushing: PushRelay) -> None:
    relieved: list[bool] = []
    hub.relieved = lambda: relieved.append(True)
    pushing.connected()
    told = [submit(hub, b"0123456789") for _ in range(11)]
    under_way = pushing.first()
    assert under_way is not None
    assert hub.congested
    pushing.lost(100.0)
    pushing.tick(104.9)
    assert told[0] == []
    pushing.tick(105.0)
    assert [type(each[0]) for each in told] == [UnavailableError] * 11
    assert (hub.congested, relieved) == (False, [True])
    pushing.connected()
    later = submit(hub, b"later")
    pushing.pushed(under_way)
    assert later == [], "only what was pushed is done"
