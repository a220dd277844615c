"""Streams as a part of the state: a function of the log's entries and messages, and of nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.state import HubState
from headrace.hub.streams import streams as entries
from headrace.hub.streams.stream import MAX_INHERITED, ForkOrigin, ProducerAppend, Range, Shape
from headrace.hub.streams.streams import Appended, Streams
from headrace.message import Batch, Run

TEXT = Shape("text/plain")
TOPICS = st.sampled_from(["a", "b", "c"])


class History:
    """A state that is told entries and messages one after another."""

    def __init__(self) -> None:
        self.streams = Streams()
        self.state = HubState(self.streams)
        self.op = self.seq = 0

    def take(self, batch: Batch, time: int = 0) -> None:
        self.op += 1
        if not batch.is_entries:
            self.seq += 1
        self.state.apply(batch.numbered(self.op, self.seq, time, 1))

    def publish(self, topic: str, time: int = 0) -> int:
        self.take(Batch(Run.of([b"x"]), origin="http", topic=topic), time)
        return self.seq


def test_a_stream_has_the_messages_after_its_creation() -> None:
    history = History()
    history.publish("a")
    history.take(entries.create("a", TEXT, 0))
    assert history.streams.get("a").ranges() == [Range("a", 1, 1)]  # type: ignore[union-attr]
    history.publish("a")
    history.publish("b")
    assert history.streams.get("a").ranges() == [Range("a", 1, 2)]  # type: ignore[union-attr]


def test_a_fork_has_its_sources_messages_and_outlives_it() -> None:
    history, streams = History(), None
    streams = history.streams
    history.take(entries.create("a", TEXT, 0))
    first = history.publish("a")
    history.publish("a")
    history.take(entries.create("b", Shape("text/plain", fork=ForkOrigin("a", first)), 0))
    history.publish("b")
    fork = streams.get("b")
    assert fork is not None
    assert fork.ranges() == [Range("a", 0, 1), Range("b", 2, 3)]
    history.take(entries.delete("a", 0))
    source = streams.get("a")
    assert source is not None
    assert source.deleted
    history.take(entries.create("a", TEXT, 0))
    assert streams.get("a") is source
    history.take(entries.delete("b", 0))
    assert streams.get("a") is None
    assert streams.forgotten("a") == 3


def test_a_closed_stream_has_no_more() -> None:
    history = History()
    history.take(entries.create("a", TEXT, 0))
    history.publish("a")
    history.take(entries.append("a", Appended(closes=True), 0))
    history.publish("a")
    assert history.streams.get("a").tail == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(("later", "there"), [(4_999_999, True), (5_000_000, False)])
def test_a_stream_that_nobody_uses_expires(later: int, there: bool) -> None:
    history = History()
    history.take(entries.create("a", Shape("text/plain", ttl=3), 0))
    history.publish("a", 1_000_000)
    history.take(entries.touch("a", 2_000_000))
    history.take(entries.create("a", Shape("text/html"), later))
    assert (history.streams.get("a").shape.ttl == 3) is there  # type: ignore[union-attr]


def test_watchers_are_woken_by_messages_and_changes() -> None:
    history, woken = History(), []

    def wake() -> None:
        woken.append(history.seq)

    history.streams.watch("a", wake)
    history.publish("b")
    history.publish("a")
    history.take(entries.create("a", TEXT, 0))
    assert woken == [2, 2]
    history.streams.unwatch("a", wake)
    history.publish("a")
    assert woken == [2, 2]


ORDERS = st.one_of(
    st.tuples(st.just("publish"), TOPICS),
    st.tuples(st.just("create"), TOPICS, st.sampled_from([None, 1, 5])),
    st.tuples(st.just("fork"), TOPICS, TOPICS),
    st.tuples(st.just("append"), TOPICS, st.integers(0, 2)),
    st.tuples(st.just("close"), TOPICS),
    st.tuples(st.just("touch"), TOPICS),
    st.tuples(st.just("delete"), TOPICS),
)


def run(history: History, order: tuple[Any, ...], time: int) -> None:
    match order:
        case ("publish", topic):
            history.publish(topic, time)
        case ("create", topic, ttl):
            history.take(entries.create(topic, Shape("text/plain", ttl=ttl), time))
        case ("fork", topic, source):
            fork = ForkOrigin(source, history.seq)
            history.take(entries.create(topic, Shape("text/plain", fork=fork), time))
        case ("append", topic, seq):
            history.take(entries.append(topic, Appended(ProducerAppend("p", 0, seq), str(seq)), time))
        case ("close", topic):
            history.take(entries.append(topic, Appended(closes=True), time))
        case ("touch", topic):
            history.take(entries.touch(topic, time))
        case ("delete", topic):
            history.take(entries.delete(topic, time))


@given(st.lists(ORDERS, max_size=40), st.integers(0, 40))
def test_a_snapshot_anywhere_changes_nothing(orders: list[tuple[Any, ...]], cut: int) -> None:
    whole, second = History(), History()
    for place, order in enumerate(orders):
        if place == cut:
            second.streams.load(whole.streams.dump())
            second.op, second.seq = whole.op, whole.seq
        run(whole, order, place * 1_000_000)
        if place >= cut:
            run(second, order, place * 1_000_000)
    if cut < len(orders):
        assert second.streams.dump() == whole.streams.dump()
    # Each fork counts, and nothing is kept for forks that are gone.
    for stream in whole.streams:
        forks = [each for each in whole.streams if each.source == stream.id]
        assert stream.forks == len(forks)
        assert not stream.deleted or forks


def test_a_long_chain_of_deleted_forks_is_forgotten_whole() -> None:
    history, many = History(), 3000
    history.take(entries.create("0", TEXT, 0))
    for place in range(1, many):
        history.take(entries.create(str(place), Shape("text/plain", fork=ForkOrigin(str(place - 1), 0)), 0))
    for place in range(many):
        history.take(entries.delete(str(place), 0))
    assert len(history.streams) == 0
    assert history.state.unread == 0


def test_a_fork_has_messages_of_so_many_topics_at_most() -> None:
    history = History()
    history.take(entries.create("0", TEXT, 0))
    for place in range(1, 2 * MAX_INHERITED):
        seq = history.publish(str(place - 1))
        history.take(entries.create(str(place), Shape("text/plain", fork=ForkOrigin(str(place - 1), seq)), 0))
    assert max(len(stream.inherited) for stream in history.streams) == MAX_INHERITED
    assert len(history.streams) == MAX_INHERITED + 1
