"""A full disk: publishers are refused and told why, nothing is damaged, everybody else is served, and it passes.

No test can fill a disk that is not its own. A limit on the size of a file that the hub may write looks the same to
it: a write ends half-way and then fails, until there is room again.
"""

from __future__ import annotations

import resource
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tests.hubprocess import HubProcess
from tests.system.history import History, Source
from tests.system.observing import counter, eventually, head, soft_limit
from tests.system.rawclient import Publisher, Subscriber, UdpPublisher

from headrace.wire.fyrehose.stream import DeliverRun

MESSAGES = 100
"""What is published at a time: about 100 kB."""


@contextmanager
def full(hub: HubProcess, size: int) -> Iterator[None]:
    """No file of the hub's can grow past ``size`` meanwhile."""
    soft, hard = resource.prlimit(hub.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(hub.pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        if hub.running:
            resource.prlimit(hub.pid, resource.RLIMIT_FSIZE, (soft, hard))


def tail_size(hub: HubProcess) -> int:
    return max((hub.data / "log").glob("*.open")).stat().st_size


def publish(hub: HubProcess, source: Source) -> int:
    """Publish :data:`MESSAGES`, and tell how many the hub took: all, or the first ones, and then it disconnects."""
    before, refused = head(hub), counter(hub, "refused", "fyrehose/storage")
    with Publisher(hub.address("fyrehose")) as publisher, suppress(ConnectionError):
        publisher.push(source.take(MESSAGES))
        publisher.finish()
    eventually(
        "all are taken, or some refused",
        lambda: head(hub) == before + MESSAGES or counter(hub, "refused", "fyrehose/storage") > refused,
    )
    return head(hub) - before


def test_publishers_are_refused_until_there_is_room(tmp_path: Path, random: Random) -> None:
    source = Source(1, random)
    with HubProcess.start(tmp_path) as hub, Subscriber(hub.address("fyrehose")) as subscriber:
        assert subscriber.subscribed.wait(10)
        assert publish(hub, source) == MESSAGES
        with full(hub, tail_size(hub) + 250_000):
            taken = []
            while (count := publish(hub, source)) == MESSAGES:
                taken.append(count)
            assert 0 < len(taken) < 5
            # Whoever tries again is refused again, by any way in, and told why.
            assert publish(hub, source) < MESSAGES
            assert counter(hub, "refused", "fyrehose/storage") >= 2
            assert 0 < counter(hub, "refused_messages", "fyrehose/storage") <= 2 * MESSAGES
            assert "(storage, 1 so far): " in hub.stderr
            assert ".open: file too large; free space or lower log.retain_bytes" in hub.stderr
            with full(hub, tail_size(hub)), UdpPublisher(hub.address("fyrehose")) as datagrams:
                refused = counter(hub, "refused", "fyrehose/storage")
                datagrams.push(Source(2, random).take(1))
                eventually(
                    "a datagram is refused",
                    lambda: counter(hub, "refused", "fyrehose/storage") == refused + 1,
                )
            # Nobody else is touched: what there is can be had, live and again.
            newest = head(hub)
            eventually("the subscriber has all that was taken", lambda: subscriber.last == newest)
            with Subscriber(hub.address("fyrehose")) as late:
                late.request(1, newest)
                eventually("it can be asked for", lambda: late.received == newest)
                seen = late.runs
        assert publish(hub, source) == MESSAGES
        assert publish(hub, source) == MESSAGES
        eventually("the subscriber follows", lambda: subscriber.last == newest + 2 * MESSAGES)
        assert subscriber.breaks == []
        hub.terminate()
    check(hub, newest + 2 * MESSAGES, [*subscriber.runs, *seen])


def test_killed_while_full_and_started_while_full(tmp_path: Path, random: Random) -> None:
    source = Source(1, random)
    with HubProcess.start(tmp_path) as hub:
        assert publish(hub, source) == MESSAGES
        room = tail_size(hub) + 50_000
        with full(hub, room):
            assert publish(hub, source) < MESSAGES
            assert publish(hub, source) < MESSAGES
            newest = head(hub)
            hub.kill9()
        with soft_limit(resource.RLIMIT_FSIZE, room):
            hub.restart()
        assert head(hub) == newest
        newest += (count := publish(hub, source))
        assert count < MESSAGES
        with Subscriber(hub.address("fyrehose")) as subscriber:
            subscriber.request(1, newest)
            eventually("what there is can be had", lambda: subscriber.received == newest)
        # Space returns to the running hub.
        resource.prlimit(hub.pid, resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE))
        assert publish(hub, source) == MESSAGES
        hub.terminate()
    check(hub, newest + MESSAGES, subscriber.runs)


def test_sealing_waits_for_room(tmp_path: Path, random: Random) -> None:
    source = Source(1, random)
    with HubProcess.start(tmp_path) as hub:
        assert publish(hub, source) == MESSAGES
        with full(hub, tail_size(hub) // 2):
            # The messages are of random bytes, so they are no shorter when they are sealed.
            request = urllib.request.Request(
                f"http://{hub.doors['http']}/api/log/seal", method="POST", headers={"X-Headrace": "1"}
            )
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=30)
            with refused.value as answer:
                assert (answer.status, b"file too large" in answer.read()) == (507, True)
            eventually("the hub tries again", lambda: counter(hub, "upkeep_failures") > 1)
            assert counter(hub, "segments_sealed") == 0
        eventually("it is sealed", lambda: counter(hub, "segments_sealed") == 1)
        assert publish(hub, source) == MESSAGES
        hub.terminate()
    assert [path.name for path in (hub.data / "log").glob("*.making")] == []
    check(hub, 2 * MESSAGES, [])


def test_stopped_while_nothing_at_all_can_be_written(tmp_path: Path, random: Random) -> None:
    source = Source(1, random)
    with HubProcess.start(tmp_path) as hub:
        assert publish(hub, source) == MESSAGES
        with full(hub, 0):
            assert publish(hub, source) == 0
            hub.terminate()
    check(hub, MESSAGES, [])


def check(hub: HubProcess, newest: int, seen: list[DeliverRun]) -> None:
    """The log is sound, holds what was taken and nothing of what was refused, and is what was seen."""
    history = History(hub.data / "log")
    assert (history.first, history.head) == (1, newest)
    assert history.compare(seen) == sum(len(run.seqs) for run in seen)
    counts = history.stamps()["count"].astype(np.int64)
    assert (np.diff(counts) > 0).all()
    # What is missing is the end of what somebody published, up to the next one who did.
    assert (counts[1:][np.diff(counts) > 1] % MESSAGES == 1).all()
