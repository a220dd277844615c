"""Promise 1: a message that was delivered is in the log, with the same number and bytes, whenever the hub is killed.

Publishers push as fast as they like, subscribers keep all they are sent, the hub is killed with SIGKILL at a random
moment and started again on what it left, many times over. In the end the log is read without a hub and compared
with what every subscriber saw.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tests.conftest import SOAK
from tests.hubprocess import HubProcess
from tests.system.history import History, Source
from tests.system.observing import eventually, status
from tests.system.rawclient import Publisher, Subscriber, UdpPublisher, UdpSubscriber

from headrace.wire.fyrehose.stream import DeliverRun

SOONEST, LATEST = 0.01, 0.5
"""Seconds from when messages flow until the hub is killed."""


@dataclass(frozen=True)
class Scenario:
    """Settings that make a kill meet the hub at other work, and how often it does."""

    rounds: int
    settings: tuple[str, ...] = ()
    pauses: tuple[float, ...] = (0.0, 0.0, 0.001, 0.003)
    """Seconds that a publisher may wait before it pushes again."""
    trims: bool = False


SCENARIOS = {
    "plain": Scenario(6),
    # Every commit waits for the disk: kills fall between the append and its sync.
    "fsync_always": Scenario(3, ("log.fsync=always",)),
    # A new segment every few milliseconds, and always one being sealed, a snapshot written, or the oldest removed.
    "segments": Scenario(
        5,
        (
            "log.fsync=never",
            "log.segment_bytes=64KiB",
            "log.segment_seconds=0.02",
            "log.snapshot_seconds=0.02",
            "log.retain_bytes=1MiB",
        ),
        # Slow enough for sealing to keep up, else there would be little but tails.
        pauses=(0.001, 0.005, 0.01),
        trims=True,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_whatever_was_delivered_is_in_the_log(tmp_path: Path, random: Random, scenario: Scenario) -> None:
    sources = [Source(number, Random(random.random())) for number in range(3)]
    kills = scenario.rounds * 10 if SOAK else scenario.rounds
    seen: list[DeliverRun] = []
    newest = 0
    with HubProcess.start(tmp_path, *scenario.settings) as hub:
        log = status(hub)["log"]
        for _ in range(kills):
            runs = _traffic_until_killed(hub, sources, scenario.pauses, random)
            newest = max([newest, *(int(run.seqs.max()) for run in runs)])
            seen += runs
            hub.restart()
            now = status(hub)
            assert now["log"] == log
            assert now["head"] >= newest
        hub.terminate()
    history = History(hub.data / "log")
    assert str(history.uuid) == log
    # Whether retention came to trim anything depends on how busy the machine is.
    assert scenario.trims or history.first == 1
    compared = history.compare(seen)
    assert scenario.trims or compared == sum(len(run.seqs) for run in seen)
    assert compared > 0
    _check_order(history, kills)


def _traffic_until_killed(
    hub: HubProcess, sources: list[Source], pauses: tuple[float, ...], random: Random
) -> list[DeliverRun]:
    """Publish, subscribe, kill the hub while both go on; give what all subscribers saw."""
    address = hub.address("fyrehose")
    with ExitStack() as stack:
        streams = [stack.enter_context(Subscriber(address)) for _ in range(2)]
        subscribers = [*streams, stack.enter_context(UdpSubscriber(address))]
        for subscriber in subscribers:
            assert subscriber.subscribed.wait(10)
        stop = threading.Event()
        publishers = [Publisher(address), Publisher(address), UdpPublisher(address)]
        threads = [
            threading.Thread(target=_publish, args=(publisher, source, stop, pauses, Random(random.random())))
            for publisher, source in zip(publishers, sources, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            eventually("messages flow to every subscriber", lambda: all(each.last for each in subscribers))
            time.sleep(random.uniform(SOONEST, LATEST))
            hub.kill9()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        for stream in streams:
            # What had left the hub before it died is still to be read.
            stream.join(10)
            assert stream.breaks == []
    return [run for subscriber in subscribers for run in subscriber.runs]


def _publish(
    publisher: Publisher, source: Source, stop: threading.Event, pauses: tuple[float, ...], random: Random
) -> None:
    """Push small batches and large, until told to stop or the hub is gone."""
    counts = (1, 2, 8) if isinstance(publisher, UdpPublisher) else (1, 3, 20, 100)
    with publisher:
        while not stop.wait(random.choice(pauses)):
            try:
                publisher.push(source.take(random.choice(counts)))
            except ConnectionError:
                return


def _check_order(history: History, kills: int) -> None:
    """Each source's messages are in the order it sent them, and over TCP missing only where a kill took some."""
    stamps = history.stamps()
    for number in (0, 1, 2):
        steps = np.diff(stamps["count"][stamps["source"] == number].astype(np.int64))
        assert (steps > 0).all()
        if number != 2:
            assert np.count_nonzero(steps > 1) <= kills
