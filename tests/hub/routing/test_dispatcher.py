"""The dispatcher's judgement, without a socket."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.attribute.client_lists import pack_routes

from headrace.hub.counters import Counters
from headrace.hub.routing.client_session import NOTHING, PushSource
from headrace.hub.routing.dispatcher import Dispatcher, Feeder, _by_connector
from headrace.wire.attribute.items import MAX_BODY
from headrace.wire.attribute.messages import (
    ConnectorDecoder,
    DispatcherDecoder,
    DispatcherPush,
    Heartbeat,
    MatcherPush,
    Push,
    RouterDecoder,
    msg_id,
    serialize,
)
from headrace.wire.attribute.push_parts import MAX_CONNECTORS, HeartbeatJoiner, PushJoiner
from headrace.wire.receive_buffer import Decoder

A, B, C = (bytes([n]) * 12 for n in (1, 2, 3))
EAST, WEST = b"east0001", b"west0001"
ID = msg_id(9, 1)
FOREIGN = bytes.fromhex("5f3c0a10b1e24d7780c1a2ff")


class Wire:
    """A connection that keeps what it is sent."""

    def __init__(self, decoder: Decoder[Any]) -> None:
        self.decoder = decoder
        self.frames: list[Any] = []
        self.full = False
        self.parted: str | None = None

    def pass_on(self, data: bytes) -> bool:
        if not self.full:
            self.frames += self.decoder.feed(data)
        return not self.full

    def part(self, reason: str, detail: str) -> None:
        self.parted = reason


class Here:
    """The connector of the process."""

    id = b"here0001"
    relying = True

    def __init__(self) -> None:
        self.told: list[Any] = []

    def pushed(self, source: PushSource, message: bytes, payload: bytes, clients: bytes) -> None:
        self.told.append((message, payload, clients))

    def marked(self, source: PushSource, message: bytes) -> None:
        self.told.append(message)

    def lost(self, source: PushSource) -> None:
        self.told.append("lost")


@pytest.fixture
def here() -> Here:
    return Here()


@pytest.fixture
def dispatcher(here: Here) -> Dispatcher:
    return Dispatcher(Counters(), here)


@pytest.fixture
def matcher() -> Feeder:
    return Feeder(PushSource())


def connector() -> Wire:
    return Wire(RouterDecoder())


def peer() -> Wire:
    return Wire(DispatcherDecoder())


def undeliverable(dispatcher: Dispatcher) -> int:
    return dispatcher._counters.get("undeliverable", door="dispatcher")


def test_a_push_is_grouped_by_connector(dispatcher: Dispatcher, here: Here, matcher: Feeder) -> None:
    east, west = connector(), connector()
    dispatcher.joined(EAST, east, relying=False)
    dispatcher.joined(WEST, west, relying=False)
    routes = pack_routes([(A, EAST), (B, WEST), (C, EAST), (B, here.id), (A, b"nowhere1")])
    dispatcher.push(matcher, MatcherPush(ID, b"snow", routes))
    assert east.frames == [Push(ID, b"snow", A + C)]
    assert west.frames == [Push(ID, b"snow", B)]
    assert here.told == [(ID, b"snow", B)]
    assert undeliverable(dispatcher) == 1


def test_a_connection_is_of_one_connector(dispatcher: Dispatcher, matcher: Feeder) -> None:
    wire = connector()
    for name in (EAST, WEST):
        dispatcher.joined(name, wire, relying=True)
    assert (dispatcher.connectors, dispatcher.relying) == ({WEST: wire}, {WEST})
    dispatcher.push(matcher, MatcherPush(ID, b"snow", pack_routes([(A, EAST)])))
    assert undeliverable(dispatcher) == 1


def test_a_long_push_is_split_and_comes_whole(dispatcher: Dispatcher, matcher: Feeder) -> None:
    east = connector()
    dispatcher.joined(EAST, east, relying=False)
    clients = [n.to_bytes(12) for n in range(1000)]
    dispatcher.push(matcher, MatcherPush(ID, bytes(5000), pack_routes((client, EAST) for client in clients)))
    assert len(east.frames) > 8
    joiner = PushJoiner()
    whole = [found for part in east.frames if (found := joiner.join(part, 0.0)) is not None]
    assert whole == [Push(ID, bytes(5000), b"".join(clients))]


def test_what_another_dispatcher_passes_on_goes_no_further(dispatcher: Dispatcher, here: Here) -> None:
    other, feeder = peer(), Feeder(PushSource())
    dispatcher.told(other, EAST, b"")
    dispatcher.forward(feeder, DispatcherPush(ID, EAST, b"snow", A))
    dispatcher.forward(feeder, DispatcherPush(ID, here.id, b"snow", B))
    assert other.frames == []
    assert undeliverable(dispatcher) == 1
    assert here.told == [(ID, b"snow", B)]


def test_what_names_no_connector_goes_to_all_that_are_here(dispatcher: Dispatcher, here: Here) -> None:
    east, west, other = connector(), connector(), peer()
    dispatcher.joined(EAST, east, relying=False)
    dispatcher.joined(WEST, west, relying=False)
    dispatcher.told(other, b"far00001", b"")
    dispatcher.forward(Feeder(PushSource()), DispatcherPush(FOREIGN, b"", b"hello", A + B))
    assert east.frames == west.frames == [Push(FOREIGN, b"hello", A + B)]
    assert here.told == [(FOREIGN, b"hello", A + B)]
    assert other.frames == []


def test_a_message_of_the_sequence_that_names_no_connector_is_withheld_from_those_who_rely_on_marks(
    dispatcher: Dispatcher,
) -> None:
    east, west = connector(), connector()
    dispatcher.joined(EAST, east, relying=True)
    dispatcher.joined(WEST, west, relying=False)
    dispatcher.reach = lambda: 9
    dispatcher.forward(Feeder(PushSource()), DispatcherPush(ID, b"", b"hello", A))
    assert (east.frames, west.frames) == ([], [Push(ID, b"hello", A)])
    dispatcher.forward(Feeder(PushSource()), DispatcherPush(ID))  # A mark for no connector marks nothing.
    assert (east.frames, west.frames) == ([], [Push(ID, b"hello", A)])


def test_what_names_no_connector_is_counted_where_there_is_none() -> None:
    dispatcher = Dispatcher(Counters(), None)
    dispatcher.forward(Feeder(PushSource()), DispatcherPush(FOREIGN, b"", b"hello", A))
    assert undeliverable(dispatcher) == 1


def test_an_own_connector_goes_before_a_peer_that_claims_it(dispatcher: Dispatcher, matcher: Feeder) -> None:
    east, other = connector(), peer()
    dispatcher.told(other, EAST + WEST, b"")
    dispatcher.joined(EAST, east, relying=False)
    dispatcher.push(matcher, MatcherPush(ID, b"", pack_routes([(A, EAST), (B, WEST)])))
    assert east.frames == [Push(ID, b"", A)]
    assert other.frames == [DispatcherPush(ID, WEST, b"", B)]


def test_without_room_it_is_counted(dispatcher: Dispatcher, matcher: Feeder) -> None:
    east, other = connector(), peer()
    dispatcher.joined(EAST, east, relying=False)
    dispatcher.told(other, WEST, b"")
    east.full = other.full = True
    dispatcher.push(matcher, MatcherPush(ID, b"", pack_routes([(A, EAST), (B, WEST)])))
    assert undeliverable(dispatcher) == 2


def test_of_two_connections_with_one_id_the_newer_stays(dispatcher: Dispatcher, matcher: Feeder) -> None:
    older, newer = connector(), connector()
    dispatcher.joined(EAST, older, relying=False)
    dispatcher.joined(EAST, newer, relying=False)
    assert older.parted == "replaced"
    dispatcher.left(older)
    dispatcher.push(matcher, MatcherPush(ID, b"", pack_routes([(A, EAST)])))
    assert newer.frames == [Push(ID, b"", A)]


class TestMarks:
    def test_they_go_to_those_who_rely_on_them(
        self, dispatcher: Dispatcher, here: Here, matcher: Feeder
    ) -> None:
        east, west, other = connector(), connector(), peer()
        dispatcher.joined(EAST, east, relying=True)
        dispatcher.joined(WEST, west, relying=False)
        dispatcher.told(other, b"far_0001far_0002", b"far_0002")
        dispatcher.push(matcher, MatcherPush(ID))
        assert east.frames == [Push(ID)]
        assert west.frames == []
        assert other.frames == [DispatcherPush(ID, b"far_0002")]
        assert here.told == [ID]

    def test_who_comes_later_is_told_first_how_far_each_matcher_is(
        self, dispatcher: Dispatcher, matcher: Feeder
    ) -> None:
        second = Feeder(PushSource())
        dispatcher.push(matcher, MatcherPush(msg_id(7, 1)))
        dispatcher.push(second, MatcherPush(msg_id(5, 2)))
        dispatcher.push(matcher, MatcherPush(msg_id(8, 1)))
        east, other = connector(), peer()
        dispatcher.joined(EAST, east, relying=True)
        # Nothing that was pushed before will be pushed to it: each matcher's place is behind all of that.
        assert east.frames == [Push(msg_id(8, 1)), Push(msg_id(8, 2))]
        dispatcher.told(other, WEST, WEST)
        dispatcher.told(other, WEST, WEST)
        assert other.frames == [DispatcherPush(msg_id(8, 1), WEST), DispatcherPush(msg_id(8, 2), WEST)]

    def test_they_go_the_way_that_pushes_go_and_no_other(
        self, dispatcher: Dispatcher, matcher: Feeder
    ) -> None:
        east, other = connector(), peer()
        dispatcher.push(matcher, MatcherPush(msg_id(1, 1)))
        dispatcher.joined(EAST, east, relying=True)
        dispatcher.told(other, EAST, EAST)
        dispatcher.push(matcher, MatcherPush(msg_id(2, 1)))
        assert (len(east.frames), other.frames) == (2, [])
        # Its own way to the connector is gone: now they go by the dispatcher that has it, too.
        dispatcher.left(east)
        assert other.frames == [DispatcherPush(msg_id(2, 1), EAST)]
        dispatcher.push(matcher, MatcherPush(msg_id(3, 1)))
        assert other.frames[1:] == [DispatcherPush(msg_id(3, 1), EAST)]
        # And when it is there again, what was said by the other is withdrawn.
        again = connector()
        dispatcher.joined(EAST, again, relying=True)
        assert again.frames == [Push(msg_id(3, 1))]
        assert other.frames[2:] == [DispatcherPush(msg_id(NOTHING, 1), EAST)]

    def test_a_dispatcher_that_has_lost_a_connector_is_told_so_as_well(
        self, dispatcher: Dispatcher, matcher: Feeder
    ) -> None:
        """Marks may still be on their way to it, and meet the connector there when it is back."""
        other = peer()
        dispatcher.push(matcher, MatcherPush(msg_id(1, 1)))
        for told in (EAST, b"", EAST):
            dispatcher.told(other, told, told)
        assert [frame.msg_id for frame in other.frames] == [msg_id(1, 1), msg_id(NOTHING, 1), msg_id(1, 1)]

    def test_what_is_passed_on_for_one_connector_says_nothing_to_another(
        self, dispatcher: Dispatcher
    ) -> None:
        east, west, third, passing = connector(), connector(), peer(), Feeder(PushSource())
        dispatcher.joined(EAST, east, relying=True)
        dispatcher.forward(passing, DispatcherPush(msg_id(5, 2), EAST))
        dispatcher.joined(WEST, west, relying=True)
        dispatcher.told(third, b"far_0001", b"far_0001")
        assert (east.frames, west.frames, third.frames) == ([Push(msg_id(5, 2))], [], [])
        # One that connects anew before the older connection is closed goes on behind what it may have missed.
        again = connector()
        dispatcher.joined(EAST, again, relying=True)
        assert again.frames == [Push(msg_id(5, 2))]
        # One that was away meanwhile waits for the next: where its messages went, nobody here knows.
        dispatcher.left(again)
        dispatcher.joined(EAST, east, relying=True)
        assert len(east.frames) == 1
        dispatcher.forward(passing, DispatcherPush(msg_id(NOTHING, 2), EAST))
        assert east.frames[1:] == [Push(msg_id(NOTHING, 2))]

    def test_a_matcher_whose_messages_come_by_another_way_begins_anew(
        self, dispatcher: Dispatcher, here: Here, matcher: Feeder
    ) -> None:
        east, passing = connector(), Feeder(PushSource())
        dispatcher.joined(EAST, east, relying=True)
        dispatcher.push(matcher, MatcherPush(msg_id(5, 2)))
        dispatcher.forward(passing, DispatcherPush(msg_id(9, 2), EAST))
        assert east.frames == [Push(msg_id(5, 2)), Push(msg_id(NOTHING, 2)), Push(msg_id(9, 2))]
        dispatcher.forward(passing, DispatcherPush(msg_id(9, 2), here.id))
        assert here.told == [msg_id(5, 2), msg_id(NOTHING, 2), msg_id(9, 2)]

    def test_without_them_nothing_is_passed_to_those_who_rely_on_them(
        self, dispatcher: Dispatcher, matcher: Feeder
    ) -> None:
        east, other, passing = connector(), peer(), Feeder(PushSource())
        dispatcher.joined(EAST, east, relying=True)
        dispatcher.told(other, WEST, WEST)
        routes = pack_routes([(A, EAST), (A, WEST)])
        dispatcher.push(matcher, MatcherPush(ID, b"", routes))
        dispatcher.forward(passing, DispatcherPush(ID, EAST, b"", A))
        assert (east.frames, other.frames) == ([], [])
        assert dispatcher._counters.get("unvouched", door="dispatcher") == 3
        # What is of another make has no place in the sequence, and passes.
        dispatcher.push(matcher, MatcherPush(b"some-other-i", b"", routes))
        assert (len(east.frames), len(other.frames)) == (1, 1)
        # A source that pushes by many connections marks by one.
        dispatcher.push(Feeder(matcher.source), MatcherPush(ID))
        dispatcher.push(matcher, MatcherPush(ID, b"", routes))
        assert (east.frames[-1], other.frames[-1]) == (Push(ID, b"", A), DispatcherPush(ID, WEST, b"", A))

    def test_a_matcher_hears_of_those_who_rely_on_them_behind_another_dispatcher(self) -> None:
        dispatcher, other = Dispatcher(Counters(), None), peer()
        dispatcher.told(other, WEST, WEST)
        (heartbeat,) = ConnectorDecoder().feed(dispatcher.heartbeat(1))
        assert (heartbeat.connectors, heartbeat.relying) == (b"", WEST)
        # Which is not to say that they could be reached by this one.
        third, far = Dispatcher(Counters(), None), peer()
        third.told(far, heartbeat.connectors, heartbeat.relying)
        third.push(Feeder(PushSource()), MatcherPush(ID))
        assert far.frames == []

    def test_who_no_longer_relies_on_marks_gets_none_and_is_pushed_all(
        self, dispatcher: Dispatcher, matcher: Feeder
    ) -> None:
        older, newer = connector(), connector()
        dispatcher.joined(EAST, older, relying=True)
        dispatcher.joined(EAST, newer, relying=False)
        dispatcher.left(older)
        dispatcher.push(Feeder(PushSource()), MatcherPush(ID, b"unmarked", pack_routes([(A, EAST)])))
        dispatcher.push(matcher, MatcherPush(ID))
        assert newer.frames == [Push(ID, b"unmarked", A)]

    def test_who_relied_on_no_mark_is_left_in_peace_when_a_matcher_is_lost(
        self, dispatcher: Dispatcher, matcher: Feeder
    ) -> None:
        """What others push to it meanwhile would be lost: it has no log to find that in."""
        east, other, unknown = connector(), peer(), peer()
        dispatcher.joined(EAST, east, relying=False)
        dispatcher.told(other, WEST, b"")
        dispatcher.peers[unknown] = None
        dispatcher.push(matcher, MatcherPush(ID))
        dispatcher.lost(matcher)
        assert (east.parted, other.parted, unknown.parted) == (None, None, None)

    def test_a_lost_matcher_breaks_every_chain_it_was_part_of(
        self, dispatcher: Dispatcher, here: Here, matcher: Feeder
    ) -> None:
        east, other, stranger = connector(), peer(), Feeder(PushSource())
        dispatcher.joined(EAST, east, relying=True)
        dispatcher.told(other, WEST, WEST)
        dispatcher.push(stranger, MatcherPush(ID, b"", pack_routes([(A, EAST)])))
        dispatcher.lost(stranger)
        assert east.parted is None
        dispatcher.push(matcher, MatcherPush(ID))
        dispatcher.lost(matcher)
        assert (east.parted, other.parted) == ("broken", "broken")
        assert here.told[-1] == "lost"
        assert not dispatcher.feeders

    def test_a_msg_id_of_another_make_is_no_mark(self, dispatcher: Dispatcher, matcher: Feeder) -> None:
        dispatcher.push(matcher, MatcherPush(b"some-other-i"))
        dispatcher.forward(matcher, DispatcherPush(b"some-other-i", EAST))
        assert not dispatcher.feeders


class TestPlacesThatCannotBe:
    @pytest.fixture(autouse=True)
    def at_nine(self, dispatcher: Dispatcher) -> None:
        dispatcher.reach = lambda: 9

    def ahead(self, dispatcher: Dispatcher) -> int:
        return dispatcher._counters.get("ahead", door="dispatcher")

    def test_a_push_does_not_count(self, dispatcher: Dispatcher, matcher: Feeder) -> None:
        east, west = connector(), connector()
        dispatcher.joined(EAST, east, relying=True)
        dispatcher.joined(WEST, west, relying=False)
        dispatcher.push(matcher, MatcherPush(msg_id(9, 7)))
        east.frames.clear()
        stranger = Feeder(PushSource())
        for seq in (10, NOTHING - 1, NOTHING):
            dispatcher.push(stranger, MatcherPush(msg_id(seq, 7), b"x", pack_routes([(A, EAST), (A, WEST)])))
        assert (east.frames, east.parted) == ([], None), "what it relies on is whole"
        assert len(west.frames) == 3, "who relies on nothing judges for itself"
        assert self.ahead(dispatcher) == 3
        again = connector()
        dispatcher.joined(EAST, again, relying=True)
        assert again.frames == [Push(msg_id(9, 7))]

    def test_a_mark_is_none(self, dispatcher: Dispatcher, matcher: Feeder, here: Here) -> None:
        dispatcher.push(matcher, MatcherPush(msg_id(10, 7)))
        dispatcher.forward(matcher, DispatcherPush(msg_id(10, 7), here.id))
        assert not dispatcher.feeders
        assert here.told == []
        dispatcher.push(matcher, MatcherPush(msg_id(8, 7)))
        assert here.told == [msg_id(8, 7)]
        assert self.ahead(dispatcher) == 2

    def test_who_was_relied_on_is_lost_until_it_marks_again(
        self, dispatcher: Dispatcher, matcher: Feeder
    ) -> None:
        east = connector()
        dispatcher.joined(EAST, east, relying=True)
        dispatcher.push(matcher, MatcherPush(msg_id(8, 7)))
        dispatcher.push(matcher, MatcherPush(msg_id(11, 7), b"x", pack_routes([(A, EAST)])))
        # It was not passed on, so whoever relied on it must look into the log for it.
        assert (east.frames, east.parted) == ([Push(msg_id(8, 7))], "broken")
        dispatcher.left(east)
        east = connector()
        dispatcher.joined(EAST, east, relying=True)
        assert east.frames == []
        dispatcher.reach = lambda: 12
        dispatcher.push(matcher, MatcherPush(msg_id(12, 7)))
        assert east.frames == [Push(msg_id(12, 7))]

    def test_what_another_dispatcher_says_is_no_better(self, dispatcher: Dispatcher, matcher: Feeder) -> None:
        east = connector()
        dispatcher.joined(EAST, east, relying=True)
        dispatcher.forward(matcher, DispatcherPush(msg_id(8, 7), EAST))
        dispatcher.forward(matcher, DispatcherPush(msg_id(10, 7), EAST, b"x", A))
        assert (east.frames, east.parted) == ([Push(msg_id(8, 7))], "broken")
        assert not matcher.passed


def test_a_heartbeat_names_all_that_is_here(dispatcher: Dispatcher, here: Here) -> None:
    for n in range(MAX_CONNECTORS - 1):
        dispatcher.joined(b"c%07d" % n, connector(), relying=True)
    parts = [part for part in ConnectorDecoder().feed(dispatcher.heartbeat(7)) if isinstance(part, Heartbeat)]
    assert all(len(serialize(part)) <= MAX_BODY + 4 for part in parts)
    joiner = HeartbeatJoiner()
    (heartbeat,) = filter(None, map(joiner.join, parts))
    assert heartbeat.connectors == heartbeat.relying
    assert heartbeat.connectors == here.id + b"".join(b"c%07d" % n for n in range(MAX_CONNECTORS - 1))
    other = Dispatcher(Counters(), None)
    far = peer()
    other.told(far, heartbeat.connectors, b"")
    last = b"c%07d" % (MAX_CONNECTORS - 2)
    other.push(Feeder(PushSource()), MatcherPush(ID, b"snow", pack_routes([(A, last)])))
    assert far.frames == [DispatcherPush(ID, last, b"snow", A)]


def test_one_connector_too_many_is_refused(dispatcher: Dispatcher) -> None:
    links = [connector() for _ in range(MAX_CONNECTORS)]
    for n, link in enumerate(links):
        dispatcher.joined(b"c%07d" % n, link, relying=False)
    assert [link.parted for link in links] == [None] * (MAX_CONNECTORS - 1) + ["limit"]
    again = connector()
    dispatcher.joined(b"c0000000", again, relying=False)
    assert again.parted is None, "one that comes back has its place"
    assert len(dispatcher.connectors) == MAX_CONNECTORS - 1


ROUTES = st.tuples(
    st.binary(min_size=12, max_size=12), st.sampled_from([EAST, WEST, b"\0\0\0\0\0\0\0\0", b"zzzzzzzz"])
)


@given(st.lists(ROUTES, min_size=1, max_size=50))
def test_grouping_keeps_every_route_once_and_in_order(routes: list[tuple[bytes, bytes]]) -> None:
    grouped = dict(_by_connector(pack_routes(routes)))
    for connector_id in {connector for _, connector in routes}:
        assert grouped.pop(connector_id) == b"".join(client for client, at in routes if at == connector_id)
    assert not grouped
