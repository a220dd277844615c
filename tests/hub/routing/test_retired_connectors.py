"""Connectors that never come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.hub.routing.retired_connectors import RetiredConnectors
from headrace.hub.routing.subscription_parts import (
    serialize_fields,
)
from headrace.hub.routing.subscriptions import (
    Subscriptions,
    alive,
    move,
    subscribe,
)
from headrace.hub.sequence import Hub
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.wire.sdk.predicate import Equals

HERE, EAST, WEST = b"here0001", b"east0001", b"west0001"
FIELDS = serialize_fields({"a": Equals("b")})


class Scene:
    def __init__(self, directory: Path, own: bytes | None) -> None:
        self.log = Log.open(directory, fsync="never")
        self.subscriptions = Subscriptions()
        self.hub = Hub(self.log, 1, max_uncommitted=1 << 30, state=HubState(self.subscriptions))
        self.retiring = RetiredConnectors(self.hub, self.subscriptions, own, keep_seconds=300.0)

    def enter(self, *entries: Any) -> None:
        for entry in entries:
            self.hub.submit(entry)
        self.hub.turn(1)

    def tick(self, now: float) -> None:
        self.retiring.tick(now)
        self.hub.turn(1)

    @property
    def places(self) -> list[bytes]:
        return sorted(kept.connector for _, kept in self.subscriptions)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path, HERE)
    yield scene
    scene.log.close()


def clients(count: int, connector: bytes, first: int = 0) -> list[Any]:
    return [subscribe((first + n).to_bytes(12), connector, FIELDS) for n in range(count)]


def test_a_connector_that_is_silent_for_too_long_is_given_up(scene: Scene) -> None:
    scene.tick(1000.0)
    scene.enter(*clients(2, EAST), *clients(1, WEST, 10), *clients(1, HERE, 20))
    scene.tick(1200.0)
    scene.enter(alive(WEST))
    scene.tick(1299.0)
    assert scene.places == [EAST, EAST, HERE, WEST]
    scene.tick(1300.0)
    assert scene.places == [HERE, WEST]
    assert scene.hub.counters.get("subscriptions_expired") == 2
    scene.tick(1500.0)
    assert scene.places == [HERE]


def test_any_entry_is_a_sign_of_life(scene: Scene) -> None:
    scene.tick(1000.0)
    scene.enter(*clients(2, EAST))
    scene.tick(1200.0)
    scene.enter(move(bytes(12), EAST))
    scene.tick(1400.0)
    assert scene.places == [EAST, EAST]


def test_what_comes_before_the_first_tick_is_as_young_as_that(scene: Scene) -> None:
    scene.enter(*clients(1, EAST), alive(EAST))
    scene.tick(5000.0)
    scene.tick(5299.0)
    assert scene.places == [EAST]


def test_after_a_restart_the_time_begins_anew(scene: Scene) -> None:
    scene.enter(*clients(1, EAST))
    again = RetiredConnectors(scene.hub, scene.subscriptions, HERE, 300.0)
    again.tick(5000.0)
    again.tick(5299.0)
    scene.hub.turn(1)
    assert scene.places == [EAST]
    again.tick(5300.0)
    scene.hub.turn(1)
    assert scene.places == []


def test_very_many_are_given_up_bit_by_bit(scene: Scene) -> None:
    scene.tick(1000.0)
    scene.enter(*clients(1500, EAST))
    scene.tick(1300.0)
    assert len(scene.subscriptions) == 500
    scene.tick(1300.25)
    assert len(scene.subscriptions) == 0


class Upstream:
    """Whoever numbers messages instead of this hub."""

    congested = False

    def __init__(self) -> None:
        self.ordered: list[str] = []

    def order(self, submitted: Any) -> None:
        self.ordered += [submission.batch.topic for submission in submitted]


def test_elsewhere_signs_of_life_are_given_while_there_are_subscriptions(tmp_path: Path) -> None:
    scene = Scene(tmp_path, EAST)
    upstream = Upstream()
    scene.tick(1000.0)
    scene.enter(*clients(1, EAST), *clients(1, WEST, 10))
    scene.hub.sequencer = upstream  # type: ignore[assignment]
    for now in (1100.0, 1150.0, 1200.0, 5000.0):
        scene.tick(now)
    assert upstream.ordered == ["subscription/"] * 3
    scene.hub.sequencer = None
    scene.enter(subscribe(bytes(12), EAST, {}))
    scene.hub.sequencer = upstream  # type: ignore[assignment]
    scene.tick(9000.0)
    assert len(upstream.ordered) == 3
    scene.log.close()
