"""Matching, changing and rebuilding at once: a match sees one version, whole."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.matching.drawn import batch_of

from headrace.matching import Matcher
from headrace.message import Batch
from headrace.wire.sdk.predicate import Between, Equals, Predicate

CLIENTS = [number.to_bytes(12) for number in range(3000)]
BATCH: Batch = batch_of([({"t": f"v{index}"}, {"n": float(index)}, b"", ("", "", "")) for index in range(8)])


def _both(draw: random.Random) -> dict[str, Predicate]:
    """One of many ways to say what every message of the batch satisfies."""
    return draw.choice(
        [
            {"n": Between(-draw.random(), 100 + draw.random())},
            {"n": Between(-1, 50), "size": Between(0, draw.randrange(9))},
        ]
    )


@contextmanager
def _running(work: threading.Thread) -> Iterator[None]:
    work.start()
    try:
        yield
    finally:
        work.join(60)
        assert not work.is_alive()


def test_a_client_that_replaces_its_subscription_is_always_found_once() -> None:
    draw = random.Random("threads")
    matcher = Matcher(seed=7)
    for client in CLIENTS:
        matcher.subscribe(client, _both(draw))
    stop = threading.Event()
    failures: list[str] = []

    def match() -> None:
        while not stop.is_set():
            matches = matcher.match(BATCH)
            for index in range(len(BATCH)):
                found = matches[index]
                if sorted(found) != CLIENTS:
                    failures.append(f"{len(found)} rows, {len(set(found))} clients of {len(CLIENTS)}")
                    return

    def rebuild() -> None:
        while not stop.is_set():
            matcher.rebuild(everything=draw.random() < 0.5)

    with _running(threading.Thread(target=match)), _running(threading.Thread(target=rebuild)):
        for _ in range(6000):
            matcher.subscribe(draw.choice(CLIENTS), _both(draw))
        stop.set()
    assert not failures
    assert len(matcher) == len(CLIENTS)


def test_changes_during_a_rebuild_are_in_what_it_makes() -> None:
    draw = random.Random("rebuild")
    matcher = Matcher(seed=8)
    asked: dict[bytes, dict[str, Predicate]] = {}
    stop = threading.Event()

    def rebuild() -> None:
        while not stop.is_set():
            matcher.rebuild(everything=True)

    with _running(threading.Thread(target=rebuild)):
        for step in range(9000):
            client = draw.choice(CLIENTS)
            if draw.random() < 0.3:
                assert matcher.withdraw(client) == (asked.pop(client, None) is not None), step
            else:
                asked[client] = {"t": Equals(f"v{draw.randrange(20)}")}
                matcher.subscribe(client, asked[client])
        stop.set()
    assert len(matcher) == len(asked)
    assert {client: matcher.predicates(client) for client in asked} == asked
    matches = matcher.match(BATCH)
    for index in range(len(BATCH)):
        wanted = sorted(client for client, each in asked.items() if each["t"] == Equals(f"v{index}"))
        assert sorted(matches[index]) == wanted


def test_only_one_rebuilds_at_a_time() -> None:
    matcher = Matcher(seed=9)
    matcher.subscribe(CLIENTS[0], {"t": Equals("a")})
    with matcher._rebuilding:
        assert not matcher.rebuild(everything=True)
        assert not matcher.rebuild_due
    assert matcher.rebuild(everything=True)
