"""What the log's state keeps of durable consumers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LimitError, MalformedError, RefusedError, StorageError
from headrace.hub.consumers.cursors import (
    MAX_CONSUMERS,
    MAX_NAME,
    MAX_RANGES,
    Consumer,
    ConsumerEvent,
    ConsumerRemoved,
    ConsumerReset,
    Consumers,
    Lag,
    RangesForgotten,
    create,
    remove,
    reset,
    settle,
)
from headrace.hub.consumers.dead_letters import bury
from headrace.hub.consumers.outstanding import spans
from headrace.hub.consumers.settlements import Settled, TurnEntries, decode, encode, entries
from headrace.hub.consumers.terms import MAX_ACK_SECONDS, MAX_TERMS, Terms
from headrace.hub.state import HubState
from headrace.message import MAX_SEQUENCE, SCHEMA, Batch, Message, Run
from headrace.protocols import DEAD_LETTER


class Hub:
    """A log of batches and the state that follows from it."""

    def __init__(self) -> None:
        self.consumers = Consumers()
        self.state = HubState(self.consumers)
        self.batches: list[Batch] = []

    def submit(self, batch: Batch) -> Batch:
        seq = self.state.seq
        numbered = batch.numbered(self.state.op + 1, seq if batch.is_entries else seq + 1, 0, 1)
        self.batches.append(numbered)
        self.state.apply(numbered)
        return numbered

    def replayed(self) -> bytes:
        consumers = Consumers()
        state = HubState(consumers)
        for batch in self.batches:
            state.apply(batch)
        return consumers.dump()

    def one(self) -> Consumer:
        (consumer,) = self.consumers
        return consumer


def hub_with(start: int = 1, terms: Terms | None = None) -> Hub:
    hub = Hub()
    hub.submit(create("c", terms or Terms(), start))
    return hub


def done(hub: Hub, *ranges: tuple[int, int]) -> Batch:
    return settle(Settled(ranges, hub.one().since))


def numbers(ranges: list[tuple[int, int]]) -> set[int]:
    return {seq for first, last in ranges for seq in range(first, last + 1)}


def test_a_consumer_begins_where_it_is_told_to() -> None:
    hub = hub_with(start=100, terms=Terms(topic="a/*", where={"x": {"value": "y"}}, max_tries=3))
    consumer = hub.one()
    assert (consumer.name, consumer.floor, consumer.done, consumer.created) == ("c", 99, [], 1)
    assert consumer.terms == Terms(topic="a/*", where={"x": {"value": "y"}}, max_tries=3)
    assert hub.consumers.holds() == {"consumer/c": 100}


def test_names_may_have_slashes() -> None:
    hub = Hub()
    hub.submit(create("team/jobs", Terms(), 1))
    assert hub.one().name == "team/jobs"
    assert hub.one().dead_letter == "dead/team/jobs"


def test_the_floor_rises_over_what_adjoins_it() -> None:
    hub = hub_with()
    hub.submit(done(hub, (3, 4), (7, 7)))
    assert (hub.one().floor, hub.one().done) == (0, [(3, 4), (7, 7)])
    hub.submit(done(hub, (1, 2)))
    assert (hub.one().floor, hub.one().done) == (4, [(7, 7)])
    hub.submit(done(hub, (2, 6)))
    assert (hub.one().floor, hub.one().done) == (7, [])
    assert hub.consumers.holds() == {"consumer/c": 8}


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 60), st.integers(0, 9)).map(lambda p: (p[0], p[0] + p[1])), max_size=4
        )
    ),
    st.data(),
)
def test_the_cursor_is_a_set_of_numbers(entries: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    hub, model = hub_with(), set[int]()
    cut = data.draw(st.integers(0, len(entries)))
    restored = Consumers()
    restored.load(hub.consumers.dump())
    for index, ranges in enumerate(entries):
        batch = hub.submit(done(hub, *spans(np.array(sorted(numbers(ranges)), np.int64))))
        model |= numbers(ranges)
        consumer = hub.one()
        assert set(range(1, consumer.floor + 1)) | numbers(consumer.done) == model
        assert consumer.floor + 1 not in model
        if index == cut:
            restored.load(hub.consumers.dump())
        else:
            (message,) = batch
            restored.apply("", message.payload, message.seq, batch.op)
    assert hub.consumers.dump() == hub.replayed() == restored.dump()


def test_what_was_done_before_a_reset_does_not_count_after_it() -> None:
    hub = hub_with()
    late = done(hub, (1, 50))
    hub.submit(done(hub, (1, 9), (20, 30)))
    hub.submit(reset("c", 5))
    hub.submit(late)
    assert (hub.one().floor, hub.one().done, hub.one().since) == (4, [], 3)
    hub.submit(done(hub, (5, 5)))
    assert hub.one().floor == 5


def test_what_one_consumer_did_does_not_count_for_another_of_its_name() -> None:
    hub = hub_with()
    late = done(hub, (1, 50))
    hub.submit(remove("c"))
    assert len(hub.consumers) == 0
    assert hub.consumers.holds() == {}
    hub.submit(late)
    hub.submit(create("c", Terms(), 1))
    hub.submit(late)
    assert hub.one().floor == 0


def test_each_creation_has_its_own_place_in_the_order() -> None:
    hub = hub_with()
    hub.submit(create("d", Terms(), 1))
    hub.submit(remove("d"))
    restored = Consumers()
    restored.load(hub.consumers.dump())
    for consumers in (hub.consumers, restored):
        consumers.apply("d", b'{"create":{}}', 0, 9)
        assert [(each.name, each.created) for each in consumers] == [("c", 1), ("d", 3)]


def test_a_creation_that_comes_second_changes_nothing() -> None:
    hub = hub_with(start=10)
    hub.submit(create("c", Terms(max_tries=1), 20))
    assert (hub.one().floor, hub.one().terms) == (9, Terms())


def test_orders_for_nobody_are_passed_over() -> None:
    hub = Hub()
    for batch in (reset("c", 1), remove("c"), settle(Settled(((1, 2),), 0))):
        hub.submit(batch)
    assert len(hub.consumers) == 0


def test_creation_tells_what_is_missing_or_in_the_way() -> None:
    hub = Hub()
    wanted = hub.consumers.creation("c", Terms(topic="a"), 7)
    assert wanted is not None
    hub.submit(wanted)
    assert hub.one().floor == 6
    assert hub.consumers.creation("c", Terms(topic="a"), 9) is None
    with pytest.raises(RefusedError, match="another topic, max_tries") as raised:
        hub.consumers.creation("c", Terms(topic="b", max_tries=1), 9)
    assert raised.value.code == "conflict"


def test_there_is_a_most_of_consumers() -> None:
    hub = Hub()
    for index in range(MAX_CONSUMERS):
        payload = b'{"create":{}}'
        hub.consumers.apply(str(index), payload, 0, index + 1)
    hub.consumers.apply("one more", b'{"create":{}}', 0, MAX_CONSUMERS + 1)
    assert len(hub.consumers) == MAX_CONSUMERS
    with pytest.raises(RefusedError) as raised:
        hub.consumers.creation("one more", Terms(), 1)
    assert raised.value.code == "limit"


def test_ranges_that_find_no_room_are_forgotten_and_said_so() -> None:
    hub = hub_with()
    events: list[ConsumerEvent] = []
    hub.consumers.observer = events.append
    every_second = tuple((seq, seq) for seq in range(3, 3 + 2 * MAX_RANGES + 4, 2))
    hub.submit(done(hub, *every_second))
    assert len(hub.one().done) == MAX_RANGES
    assert events == [RangesForgotten(hub.one(), Settled(every_second[MAX_RANGES:], hub.one().since))]
    # However full it is, what adjoins the floor finds room.
    hub.submit(done(hub, (1, 2)))
    assert hub.one().floor == 3
    assert hub.replayed() == hub.consumers.dump()


def test_an_observer_is_told_what_happens() -> None:
    hub = Hub()
    events: list[ConsumerEvent] = []
    hub.consumers.observer = events.append
    hub.submit(create("c", Terms(), 1))
    consumer = hub.one()
    hub.submit(reset("c", 1))
    hub.submit(remove("c"))
    assert events == [ConsumerReset(consumer), ConsumerRemoved(consumer)]


@pytest.mark.parametrize(
    ("name", "terms", "field", "error"),
    [
        ("", Terms(), "consumer", MalformedError),
        ("\ud800", Terms(), "consumer", MalformedError),
        ("ä" * MAX_NAME, Terms(), "consumer", LimitError),
        ("c", Terms(ack_seconds=0), "ack_seconds", MalformedError),
        ("c", Terms(ack_seconds=float("nan")), "ack_seconds", MalformedError),
        ("c", Terms(ack_seconds=MAX_ACK_SECONDS + 1), "ack_seconds", MalformedError),
        ("c", Terms(max_tries=-1), "max_tries", MalformedError),
        ("c", Terms(origin=("tube", "log")), "origin", MalformedError),
        ("c", Terms(where={"x": object()}), "where", MalformedError),
        ("c", Terms(where={"x": -(1 << 64)}), "where", MalformedError),
        ("c", Terms(where={"x": "y" * MAX_TERMS}), "where", LimitError),
    ],
)
def test_names_and_terms_that_cannot_be(
    name: str, terms: Terms, field: str, error: type[MalformedError | LimitError]
) -> None:
    with pytest.raises(error) as raised:
        create(name, terms, 1)
    assert raised.value.field == field


def given_up(hub: Hub, *ranges: tuple[int, int], tries: int = 3) -> list[Message]:
    rows = next(
        batch for batch in hub.batches if batch.topic == "jobs" or batch.columns is not None
    ).to_arrow()
    letters, entry = bury(hub.one(), Settled(ranges, hub.one().since), rows, tries)
    buried = [] if letters is None else list(hub.submit(letters))
    return [*buried, *hub.submit(entry)]


def test_a_dead_letter_is_a_copy_that_says_what_it_was() -> None:
    hub = hub_with()
    hub.submit(Batch(Run.of([b"a", b"b", b"c"]), origin="tube", publisher="p", number=5, topic="jobs"))
    hub.submit(done(hub, (1, 1)))
    dead, entry = given_up(hub, (3, 3))
    assert (dead.payload, dead.topic, dead.origin, dead.publisher, dead.number) == (
        b"c",
        "dead/c",
        DEAD_LETTER,
        "c",
        None,
    )
    assert dead.attributes == {
        "dead.consumer": "c", "dead.seq": "3", "dead.topic": "jobs", "dead.origin": "tube", "dead.tries": "3",
    }  # fmt: skip
    assert (entry.origin, entry.topic, entry.seq) == ("log", "consumer/", dead.seq)
    # The dead letter, message 4, is done as well.
    assert (hub.one().floor, hub.one().done, hub.one().dead) == (1, [(3, 4)], 1)
    assert hub.one().lag(4) == Lag(1)
    assert hub.replayed() == hub.consumers.dump()


def test_attributes_and_numbers_go_with_a_dead_letter() -> None:
    hub = hub_with(terms=Terms(dead_letter="graves"))
    row = {"attributes": [("k", "v")], "numbers": [("n", 1.5)], "topic": "jobs", "origin": "tube"}
    plain = Batch(Run.of([b"a"]), first=1, publisher="p", topic="jobs").to_arrow().to_pylist()[0]
    rows = pa.RecordBatch.from_pylist([plain | row], schema=SCHEMA)
    hub.submit(Batch.over(rows))
    dead, _ = given_up(hub, (1, 1))
    assert dead.topic == "graves"
    assert dead.attributes["k"] == "v"
    assert dead.numbers == {"n": 1.5}


def test_a_dead_letter_is_not_copied_again() -> None:
    hub = hub_with()
    hub.submit(Batch(Run.of([b"a"]), origin=DEAD_LETTER, topic="jobs"))
    (entry,) = given_up(hub, (1, 1))
    assert entry.origin == "log"
    assert (hub.one().dead, hub.one().floor, hub.one().done) == (1, 1, [])


def test_what_retention_took_is_counted() -> None:
    hub = hub_with()
    hub.submit(settle(Settled(((1, 7),), hub.one().since, lost=7)))
    assert (hub.one().floor, hub.one().lost) == (7, 7)
    assert hub.replayed() == hub.consumers.dump()


def test_what_a_person_writes_is_json_that_a_person_can_read() -> None:
    (entry,) = create("c", Terms(topic="a"), 5).numbered(1, 0, 0, 1)
    assert msgspec.json.decode(entry.payload) == {"create": {"topic": "a"}, "from": 5}


# What is done, as entries


@given(
    st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(0, 1 << 40)), max_size=9),
    st.integers(0, MAX_SEQUENCE),
    st.tuples(*[st.integers(0, MAX_SEQUENCE)] * 3),
)
def test_what_is_done_is_read_as_it_was_written(
    steps: list[tuple[int, int]], since: int, counts: tuple[int, int, int]
) -> None:
    ranges, at = [], 0
    for distance, more in steps:
        ranges.append((at + distance, at + distance + more))
        at += distance + more
    settled = Settled(tuple(ranges), since, counts[0])
    assert decode(encode(settled, *counts[1:])) == (settled, *counts[1:])


@pytest.mark.parametrize(
    "order",
    [
        {"since": 1},
        [1],
        [1, [1]],
        [1, [0, 3]],
        [1, [1, -1]],
        [1, [MAX_SEQUENCE, 1]],
        [-1, [1, 0]],
        [1, [1, 0], MAX_SEQUENCE + 1],
        [1, [1, 0], 0, 0, 0, 0],
    ],
)
def test_entries_that_make_no_sense_change_nothing(order: object) -> None:
    hub = hub_with()
    hub.submit(entries(msgspec.msgpack.encode(order)))
    assert (hub.one().floor, hub.one().done, hub.state.unread) == (0, [], 1)


def test_an_acknowledgement_is_a_few_bytes() -> None:
    assert len(encode(Settled(((1_000, 1_000),), since=2))) <= 8
    assert len(encode(Settled(((5_000_000_000, 5_000_000_000),), since=4_900_000_000))) <= 24


def test_what_several_consumers_have_done_in_a_turn_is_one_batch() -> None:
    hub = Hub()
    for name in "abc":
        hub.submit(create(name, Terms(), 1))
    written: list[Batch] = []
    due: list[Callable[[], None]] = []
    replies: list[StorageError | None] = []
    gathered = TurnEntries(lambda batch, done: done(hub.submit(batch)) or written.append(batch), due.append)
    for number, consumer in enumerate(hub.consumers, 1):
        gathered.add(Settled(((1, number),), consumer.since), replies.append)
    assert (len(due), written) == (1, [])
    due.pop()()
    assert [len(batch) for batch in written] == [3]
    assert written[0].columns is None
    assert [consumer.floor for consumer in hub.consumers] == [1, 2, 3]
    assert replies == [None, None, None]
    gathered.write()
    assert (len(written), due) == (1, [])


def test_what_the_log_refuses_is_said_to_everyone_who_wrote_it() -> None:
    replies: list[StorageError | None] = []
    full = StorageError("no")
    gathered = TurnEntries(lambda _batch, done: done(full), lambda write: None)
    gathered.add(Settled(((1, 1),), 1), replies.append)
    gathered.add(Settled(((1, 1),), 2), replies.append)
    gathered.write()
    assert replies == [full, full]


# How far behind


def test_behind_is_what_is_not_done() -> None:
    hub = hub_with()
    hub.submit(Batch(Run.of([b""] * 9), origin="tube"))
    assert hub.one().lag(9) == Lag(9)
    hub.submit(done(hub, (1, 2), (5, 6)))
    assert hub.one().lag(9) == Lag(5)
    hub.submit(done(hub, (1, 9)))
    assert hub.one().lag(9) == Lag(0)
    assert hub.one().lag(5) == Lag(0), "the head of a hub that is behind"


def test_behind_of_a_consumer_that_selects_is_at_most_that() -> None:
    hub = hub_with(terms=Terms(topic="a"))
    assert hub.one().lag(3) == Lag(3, exact=False)
    hub.submit(done(hub, (1, 3)))
    assert hub.one().lag(3) == Lag(0, exact=True)


def test_what_was_read_for_members_says_more_than_the_state() -> None:
    hub = hub_with(terms=Terms(topic="a"))
    hub.consumers.known_lag = lambda _consumer, head: Lag(min(2, head))
    assert hub.consumers.lag(hub.one(), 5) == Lag(2)
    hub.consumers.known_lag = lambda _consumer, _head: Lag(7)
    assert hub.consumers.lag(hub.one(), 5) == Lag(5, exact=False)


def test_behind_is_at_most_that_where_others_publish_under_the_dead_letter_topic() -> None:
    hub = hub_with()
    hub.submit(Batch(Run.of([b""] * 3), origin="tube", topic="a"))
    assert hub.one().lag(3) == Lag(3)
    hub.submit(Batch(Run.of([b""] * 2), origin="tube", topic="dead/c"))
    assert hub.one().lag(5) == Lag(5, exact=False), "three are the consumer's"
    assert hub.replayed() == hub.consumers.dump()
    hub.submit(done(hub, (1, 4)))
    assert hub.one().lag(5) == Lag(1, exact=False)
    hub.submit(done(hub, (1, 5)))
    hub.submit(Batch(Run.of([b""]), origin="tube", topic="a"))
    assert hub.one().lag(6) == Lag(1)


def test_behind_sees_the_dead_letter_topic_among_others() -> None:
    hub = hub_with()
    topics = pa.RecordBatch.from_arrays(
        [pa.array(["a", "dead/c", "a"])], schema=pa.schema([SCHEMA.field("topic")])
    )
    hub.submit(Batch(Run.of([b""] * 3), origin="tube", columns=topics.slice(0, 1).take(pa.array([0, 0, 0]))))
    assert hub.one().lag(3) == Lag(3)
    hub.submit(Batch(Run.of([b""] * 3), origin="tube", columns=topics))
    assert hub.one().passed_over == 5
    assert hub.one().lag(6) == Lag(6, exact=False)
    hub.submit(remove("c"))
    hub.submit(Batch(Run.of([b""] * 3), origin="tube", columns=topics))
    assert not hub.consumers._dead_letters


def test_behind_is_at_most_that_with_dead_letters_of_another_consumer_there() -> None:
    hub = hub_with()
    hub.submit(Batch(Run.of([b""]), origin=DEAD_LETTER, publisher="c", topic="dead/c"))
    assert hub.one().lag(1) == Lag(1), "the entry that marks it as done follows"
    hub.submit(Batch(Run.of([b""]), origin=DEAD_LETTER, publisher="other", topic="dead/c"))
    assert hub.one().lag(2) == Lag(2, exact=False)


def test_behind_is_at_most_that_once_there_is_no_room_to_mark_dead_letters() -> None:
    hub = hub_with()
    hub.submit(Batch(Run.of([b""] * MAX_RANGES), origin="tube"))
    hub.submit(done(hub, *((seq, seq) for seq in range(2, MAX_RANGES // 2 - 2, 2))))
    hub.submit(Batch(Run.of([b""]), origin=DEAD_LETTER, publisher="c", topic="dead/c"))
    hub.submit(entries(encode(Settled(((MAX_RANGES - 4, MAX_RANGES - 4),), hub.one().since), 1, 1)))
    assert hub.consumers.lag(hub.one(), MAX_RANGES + 1).exact, "it was marked"
    hub.submit(Batch(Run.of([b""]), origin=DEAD_LETTER, publisher="c", topic="dead/c"))
    hub.submit(entries(encode(Settled(((MAX_RANGES - 2, MAX_RANGES - 2),), hub.one().since), 1, 1)))
    assert not hub.consumers.lag(hub.one(), MAX_RANGES + 2).exact
    assert hub.replayed() == hub.consumers.dump()


def test_behind_of_a_consumer_that_begins_in_the_past_is_at_most_that() -> None:
    hub = Hub()
    hub.submit(Batch(Run.of([b""] * 4), origin="tube", topic="dead/c"))
    hub.submit(create("c", Terms(), 3))
    assert hub.one().lag(4) == Lag(2, exact=False)
    hub.submit(done(hub, (3, 4)))
    hub.submit(Batch(Run.of([b""]), origin="tube"))
    assert hub.one().lag(5) == Lag(1)
