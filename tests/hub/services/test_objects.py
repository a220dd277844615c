"""Services follow the log and nothing else: against a plain model, restored and replayed at any point."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace
from tests.hub.service_model import Model

from headrace.errors import LimitError, UsageError
from headrace.hub.services import objects as module
from headrace.hub.services.entries import ServiceKind, ServicePolicy, create, obey, remove
from headrace.hub.services.objects import (
    ChangeRefused,
    Service,
    ServiceChanged,
    ServiceCreated,
    ServiceEvent,
    ServiceRemoved,
    Services,
)
from headrace.hub.state import HubState, entry
from headrace.log.snapshots.snapshot import Snapshot
from headrace.message import NOT_A_MESSAGE, SCHEMA, Batch, Run, merge
from headrace.wire.spp import MAX_PACKET, MAX_SERVICE

IDS = ["a", "b", "fleet/42", "hold/a", "größe"]
PAYLOADS = [
    b"", b"x", b"\xff\x00", b"1", b"[1]", b'"text"', b"null", b"{}", b'{"x":1}', b'{"x":null}', b'{"x":true,"y":2}',
    b'{"deep":{"a":1,"b":[null,{"c":null}]}}', b'{"deep":{"a":null}}', b'{"deep":3}', b'{"big":123456789012345678901}',
    b" { } ", b"{", b'{"x":1e3}',
]  # fmt: skip
MAXES = [0, 1, 3, 100_000]

topics = st.sampled_from([*IDS, "", "unknown"])
kinds = st.sampled_from(ServiceKind)
messages = st.tuples(topics, st.sampled_from(PAYLOADS))


class Log:
    """Batches as a hub numbers them."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def append(self, batch: Batch) -> Batch:
        op, seq = (self.batches[-1].last_op, self.batches[-1].last) if self.batches else (0, 0)
        first = seq if batch.is_entries else seq + 1
        self.batches.append(batch.numbered(op + 1, first, 1_000 + op, 7))
        return self.batches[-1]

    def sealed(self) -> Iterable[Batch]:
        """The log with the messages between two entries as one batch in columns, as a sealed segment gives it."""
        for are_entries, some in groupby(self.batches, lambda batch: batch.is_entries):
            batches = list(some)
            if are_entries:
                yield from batches
            else:
                yield replace(Batch.over(merge(batches)), op=batches[0].op)


def shown(services: Services) -> tuple[Any, ...]:
    """Everything a state says, as plain values."""
    there = [
        (s.id, str(s.kind), json.loads(s.snapshot) if s.kind is ServiceKind.JSON else s.snapshot)
        for s in services
    ]
    return (services.policy.auto, services.policy.max), there


class ServicesFollowTheLog(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.log = Log()
        self.services = Services()
        self.state = HubState(self.services)
        self.held: list[Service] = []

    @rule(name=st.sampled_from(IDS), kind=kinds)
    def create(self, name: str, kind: ServiceKind) -> None:
        self.model.create(name, kind)
        self.apply(create(name, kind))

    @rule(name=st.sampled_from(IDS), subscribed=st.booleans())
    def remove(self, name: str, subscribed: bool) -> None:
        service = self.services.get(name)
        if service is not None and subscribed:
            self.held.append(service)
        self.model.remove(name)
        self.apply(remove(name))

    @rule(auto=st.booleans(), most=st.sampled_from(MAXES))
    def policy(self, auto: bool, most: int) -> None:
        self.model.policy = (auto, most)
        self.apply(obey(ServicePolicy(auto, most)))

    @rule(topic=topics, payloads=st.lists(st.sampled_from(PAYLOADS), min_size=1, max_size=3))
    def one_topic(self, topic: str, payloads: list[bytes]) -> None:
        for payload in payloads:
            self.model.message(topic, payload)
        run = Run.one(payloads[0]) if len(payloads) == 1 else Run.of(payloads)
        self.apply(Batch(run, origin="spp", topic=topic))

    @rule(rows=st.lists(messages, min_size=1, max_size=6))
    def many_topics(self, rows: list[tuple[str, bytes]]) -> None:
        for topic, payload in rows:
            self.model.message(topic, payload)
        columns = column("topic", [topic for topic, _ in rows])
        self.apply(Batch(Run.of(payload for _, payload in rows), origin="tube", columns=columns))

    @rule()
    def entries_of_other_parts(self) -> None:
        self.apply(entry("hold", "a", b'{"seq": 1}'))

    @rule()
    def subscribers_leave(self) -> None:
        self.held.clear()

    @rule()
    def restart(self) -> None:
        """From a snapshot at this very point."""
        snapshot = Snapshot(UUID(int=1), self.state.op, self.state.seq, self.state.sections())
        self.services = Services()
        self.state = HubState(self.services)
        self.state.load(snapshot)

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        there = [(name, kind, value) for name, (kind, value) in self.model.services.items()]
        assert shown(self.services) == (self.model.policy, there)
        assert {name: self.services.kind(name) for name in self.model.removed} == self.model.removed

    def teardown(self) -> None:
        """However the log is cut into batches and snapshots, it gives the same state."""
        kept = self.state.sections()[Services.name]
        for batches in (self.log.batches, self.log.sealed()):
            state = HubState(services := Services())
            for batch in batches:
                state.apply(batch)
            assert services.dump() == kept
        gc.collect(0)

    def apply(self, batch: Batch) -> None:
        self.state.apply(self.log.append(batch))


TestServicesFollowTheLog = ServicesFollowTheLog.TestCase


def column(name: str, values: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values)], schema=pa.schema([SCHEMA.field(name)]))


@pytest.fixture
def watched() -> Watched:
    return Watched()


class Watched:
    """Services with somebody who watches."""

    def __init__(self) -> None:
        self.log = Log()
        self.services = Services()
        self.state = HubState(self.services)
        self.events: list[ServiceEvent] = []
        self.services.observer = self.events.append

    def apply(self, *batches: Batch) -> list[ServiceEvent]:
        for batch in batches:
            self.state.apply(self.log.append(batch))
        told, self.events[:] = list(self.events), []
        return told

    def message(self, topic: str, payload: bytes) -> list[ServiceEvent]:
        return self.apply(Batch(Run.one(payload), origin="spp", topic=topic))


def test_each_step_is_told(watched: Watched) -> None:
    (created,) = watched.apply(create("a", ServiceKind.JSON))
    service = watched.services.get("a")
    assert service is not None
    assert created == ServiceCreated(service, None)
    assert watched.message("a", b'{"x": 1}') == [ServiceChanged(service, b'{"x": 1}', {})]
    assert watched.message("a", b'{"x": 1}') == [ServiceChanged(service, b'{"x": 1}', {"x": 1})], (
        "nothing changes, it is told"
    )
    assert (service.created, service.seq, service.snapshot) == (1, 2, b'{"x":1}')
    assert watched.apply(remove("a")) == [ServiceRemoved(service)]
    assert watched.apply(remove("a")) == []
    assert watched.services.get("a") is None


def test_creating_what_is_there_changes_nothing(watched: Watched) -> None:
    watched.apply(create("a", ServiceKind.JSON))
    watched.message("a", b'{"x":1}')
    assert watched.apply(create("a", ServiceKind.LAST)) == []
    assert watched.services.kind("a") is ServiceKind.JSON


@pytest.mark.parametrize(
    "bad", [b"", b"1", b"[]", b"null", b"{", b"\xff", b'{"a":' * 100 + b"1" + b"}" * 100]
)
def test_what_a_json_service_cannot_take_is_refused(watched: Watched, bad: bytes) -> None:
    watched.apply(create("a", ServiceKind.JSON))
    watched.message("a", b'{"x":1}')
    (refused,) = watched.message("a", bad)
    assert isinstance(refused, ChangeRefused)
    assert (refused.service_id, refused.seq) == ("a", 2)
    service = watched.services.get("a")
    assert service is not None
    assert (service.value, service.seq) == ({"x": 1}, 1)


def test_a_removed_object_goes_on_for_those_who_hold_it(watched: Watched) -> None:
    watched.apply(create("a", ServiceKind.JSON))
    watched.message("a", b'{"x":1}')
    old = watched.services.get("a")
    assert old is not None
    watched.apply(remove("a"))
    assert watched.message("a", b'{"y":2}') == [ServiceChanged(old, b'{"y":2}', {"x": 1})]
    assert isinstance(watched.message("a", b"no")[0], ChangeRefused)
    (created,) = watched.apply(create("a", ServiceKind.LAST))
    assert isinstance(created, ServiceCreated)
    assert created.instead is old
    assert created.service is watched.services.get("a")
    watched.message("a", b"new")
    assert old.value == {"x": 1, "y": 2}
    assert created.service.value == b"new"


def test_a_removed_object_that_nobody_holds_is_gone(watched: Watched) -> None:
    watched.apply(create("a", ServiceKind.JSON), remove("a"))
    assert watched.message("a", b'{"y":2}') == []
    assert watched.services.kind("a") is ServiceKind.JSON
    (created,) = watched.apply(create("a", ServiceKind.LAST))
    assert isinstance(created, ServiceCreated)
    assert created.instead is None


def test_only_an_explicit_create_offers_a_removed_id_again(watched: Watched) -> None:
    watched.apply(obey(ServicePolicy(auto=True)))
    watched.message("a", b"1")
    assert watched.services.kind("a") is ServiceKind.LAST
    watched.apply(remove("a"))
    assert watched.message("a", b"2") == []
    assert watched.services.get("a") is None
    watched.apply(create("a", ServiceKind.LAST))
    assert watched.services.get("a") is not None


def test_removed_ids_are_remembered_up_to_a_bound(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMOVED", 2)
    watched.apply(obey(ServicePolicy(auto=True)))
    for name in "abc":
        watched.apply(create(name, ServiceKind.LAST), remove(name))
    watched.message("a", b"1")
    watched.message("b", b"1")
    assert [service.id for service in watched.services] == ["a"]


def test_a_forgotten_id_comes_back_though_somebody_holds_the_old_object(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REMOVED", 1)
    watched.apply(obey(ServicePolicy(auto=True)), create("a", ServiceKind.LAST))
    held = watched.services.get("a")
    watched.apply(remove("a"), create("b", ServiceKind.LAST), remove("b"))
    watched.message("a", b"1")
    assert watched.services.get("a") is not None
    assert watched.services.get("a") is not held


def test_a_policy_is_obeyed_at_its_place(watched: Watched) -> None:
    watched.message("early", b"1")
    watched.apply(obey(ServicePolicy(auto=True, max=2)))
    watched.message("a", b"1")
    watched.message("b", b"1")
    (refused,) = watched.message("c", b"1")
    assert isinstance(refused, ChangeRefused)
    assert refused.reason == "services_max"
    watched.apply(obey(ServicePolicy(auto=False, max=1)))
    assert [service.id for service in watched.services] == ["a", "b"], "those that are there stay"
    watched.apply(remove("a"), remove("b"), create("d", ServiceKind.LAST))
    assert [service.id for service in watched.services] == ["d"]


def test_a_topic_that_spp_could_not_name_creates_nothing(watched: Watched) -> None:
    watched.apply(obey(ServicePolicy(auto=True)))
    assert isinstance(watched.message("x" * (MAX_SERVICE + 1), b"1")[0], ChangeRefused)
    assert watched.message("", b"1") == []
    assert isinstance(watched.message("x" * MAX_SERVICE, b"1")[0], ServiceCreated)


def test_an_entry_is_no_message(watched: Watched) -> None:
    """Not even where its topic is a service's id."""
    watched.apply(create("hold/a", ServiceKind.LAST))
    assert watched.apply(entry("hold", "a", b'{"seq": 1}')) == []
    several = Batch(
        Run.of([b"{}", b"{}"]), origin=NOT_A_MESSAGE, columns=column("topic", ["hold/a", "hold/b"])
    )
    assert watched.apply(several) == []
    (changed,) = watched.message("hold/a", b"yes")
    assert isinstance(changed, ServiceChanged)
    assert changed.change == b"yes"


def test_several_may_be_created_between_two_messages(watched: Watched) -> None:
    watched.message("a", b"before")
    kinds = column("topic", [f"service/{name}" for name in "abc"])
    created = watched.apply(
        Batch(Run.of([b'{"create": "last"}'] * 3), origin=NOT_A_MESSAGE, columns=kinds), remove("b")
    )
    assert len(created) == 4
    assert [(service.id, service.seq) for service in watched.services] == [("a", 1), ("c", 1)]
    assert [service.id for service in watched.services.after(2, 9)] == ["c"]


def test_an_object_always_fits_the_packet_that_carries_it_whole(watched: Watched) -> None:
    watched.apply(create("a", ServiceKind.JSON), create("b", ServiceKind.LAST))
    room = MAX_PACKET - 8 - 1
    half = b'{"%s":"' + b"x" * (room // 2) + b'"}'
    assert isinstance(watched.message("a", half % b"one")[0], ServiceChanged)
    assert isinstance(watched.message("a", half % b"two")[0], ChangeRefused)
    service = watched.services.get("a")
    assert service is not None
    assert list(service.value) == ["one"]
    assert isinstance(watched.message("a", half % b"one")[0], ServiceChanged), (
        "in the place of what is there, there is room"
    )
    assert isinstance(watched.message("b", b"x" * room)[0], ServiceChanged)
    assert isinstance(watched.message("b", b"x" * (room + 1))[0], ChangeRefused)


def test_services_come_in_the_order_of_their_creation(watched: Watched) -> None:
    for name in "abcd":
        watched.apply(create(name, ServiceKind.LAST))
    watched.apply(remove("b"), create("b", ServiceKind.JSON))
    assert [service.id for service in watched.services] == ["a", "c", "d", "b"]
    assert [service.id for service in watched.services.after(0, 2)] == ["a", "c"]
    assert [service.id for service in watched.services.after(3, 9)] == ["d", "b"]
    assert watched.services.after(6, 9) == []


def test_values_that_were_taken_stay_as_they_were(watched: Watched) -> None:
    watched.apply(create("a", ServiceKind.JSON))
    watched.message("a", b'{"x":{"y":1}}')
    service = watched.services.get("a")
    assert service is not None
    taken = service.value
    watched.message("a", b'{"x":{"y":2,"z":3}}')
    assert taken == {"x": {"y": 1}}


@pytest.mark.parametrize("bad", ["", "x" * (MAX_SERVICE + 1), "\ud800"])
def test_an_id_that_cannot_be_is_our_callers_mistake(bad: str) -> None:
    for make in (lambda: create(bad, ServiceKind.LAST), lambda: remove(bad)):
        with pytest.raises((UsageError, LimitError)):
            make()


def test_entries_read_as_the_page_has_them() -> None:
    assert (create("a/b", ServiceKind.JSON).topic, create("a/b", ServiceKind.JSON).run[0]) == (
        "service/a/b",
        b'{"create":"json"}',
    )
    assert (remove("a").topic, remove("a").run[0]) == ("service/a", b'{"remove":true}')
    policy = obey(ServicePolicy(auto=True, max=5, most_bytes=700))
    assert (policy.topic, msgspec.json.decode(policy.run[0])) == (
        "service/",
        {"auto": True, "max": 5, "bytes": 700},
    )


class TestBytes:
    def test_all_services_together_have_no_more_than_the_policy_says(self) -> None:
        state = HubState(services := Services())
        log = Log()
        refused: list[ChangeRefused] = []
        services.observer = lambda event: refused.append(event) if isinstance(event, ChangeRefused) else None

        def publish(topic: str, payload: bytes) -> None:
            state.apply(log.append(Batch(Run.one(payload), origin="test", topic=topic)))

        state.apply(log.append(obey(ServicePolicy(auto=True, max=100, most_bytes=30))))
        publish("a", b"x" * 20)
        assert services.total_bytes == 21
        publish("b", b"x" * 20)
        publish("b", b"x" * 8)
        assert (services.total_bytes, [each.reason for each in refused]) == (30, ["state_bytes"])
        publish("c", b"")
        assert (services.get("c"), refused[-1].reason) == (None, "state_bytes")
        assert "limits.state_bytes" in str(refused[-1].detail)
        # What does not grow is taken, and what shrinks makes room.
        publish("a", b"y" * 20)
        publish("a", b"y")
        publish("b", b"x" * 20)
        assert services.total_bytes == 23
        state.apply(log.append(remove("b")))
        assert services.total_bytes == 2
        again = Services()
        again.load(services.dump())
        assert (again.total_bytes, again.policy) == (2, services.policy)

    def test_the_owner_is_charged_what_its_services_take(self) -> None:
        state = HubState(services := Services())
        log = Log()
        state.apply(log.append(create("a", ServiceKind.JSON)))
        service = services.get("a")
        assert service is not None
        one, other = Owner(), Owner()
        service.belongs_to(one)
        assert one.state_bytes == len("a") + len("{}")
        state.apply(log.append(Batch(Run.one(b'{"n":1}'), origin="test", topic="a")))
        assert one.state_bytes == len("a") + len('{"n":1}')
        service.belongs_to(other)
        assert (one.state_bytes, other.state_bytes) == (0, 8)
        state.apply(log.append(remove("a")))
        assert other.state_bytes == 0


class Owner:
    state_bytes = 0
