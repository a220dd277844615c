"""A service's past, made again from the log of a real hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from time import monotonic
from typing import Any

import pytest

import headrace
from headrace.errors import RefusedError, TrimmedError, UsageError
from headrace.testing import Hub


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub() as running:
        yield running


@pytest.fixture
def link(hub: Hub) -> Iterator[Any]:
    with hub.connect_sync("tube://") as client:
        yield client


def test_every_value_it_ever_had_is_found_again(hub: Hub, link: Any) -> None:
    random, seen = Random(7), {}
    link.publish(b"before there was a service", topic="fleet/7")
    with pytest.raises(RefusedError):
        link.service_as_of("fleet/7", link.head().head)
    link.create_service("fleet/7")
    link.create_service("fleet/8", "last")
    for turn in range(60):
        patch = {random.choice("abc"): random.choice([None, turn, {"x": turn}])}
        link.publish(json.dumps(patch).encode(), topic="fleet/8")
        seq = link.publish(json.dumps(patch).encode(), topic="fleet/7").last
        if turn % 20 == 10:
            link.publish(b"no object", topic="fleet/7")
        seen[seq] = link.service("fleet/7"), link.service("fleet/8")
        if turn == 30:
            link.remove_service("fleet/7")
            link.create_service("fleet/7")
    for seq, values in random.sample(sorted(seen.items()), 12):
        assert (link.service_as_of("fleet/7", seq), link.service_as_of("fleet/8", seq)) == values
    newest = max(seen)
    assert link.service_as_of("fleet/7", newest) == seen[newest][0]


def test_the_message_after_which_a_condition_first_held(link: Any) -> None:
    link.create_service("van")
    seqs = [link.publish(b'{"speed": %d}' % speed, topic="van").last for speed in (10, 50, 70, 20, 90)]
    assert link.service_bisect("van", headrace.where(speed=headrace.above(60))) == (seqs[2], b'{"speed":70}')
    either = headrace.where(speed=90) | headrace.where(speed=headrace.below(15))
    assert link.service_bisect("van", either)[0] == seqs[0]
    assert link.service_bisect("van", headrace.where(speed=1000)) is None
    assert link.service_bisect("nobody", headrace.where(speed=1)) is None


def test_a_message_that_is_not_there_yet_is_refused(link: Any) -> None:
    with pytest.raises(UsageError, match="newest"):
        link.service_as_of("van", 1 << 40)


def test_a_log_that_has_lost_its_beginning_says_so() -> None:
    settings = {"log.retain_bytes": 1 << 20, "log.segment_bytes": 1 << 18, "log.segment_seconds": 1}
    with Hub(settings) as hub, hub.connect_sync("tube://") as link:
        link.create_service("old")
        deadline = monotonic() + 60
        while link.head().first == 1:
            assert monotonic() < deadline, "nothing was trimmed"
            last = link.publish([b"x" * 1000] * 64, topic="bulk").last
        with pytest.raises(TrimmedError):
            link.service_as_of("old", last)
