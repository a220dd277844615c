"""A publish to services becomes creations and messages, next to each other, or a refusal before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import FullError, LimitError, RefusedError, StorageError, UsageError
from headrace.hub.sequence import Hub
from headrace.hub.services.entries import ServiceKind, ServicePolicy, create, obey, remove
from headrace.hub.services.objects import Services
from headrace.hub.services.publish import ServiceChange, ServicePublishing, ServiceUse, uses
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.message import Batch, Message


class House:
    """A hub with services, and those who publish to them."""

    def __init__(self, directory: Path) -> None:
        self.log = Log.open(directory)
        self.services = Services()
        self.hub = Hub(self.log, 1, max_uncommitted=1 << 20, state=HubState(self.services))
        self.changes = ServicePublishing(self.hub, self.services)

    def publish(self, *changes: tuple[str, bytes]) -> list[str]:
        """Publish, and give the reasons for what is refused."""
        rejected = self.changes.publish(
            [ServiceChange(*change) for change in changes], origin="spp", publisher="somebody"
        )
        return [each.reason for each in rejected]

    def entries(self) -> list[Message]:
        return [one for batch in self.log.scan_ops(1) for one in batch]

    def shown(self) -> dict[str, tuple[ServiceKind, bytes]]:
        return {service.id: (service.kind, service.snapshot) for service in self.services}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.log.close()


def test_a_creation_precedes_the_change_that_needs_it(house: House) -> None:
    assert house.publish(("a", b'{"x":1}')) == []
    house.hub.turn(1)
    assert [(one.origin, one.topic, one.payload) for one in house.entries()] == [
        ("log", "service/a", b'{"create":"json"}'),
        ("spp", "a", b'{"x":1}'),
    ]
    assert house.entries()[1].publisher == "somebody"
    assert house.shown() == {"a": (ServiceKind.JSON, b'{"x":1}')}


def test_what_is_under_way_counts(house: House) -> None:
    """The second publish of a turn neither creates again nor may be of another kind."""
    assert house.publish(("a", b'{"x":1}')) == []
    assert house.publish(("a", b"no object"), ("a", b'{"y":2}')) == ["malformed"]
    house.hub.turn(1)
    assert house.shown() == {"a": (ServiceKind.JSON, b'{"x":1,"y":2}')}
    assert len(house.entries()) == 3


def test_changes_of_several_services_are_one_batch(house: House) -> None:
    assert house.publish(("a", b"1"), ("b", b'{"x":1}'), ("a", b"2")) == []
    ends: list[Batch | StorageError] = []
    assert (
        house.changes.publish([ServiceChange("a", b"3")], origin="spp", publisher="", done=ends.append) == []
    )
    house.hub.turn(1)
    assert house.shown() == {"a": (ServiceKind.LAST, b"3"), "b": (ServiceKind.JSON, b'{"x":1}')}
    (end,) = ends
    assert isinstance(end, Batch)
    assert (end.first, end.op) == (4, 6)


def test_a_removed_id_is_not_created_again(house: House) -> None:
    house.hub.submit(create("a", ServiceKind.JSON))
    house.hub.submit(remove("a"))
    house.hub.turn(1)
    assert house.publish(("a", b"no object")) == ["malformed"]
    assert house.publish(("a", b'{"x":1}')) == []
    house.hub.turn(2)
    assert house.shown() == {}
    assert house.entries()[-1].topic == "a"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("", b"1"), "malformed"),
        (("x" * 1025, b"1"), "limit"),
        (("deep", b'{"a":' * 100 + b"1" + b"}" * 100), "limit"),
    ],
)
def test_what_can_be_no_service(house: House, change: tuple[str, bytes], reason: str) -> None:
    assert house.publish(change, ("a", b"1")) == [reason]
    house.hub.turn(1)
    assert list(house.shown()) == ["a"]


def test_no_more_than_the_policy_allows(house: House) -> None:
    house.hub.submit(obey(ServicePolicy(max=2)))
    house.hub.turn(1)
    assert house.publish(("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b"2")) == ["services_max"]
    house.hub.turn(2)
    assert house.publish(("c", b"1")) == ["services_max"]
    assert list(house.shown()) == ["a", "b"]


def test_who_waits_for_a_creation_is_told_when_it_is_done(house: House) -> None:
    told: list[bool] = []

    def there() -> None:
        told.append(house.services.get("a") is not None)

    assert not house.changes.when_created("a", there)
    house.publish(("a", b"1"))
    assert house.changes.when_created("a", there)
    assert told == []
    house.hub.turn(1)
    assert told == [True]
    assert not house.changes.when_created("a", there)


def test_an_earlier_creation_by_somebody_else_holds(house: House) -> None:
    house.hub.submit(create("a", ServiceKind.JSON))
    assert house.publish(("a", b"last, as far as anybody knew")) == []
    house.hub.turn(1)
    assert house.shown() == {"a": (ServiceKind.JSON, b"{}")}


def test_nothing_is_remembered_of_a_creation_that_failed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise FullError("log", "no space")

    with monkeypatch.context() as patch:
        patch.setattr(house.log, "append", full)
        house.publish(("a", b'{"x":1}'))
        house.hub.turn(1)
    assert house.publish(("a", b"1")) == []
    house.hub.turn(2)
    assert house.shown() == {"a": (ServiceKind.LAST, b"1")}


def used(*changes: tuple[str, bytes]) -> dict[str, ServiceUse]:
    topics, payloads = zip(*changes, strict=True)
    columns = [pa.array(topics, pa.string()), pa.array(payloads, pa.binary())]
    return uses([pa.record_batch(columns, names=["topic", "payload"])])


def test_how_changes_use_services() -> None:
    got = used(("a", b"{}"), ("b", b"x"), ("a", b"odd"), ("a", b"odder"), ("c", b'{"y":1}'), ("c", b"{}"))
    assert got == {
        "a": ServiceUse(ServiceKind.JSON, b"odd"),
        "b": ServiceUse(ServiceKind.LAST, b"x"),
        "c": ServiceUse(ServiceKind.JSON, None),
    }
    assert list(got) == ["a", "b", "c"]


def test_what_is_too_deep_for_an_object_is_a_value_like_any_other(house: House) -> None:
    deep = b'{"a":' * 70 + b"1" + b"}" * 70
    with pytest.raises(LimitError, match="depth"):
        house.changes.make_room(used(("last", deep)))
    house.changes.make_room(used(("last", b"x"), ("object", b"{}")))
    house.hub.turn(1)
    house.changes.make_room(used(("last", deep)))
    house.changes.make_room(used(("new", b"x"), ("new", deep)))
    with pytest.raises(RefusedError, match="is a JSON object"):
        house.changes.make_room(used(("object", deep)))


def test_room_is_made_for_all_or_for_none(house: House) -> None:
    house.changes.make_room(used(("a", b"{}"), ("b", b"x")))
    house.hub.turn(1)
    assert house.shown() == {"a": (ServiceKind.JSON, b"{}"), "b": (ServiceKind.LAST, b"")}
    for bad, code in (
        ([("c", b"{}"), ("a", b"no object")], "malformed"),
        ([("c", b"{}"), ("c", b"no object")], "malformed"),
    ):
        with pytest.raises(RefusedError) as refused:
            house.changes.make_room(used(*bad))
        assert refused.value.code == code
        assert "and 'no object' is not a change to one" in str(refused.value)
    with pytest.raises(RefusedError, match="and 0xff00 is not a change to one"):
        house.changes.make_room(used(("a", b"\xff\x00")))
    with pytest.raises(UsageError):
        house.changes.make_room(used(("c", b"{}"), ("", b"x")))
    house.hub.submit(obey(ServicePolicy(max=3)))
    house.hub.turn(2)
    with pytest.raises(RefusedError, match=r"services\.max"):
        house.changes.make_room(used(("c", b"{}"), ("d", b"{}")))
    house.hub.turn(3)
    assert set(house.shown()) == {"a", "b"}
    house.changes.make_room(used(("a", b"{}"), ("c", b"{}")))
    house.hub.turn(4)
    assert set(house.shown()) == {"a", "b", "c"}
