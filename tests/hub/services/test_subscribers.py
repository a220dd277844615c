"""Each session ends up with what the services are, whenever it could take bytes and whenever it could not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.hub.counters import Counters
from headrace.hub.services import subscribers as module
from headrace.hub.services.entries import ServiceKind, create, remove
from headrace.hub.services.merge_patch import apply
from headrace.hub.services.objects import Services
from headrace.hub.services.subscribers import ServiceSession, ServiceSubscribers
from headrace.hub.state import HubState
from headrace.message import Batch, Run
from headrace.wire.spp import ClientDecoder, Info, Offer, Removed, ServerFrame

IDS = ["a", "b", "c"]
CHANGES = [
    b"{}",
    b'{"x":1}',
    b'{"x":null}',
    b'{"x":{"y":1},"z":[1]}',
    b'{"x":{"y":null}}',
    b'{"x":5}',
    b"not json",
]


class Hub:
    """Services, their audience, and the commits between them."""

    def __init__(self) -> None:
        self.services = Services()
        self.state = HubState(self.services)
        self.counters = Counters()
        self.audience = ServiceSubscribers(self.services, self.counters)

    def commit(self, *batches: Batch) -> None:
        for batch in batches:
            seq = self.state.seq if batch.is_entries else self.state.seq + 1
            self.state.apply(batch.numbered(self.state.op + 1, seq, 1, 1))
        self.audience.deliver()

    def publish(self, *changes: tuple[str, bytes]) -> None:
        self.commit(*(Batch(Run.one(change), origin="spp", topic=topic) for topic, change in changes))


class Client:
    """Both an outlet, full or not, and the client behind it, which believes what it is told."""

    def __init__(self, hub: Hub, room: int | None = None) -> None:
        self.hub = hub
        self.room = room
        self.frames: list[ServerFrame] = []
        self.sent: list[bytes] = []
        self.offered: list[str] = []
        self.objects: dict[str, Any] = {}
        self.whole: set[str] = set()
        self.cut_off = ""
        self._decoder = ClientDecoder()
        self._due = False
        self.session: ServiceSession = hub.audience.join(self)
        self.session.pay()
        self.turn()

    def send(self, data: bytes) -> None:
        assert not self.session_paused, "bytes for an outlet that is full"
        self.sent.append(data)
        for frame in self._decoder.feed(data):
            assert isinstance(frame, Offer | Removed | Info)
            self._take(frame)
        if self.room is not None:
            self.room -= len(data)
            if self.room <= 0:
                self.session.pause()

    def later(self) -> None:
        self._due = True

    def overburdened(self, detail: str) -> None:
        self.cut_off = detail
        self.session.close()

    @property
    def session_paused(self) -> bool:
        return hasattr(self, "session") and self.session.paused

    def turn(self) -> None:
        """Let the event loop come round until nothing is due."""
        while self._due:
            self._due = False
            self.session.pay()

    def subscribe(self, name: str) -> bool:
        self.whole.add(name)
        taken = self.session.subscribe(name)
        self.turn()
        return taken

    def unsubscribe(self, name: str) -> None:
        self.session.unsubscribe(name)
        self.whole.discard(name)
        self.objects.pop(name, None)

    def resume(self, room: int | None = None) -> None:
        self.room = room
        self.session.resume()
        self.turn()

    def taken(self) -> list[ServerFrame]:
        frames, self.frames = self.frames, []
        return frames

    def _take(self, frame: Offer | Removed | Info) -> None:
        self.frames.append(frame)
        match frame:
            case Offer(name):
                assert name not in self.offered, "offered twice"
                self.offered.append(name)
                if name in self.objects:
                    self.whole.add(name)
            case Removed(name):
                self.offered.remove(name)
            case Info(name, message):
                self._inform(name, message)

    def _inform(self, name: str, message: bytes) -> None:
        # SPP does not tell a service's kind: this client has been told otherwise.
        is_json = self.session.subscriptions[name].kind is ServiceKind.JSON
        value = json.loads(message) if is_json else message
        if name in self.whole:
            there = self.hub.services.get(name) is not None
            assert name in self.offered or not there, "an object before its offer"
            self.whole.discard(name)
            self.objects[name] = value
        else:
            self.objects[name] = apply(self.objects[name], value) if is_json else value


class EverySessionCatchesUp(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.hub = Hub()
        self.clients: list[Client] = []

    @rule(room=st.none() | st.integers(1, 200))
    def join(self, room: int | None) -> None:
        self.clients.append(Client(self.hub, room))

    @rule(name=st.sampled_from(IDS), kind=st.sampled_from(ServiceKind))
    def create(self, name: str, kind: ServiceKind) -> None:
        self.commit(create(name, kind))

    @rule(name=st.sampled_from(IDS))
    def remove(self, name: str) -> None:
        self.commit(remove(name))

    @rule(name=st.sampled_from(IDS), kind=st.sampled_from(ServiceKind), change=st.sampled_from(CHANGES))
    def replace_in_one_commit(self, name: str, kind: ServiceKind, change: bytes) -> None:
        message = Batch(Run.one(change), origin="spp", topic=name)
        self.commit(message, remove(name), message, create(name, kind), message)

    @rule(changes=st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from(CHANGES)), min_size=1, max_size=5))
    def change(self, changes: list[tuple[str, bytes]]) -> None:
        self.commit(*(Batch(Run.one(change), origin="spp", topic=name) for name, change in changes))

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9), name=st.sampled_from(IDS))
    def subscribe(self, which: int, name: str) -> None:
        client = self.one(which)
        waits = name in client.whole
        taken = client.subscribe(name)
        assert taken == (self.hub.services.get(name) is not None)
        if not (taken or waits):
            client.whole.discard(name)

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9), name=st.sampled_from(IDS))
    def unsubscribe(self, which: int, name: str) -> None:
        self.one(which).unsubscribe(name)

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9), room=st.none() | st.integers(1, 200))
    def resume(self, which: int, room: int | None) -> None:
        self.one(which).resume(room)

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9))
    def leave(self, which: int) -> None:
        client = self.clients.pop(which % len(self.clients))
        client.session.close()

    @invariant()
    def who_has_room_has_everything(self) -> None:
        for client in self.clients:
            if not client.session.paused:
                self.check(client)

    def teardown(self) -> None:
        for client in self.clients:
            client.resume()
            self.check(client)
            client.session.close()
        assert not self.hub.audience.sessions
        assert not self.hub.audience._channels

    def check(self, client: Client) -> None:
        session = client.session
        assert client.offered == [service.id for service in self.hub.services]
        assert not session.behind
        assert session._held == 0
        assert client.objects == {name: service.value for name, service in session.subscriptions.items()}

    def one(self, which: int) -> Client:
        return self.clients[which % len(self.clients)]

    def commit(self, *batches: Batch) -> None:
        self.hub.commit(*batches)
        for client in self.clients:
            client.turn()


TestEverySessionCatchesUp = EverySessionCatchesUp.TestCase


@pytest.fixture
def hub() -> Hub:
    return Hub()


def test_a_change_is_encoded_once_for_all(hub: Hub) -> None:
    hub.commit(create("a", ServiceKind.LAST))
    clients = [Client(hub) for _ in range(3)]
    for client in clients:
        client.subscribe("a")
    hub.publish(("a", b"1"), ("a", b"2"))
    last = [client.sent[-1] for client in clients]
    assert last[0] is last[1] is last[2]
    assert clients[0].taken()[-2:] == [Info("a", b"1"), Info("a", b"2")]
    assert hub.counters.get("delivered", door="spp") == 6


def test_changes_of_several_services_come_in_the_order_of_the_log(hub: Hub) -> None:
    hub.commit(create("a", ServiceKind.LAST), create("b", ServiceKind.LAST), create("c", ServiceKind.LAST))
    both, alike, one = Client(hub), Client(hub), Client(hub)
    for client in (both, alike):
        client.subscribe("b")
        client.subscribe("a")
    one.subscribe("b")
    for client in (both, alike, one):
        client.taken()
    hub.publish(("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"4"), ("b", b"5"))
    assert both.taken() == [Info("a", b"1"), Info("b", b"2"), Info("a", b"4"), Info("b", b"5")]
    assert one.taken() == [Info("b", b"2"), Info("b", b"5")]
    assert both.sent[-1] is alike.sent[-1]


def test_who_lags_gets_one_change_from_what_it_had_to_now(hub: Hub) -> None:
    hub.commit(create("j", ServiceKind.JSON), create("l", ServiceKind.LAST))
    hub.publish(("j", b'{"keep":1,"drop":2,"deep":{"a":1,"b":2}}'), ("l", b"zero"))
    clients = [Client(hub), Client(hub)]
    for client in clients:
        client.subscribe("j")
        client.subscribe("l")
        client.taken()
        client.session.pause()
    hub.publish(("j", b'{"drop":null}'), ("l", b"one"))
    hub.publish(("j", b'{"deep":{"a":9}}'), ("l", b"two"), ("j", b'{"new":[1]}'), ("j", b'{"passing":1}'))
    hub.publish(("j", b'{"passing":null}'))
    assert clients[0].taken() == []
    for client in clients:
        client.resume()
        (patch, value) = client.taken()
        assert isinstance(patch, Info)
        assert json.loads(patch.message) == {"drop": None, "deep": {"a": 9}, "new": [1]}
        assert value == Info("l", b"two")
    assert clients[0].sent[-2] is clients[1].sent[-2], "the same way is worked out once"
    assert hub.counters.get("conflated", door="spp") == 2 * 7


def test_who_lags_and_comes_back_to_the_same_gets_an_empty_change(hub: Hub) -> None:
    hub.commit(create("j", ServiceKind.JSON))
    client = Client(hub)
    client.subscribe("j")
    client.session.pause()
    hub.publish(("j", b'{"x":1}'), ("j", b'{"x":null}'))
    client.taken()
    client.resume()
    assert client.taken() == [Info("j", b"{}")]


def test_subscribing_again_gives_a_fresh_snapshot_and_no_second_subscription(hub: Hub) -> None:
    hub.commit(create("a", ServiceKind.LAST))
    client = Client(hub)
    client.subscribe("a")
    client.subscribe("a")
    hub.publish(("a", b"1"))
    assert client.taken() == [Offer("a"), Info("a", b""), Info("a", b""), Info("a", b"1")]


def test_however_often_a_full_session_subscribes_it_is_owed_one_snapshot(hub: Hub) -> None:
    hub.commit(create("a", ServiceKind.LAST))
    client = Client(hub)
    client.session.pause()
    for _ in range(100):
        client.subscribe("a")
    hub.publish(("a", b"1"))
    client.taken()
    client.resume()
    assert client.taken() == [Info("a", b"1")]


def test_a_new_session_is_offered_everything_in_slices(hub: Hub) -> None:
    names = [f"s{number}" for number in range(3 * module.SLICE)]
    hub.commit(*(create(name, ServiceKind.LAST) for name in names))
    client = Client(hub, room=1)
    assert client.session.paused
    assert client.offered == names[: module.SLICE]
    other = Client(hub)
    assert other.offered == names
    assert other.sent[0] is client.sent[0], "one session's offers are another's"
    client.resume()
    assert client.offered == names


def test_a_snapshot_waits_for_its_offer(hub: Hub) -> None:
    names = [f"s{number}" for number in range(2 * module.SLICE)]
    hub.commit(*(create(name, ServiceKind.LAST) for name in names))
    client = Client(hub, room=1)
    client.room = None
    client.session.paused = False
    client.subscribe(names[-1])
    client.session.pay()
    client.turn()
    assert client.frames[-2:] == [Offer(names[-1]), Info(names[-1], b"")]


def test_news_of_a_removal_only_for_who_was_offered(hub: Hub) -> None:
    hub.commit(create("a", ServiceKind.LAST))
    old = Client(hub)
    old.session.pause()
    hub.commit(create("b", ServiceKind.LAST))
    hub.commit(remove("b"), remove("a"))
    old.resume()
    assert old.taken() == [Offer("a"), Removed("a")]
    assert Client(hub).taken() == []


def test_the_old_objects_subscribers_move_to_the_new_one(hub: Hub) -> None:
    hub.commit(create("a", ServiceKind.JSON))
    client = Client(hub)
    client.subscribe("a")
    hub.publish(("a", b'{"x":1}'))
    hub.commit(remove("a"))
    hub.publish(("a", b'{"y":1}'))
    client.taken()
    hub.commit(create("a", ServiceKind.LAST))
    hub.publish(("a", b"new"))
    assert client.taken() == [Offer("a"), Info("a", b""), Info("a", b"new")]


def test_what_happened_to_the_old_object_is_sent_before_the_new_one(hub: Hub) -> None:
    hub.commit(create("a", ServiceKind.LAST))
    client = Client(hub)
    client.subscribe("a")
    client.taken()
    old, new = (Batch(Run.one(value), origin="spp", topic="a") for value in (b"old", b"new"))
    hub.commit(old, remove("a"), create("a", ServiceKind.LAST), new)
    assert client.taken() == [Info("a", b"old"), Removed("a"), Offer("a"), Info("a", b"new")]


def test_what_cannot_change_a_service_is_counted(hub: Hub) -> None:
    hub.commit(create("a", ServiceKind.JSON))
    client = Client(hub)
    client.subscribe("a")
    client.taken()
    hub.publish(("a", b"no object"), ("a", b'{"x":1}'))
    assert client.taken() == [Info("a", b'{"x":1}')]
    assert hub.counters.get("refused", door="services", reason="malformed") == 1


def test_who_lags_in_more_than_can_be_kept_is_cut_off(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES", 100)
    hub.commit(create("a", ServiceKind.JSON), create("b", ServiceKind.JSON), create("l", ServiceKind.LAST))
    for name in "ab":
        hub.publish((name, b'{"x":"' + b"x" * 60 + b'"}'))
    client, other = Client(hub), Client(hub)
    for name in "abl":
        client.subscribe(name)
    other.subscribe("a")
    client.session.pause()
    hub.publish(("l", b"x" * 1000), ("a", b'{"y":1}'))
    assert not client.cut_off
    hub.publish(("b", b'{"y":1}'), ("a", b'{"y":2}'))
    assert client.cut_off
    assert client.session not in hub.audience.sessions
    assert other.objects["a"]["y"] == 2


def test_a_way_too_long_for_a_packet_cuts_off(hub: Hub) -> None:
    """The old object fits a packet and so does the new one, but not the nulls for all that is gone."""
    hub.commit(create("a", ServiceKind.JSON))
    for part in range(8):
        hub.publish(("a", json.dumps({f"{part}{n}" + "k" * 90: 1 for n in range(10_000)}).encode()))
    client = Client(hub)
    client.subscribe("a")
    client.session.pause()
    for part in range(8):
        hub.publish(("a", json.dumps({f"{part}{n}" + "k" * 90: None for n in range(10_000)}).encode()))
    for part in range(8):
        hub.publish(("a", json.dumps({f"{part}{n}" + "j" * 90: 1 for n in range(10_000)}).encode()))
    client.resume()
    assert "is over the limit" in client.cut_off


def test_the_last_subscriber_may_be_cut_off_while_it_moves_to_a_new_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES", 50)
    hub = Hub()
    hub.commit(create("a", ServiceKind.JSON))
    hub.publish(("a", b'{"x":"' + b"x" * 60 + b'"}'))
    client = Client(hub)
    client.subscribe("a")
    client.session.pause()
    hub.commit(
        Batch(Run.one(b'{"y":1}'), origin="spp", topic="a"), remove("a"), create("a", ServiceKind.JSON)
    )
    assert client.cut_off
    other = Client(hub)
    assert other.subscribe("a")
    assert other.objects == {"a": {}}
