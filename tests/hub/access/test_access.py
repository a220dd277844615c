"""The one question, its counter and its record; and what a reload does to those who hold a principal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from headrace.config import Settings
from headrace.errors import RefusedError
from headrace.hub.access.access import AccessControl
from headrace.hub.access.audit import BURST, MINUTE, MOST, PEERS, AuditKind, AuditTrail
from headrace.hub.access.connection_facts import CONNECTION_NUMBERS, ConnectionFacts
from headrace.hub.access.principal import Action, Principal
from headrace.hub.access.principals import Principals
from headrace.hub.counters import Counters


class Records:
    """A sink that a test looks at."""

    def __init__(self) -> None:
        self.all: list[Mapping[str, Any]] = []

    def write(self, _kind: AuditKind, record: Mapping[str, Any]) -> None:
        self.all.append(record)

    def of(self, kind: AuditKind) -> list[Mapping[str, Any]]:
        return [record for record in self.all if record["event"] == kind]


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Scene:
    def __init__(self, **access: str) -> None:
        self.records = Records()
        self.clock = Clock()
        self.counters = Counters()
        self.access = AccessControl(table(**access), self.counters, AuditTrail(self.records, self.clock))


class Holder:
    def __init__(self, scene: Scene, name: str) -> None:
        principal = scene.access.principals.named(name)
        assert principal is not None
        self.principal = principal
        self.number = next(CONNECTION_NUMBERS)
        self.ended: list[str] = []
        scene.access.join(self)

    def known_as(self, principals: Principals) -> Principal | None:
        return principals.named(self.principal.name)

    def facts(self, now: float) -> ConnectionFacts:
        return ConnectionFacts(self.number, "tube", "peer", self.principal.name, now, 0.0, 0, 0, 0, 0)

    def revoked(self, detail: str) -> None:
        self.ended.append(detail)


def table(**access: str) -> Principals:
    given = {f"access.{name}.allow": rules for name, rules in access.items()}
    return Principals(Settings().override({"auth.required": True, **given}, source="here"), {})


def test_a_refusal_is_counted_and_noted() -> None:
    scene = Scene(gw="read fleet/**")
    gw = scene.access.principals.named("gw")
    assert gw is not None
    assert scene.access.may(gw, Action.READ, "tube", "fleet/1")
    assert not scene.access.may(gw, Action.PUBLISH, "tube", "fleet/1", "10.0.0.1:77")
    assert scene.counters.get("refused_access", door="tube", action="publish", reason="not_allowed") == 1
    (record,) = scene.records.all
    assert record == {
        "time": Clock.now,
        "event": "refused",
        "door": "tube",
        "peer": "10.0.0.1:77",
        "principal": "gw",
        "action": "publish",
        "what": "fleet/1",
        "reason": "not_allowed",
    }
    with pytest.raises(RefusedError, match=r"gw may not publish 'fleet/1' \(forbidden\)"):
        scene.access.check(gw, Action.PUBLISH, "tube", "fleet/1")


def test_a_column_is_refused_for_its_first_forbidden_topic() -> None:
    scene = Scene(gw="publish a,publish b")
    gw = scene.access.principals.named("gw")
    assert gw is not None
    assert scene.access.may_each(gw, Action.PUBLISH, "tube", pa.array(["a", "b", "a"]))
    assert not scene.access.may_each(gw, Action.PUBLISH, "tube", pa.array(["a", "c", "d"]))
    assert [record["what"] for record in scene.records.all] == ["c"]


def test_a_reload_ends_those_whose_right_is_gone_and_no_others() -> None:
    scene = Scene(kept="read a", wider="read a", narrower="read a,read b", gone="read a")
    holders = {name: Holder(scene, name) for name in ("kept", "wider", "narrower", "gone")}
    left = Holder(scene, "gone")
    scene.access.leave(left)
    after = table(kept="read a", wider="read a,publish a", narrower="read a")
    assert scene.access.reload(after) == 2
    assert {name for name, holder in holders.items() if holder.ended} == {"narrower", "gone"}
    assert not left.ended
    assert holders["wider"].principal.may(Action.PUBLISH, "a")
    assert holders["kept"].principal is after.named("kept")


def test_keys_are_replaced_where_they_are_used() -> None:
    scene = Scene()
    keys = scene.access.keys
    client = "f" * 24
    settings = Settings().override({"auth.required": True, f"auth.clients.{client}": "k"}, source="here")
    scene.access.reload(Principals(settings, {}))
    assert keys[client].reveal() == "k"
    scene.access.reload(table())
    assert not keys


class TestFlood:
    def test_of_one_peer_leaves_a_few_records_and_a_sum(self) -> None:
        scene = Scene()
        stranger = scene.access.principals.anonymous
        for port in range(1000):
            scene.access.may(stranger, Action.READ, "tube", "x", f"10.0.0.1:{port}")
        assert len(scene.records.all) == BURST
        scene.clock.now += MINUTE
        scene.access.audit.tick()
        assert scene.records.all[-1]["more"] == 1000 - BURST
        assert len(scene.records.all) == BURST + 1
        assert scene.counters.get("refused_access", door="tube", action="read", reason="unknown") == 1000

    def test_of_many_peers_is_bounded_in_all(self) -> None:
        scene = Scene()
        stranger = scene.access.principals.anonymous
        for peer in range(2 * PEERS):
            scene.access.may(stranger, Action.READ, "tube", "x", f"10.{peer >> 8}.{peer & 255}.1:7")
        assert len(scene.records.all) == MOST
        scene.access.audit.close()
        assert len(scene.records.all) <= MOST + BURST + 1
        assert sum(record.get("more", 1) for record in scene.records.all) == 2 * PEERS

    def test_leaves_room_for_other_kinds(self) -> None:
        scene = Scene(gw="admin")
        gw = scene.access.principals.named("gw")
        assert gw is not None
        for peer in range(2 * PEERS):
            scene.access.turned_away("spp", f"10.{peer >> 8}.{peer & 255}.1:7", "unknown", "wrong_token")
        scene.access.let_in(gw, "tube", "10.0.0.1:7")
        scene.access.changed(gw, "tube", "10.0.0.1:7", "reload", "")
        assert [record["principal"] for record in scene.records.of(AuditKind.LET_IN)] == ["gw"]
        assert [record["action"] for record in scene.records.of(AuditKind.CHANGED)] == ["reload"]

    def test_a_long_name_is_cut(self) -> None:
        scene = Scene()
        scene.access.may(Principal("x"), Action.READ, "tube", "t" * 65535, "10.0.0.1:7")
        assert len(scene.records.all[0]["what"]) == 300


def test_connections_are_listed_and_closed_by_number() -> None:
    scene = Scene(gw="read fleet/**", other="read **")
    gateway, other = Holder(scene, "gw"), Holder(scene, "other")
    assert [(each.connection, each.principal) for each in scene.access.connections(5.0)] == [
        (gateway.number, "gw"),
        (other.number, "other"),
    ]
    assert scene.access.disconnect(other.number)
    assert other.ended == ["closed by an operator"]
    assert not gateway.ended
    assert not scene.access.disconnect(0)
