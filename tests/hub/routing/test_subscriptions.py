from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.routing.local_matcher import LocalMatcher
from headrace.hub.routing.subscription_parts import (
    UNNAMED,
    Label,
    Subscription,
    parse_fields,
    serialize_fields,
)
from headrace.hub.routing.subscriptions import (
    MAX_PARTS,
    MAX_ROWS,
    MAX_TABLE_BYTES,
    SubscriptionChange,
    Subscriptions,
    change,
    expire,
    move,
    replace,
    rows_of_tables,
    subscribe,
    tables,
)
from headrace.hub.sequence import Hub
from headrace.hub.state import HubState, entry
from headrace.log import Log
from headrace.message import Batch
from headrace.wire.link.message import SUBSCRIPTIONS
from headrace.wire.sdk.predicate import Between, Equals, Exists, Not, Prefix

ALICE, BOB = bytes([0xA]) * 12, bytes([0xB]) * 12
EAST, WEST = b"east0001", b"west0001"
FIELDS = serialize_fields({"x": Between(0, 1), "city": Equals("Oslo")})


class Following:
    """A part of the state that follows entries as they would be in the log."""

    def __init__(self) -> None:
        self.part = Subscriptions()
        self.op = 0
        self.changes: list[SubscriptionChange] = []
        self.part.observers.append(self.changes.append)

    def take(self, batch: Batch, seq: int = 0) -> int:
        """Take an entry that stands after message ``seq``; return its own position."""
        (message,) = batch
        kind, _, name = message.topic.partition("/")
        assert (kind, message.origin) == ("subscription", "log")
        self.op += 1
        self.part.apply(name, message.payload, seq, self.op)
        return self.op


@pytest.fixture
def following() -> Following:
    return Following()


def test_a_subscription_is_kept_with_its_place_and_entry(following: Following) -> None:
    op = following.take(subscribe(ALICE, EAST, FIELDS), seq=7)
    kept = following.part.get(ALICE)
    assert kept is not None
    assert (kept.connector, kept.seq, kept.op, kept.named) == (EAST, 7, op, {"": [FIELDS]})
    assert kept.parts(ALICE)[ALICE].predicates == {"x": Between(0, 1), "city": Equals("Oslo")}
    assert following.changes == [SubscriptionChange(ALICE, None, kept, ("",))]
    assert ALICE in following.part
    assert list(following.part) == [(ALICE, kept)]


def test_a_second_one_replaces_and_one_without_fields_withdraws(following: Following) -> None:
    following.take(subscribe(ALICE, EAST, FIELDS))
    following.take(subscribe(ALICE, EAST, serialize_fields({"y": Prefix("a")})))
    assert following.part.get(ALICE).parts(ALICE)[ALICE].predicates == {"y": Prefix("a")}  # type: ignore[union-attr]
    following.take(subscribe(ALICE, EAST, {}))
    assert len(following.part) == 0
    assert following.changes[-1].new is None
    assert following.changes[-1].names


def test_moving_keeps_what_is_wanted(following: Following) -> None:
    following.take(move(ALICE, WEST))
    assert ALICE not in following.part
    following.take(subscribe(ALICE, EAST, FIELDS))
    op = following.take(move(ALICE, WEST), seq=3)
    kept = following.part.get(ALICE)
    assert kept is not None
    assert (kept.connector, kept.seq, kept.op, kept.named) == (WEST, 3, op, {"": [FIELDS]})
    assert not following.changes[-1].names


def test_an_expiry_counts_only_if_nothing_has_changed_since(following: Following) -> None:
    # No message comes between them: only their positions tell them apart.
    op = following.take(subscribe(ALICE, EAST, FIELDS))
    later = following.take(move(ALICE, WEST))
    following.take(expire(ALICE, op))
    assert ALICE in following.part
    following.take(expire(ALICE, later))
    assert ALICE not in following.part
    following.take(expire(ALICE, later))


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("xyz", b"{}"),
        (ALICE.hex(), b"nonsense"),
        (ALICE.hex(), b'{"connector": "east0001", "fields": {"x": "{}"}}'),
        (ALICE.hex(), '{"connector": "ž", "fields": {}}'.encode()),
        (ALICE.hex(), b'{"fields": 7}'),
        (ALICE.hex(), b'{"connector": "short", "fields": {}}'),
        ("", b'{"connector": "short"}'),
    ],
)
def test_an_entry_that_says_nothing_is_passed_over(following: Following, name: str, payload: bytes) -> None:
    following.take(subscribe(ALICE, EAST, FIELDS))
    following.part.apply(name, payload, 0, 2)
    assert following.part.get(ALICE).named == {"": [FIELDS]}  # type: ignore[union-attr]


@given(st.dictionaries(st.binary(min_size=12, max_size=12), st.sampled_from([EAST, WEST]), max_size=20))
def test_a_snapshot_brings_all_back(clients: dict[bytes, bytes]) -> None:
    one, other = Following(), Following()
    for client, connector in clients.items():
        one.take(subscribe(client, connector, FIELDS))
    other.take(subscribe(BOB, EAST, FIELDS))
    other.part.load(one.part.dump())
    assert dict(other.part) == dict(one.part)
    if BOB not in clients:
        assert any(change.client == BOB and change.new is None for change in other.changes)


def test_the_log_brings_all_back(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never")
    hub = Hub(log, 1, max_uncommitted=1 << 20, state=HubState(Subscriptions()))
    hub.submit(subscribe(ALICE, EAST, FIELDS))
    hub.submit(subscribe(BOB, WEST, FIELDS))
    hub.submit(entry("subscription", ALICE.hex(), b'{"connector": "west0001"}'))
    hub.turn(1)
    again = Subscriptions()
    Hub(log, 1, max_uncommitted=1 << 20, state=HubState(again))
    assert {client: kept.connector for client, kept in again} == {ALICE: WEST, BOB: WEST}
    log.close()


def test_fields_say_what_predicates_say() -> None:
    predicates = {"a": Not(Exists(True)), "b": Equals("ž")}
    assert parse_fields(serialize_fields(predicates)) == predicates


def test_the_table_comes_in_pieces_bounded_in_rows_and_bytes() -> None:
    kept = [(n.to_bytes(12), Subscription(EAST, n, n, b'{"x":"{}"}')) for n in range(MAX_ROWS + 1)]
    pieces = list(tables(kept))
    assert [piece.num_rows for piece in pieces] == [MAX_ROWS, 1]
    assert all(piece.schema == SUBSCRIPTIONS for piece in pieces)
    long = b'{"x":"%b"}' % (b"y" * (MAX_TABLE_BYTES // 2))
    assert [p.num_rows for p in tables([(ALICE, Subscription(EAST, 1, 1, long))] * 5)] == [2, 2, 1]
    assert list(tables([])) == []


Y = serialize_fields({"y": Equals("z")})["y"]

NAMES = st.sampled_from(["", "near", "far"])
SETS = st.lists(
    st.dictionaries(
        st.sampled_from("xy"), st.integers(0, 3).map(lambda n: f'{{"use":2,"low":{n},"high":9}}'), min_size=1
    ),
    max_size=3,
)


@given(
    st.lists(
        st.tuples(st.sampled_from([ALICE, BOB]), st.dictionaries(NAMES, SETS), st.booleans()), max_size=12
    )
)
def test_named_subscriptions_follow_a_plain_model(
    changes: list[tuple[bytes, dict[str, list[dict[str, str]]], bool]],
) -> None:
    following, model = Following(), {ALICE: dict[str, Any](), BOB: dict[str, Any]()}
    for client, named, only in changes:
        following.take((replace if only else change)(client, EAST, named))
        model[client] = {
            name: each for name, each in {**({} if only else model[client]), **named}.items() if each
        }
    for client, wanted in model.items():
        kept = following.part.get(client)
        assert (kept.named if kept is not None else {}) == wanted
        for part, each in (kept.parts(client) if kept is not None else {}).items():
            assert following.part.find_part(part) == (client, each.label)
    parts = sum(len(sets) for named in model.values() for sets in named.values())
    assert len(following.part) == parts
    copy = Subscriptions()
    copy.load(following.part.dump())
    assert dict(copy) == dict(following.part)
    assert len(copy) == parts
    again = Subscriptions()
    again.add(rows_of_tables(tables(following.part)))
    assert dict(again) == dict(following.part)


@pytest.mark.parametrize("wanted", [[FIELDS], []], ids=["replaced", "withdrawn"])
def test_a_change_costs_the_same_however_many_subscriptions_the_client_has(wanted: list[Any]) -> None:
    """A client's flood of small changes would occupy the hub's only thread for seconds."""

    def work(others: int) -> Counter[str]:
        following, done = Following(), Counter[str]()
        LocalMatcher(following.part, lambda _client, _kept: True)
        following.take(
            replace(ALICE, EAST, {f"n{n}": [FIELDS] for n in range(others)} | {"near": [{"x": Y}]})
        )
        entered = change(ALICE, EAST, {"near": wanted})

        def count(_frame: object, event: str, called: Any) -> None:
            if event == "c_call" and called.__name__ in ("decode", "encode", "openssl_sha256"):
                done[called.__name__] += 1

        sys.setprofile(count)
        try:
            following.take(entered)
        finally:
            sys.setprofile(None)
        assert following.changes[-1].names == ("near",)
        return done

    few = work(2)
    assert few.total() > 0
    assert work(500) == few


def test_a_client_may_not_be_known_by_anothers_part() -> None:
    """Only a client that chose its id for it could: it gets no subscription, and takes none away."""
    following = Following()
    following.take(change(ALICE, EAST, {"near": [FIELDS]}))
    (part,) = following.part.get(ALICE).parts(ALICE)  # type: ignore[union-attr]
    following.take(subscribe(part, EAST, FIELDS))
    assert following.part.get(part) is None
    assert following.part.find_part(part) == (ALICE, Label("near"))
    other = Following()
    other.take(subscribe(part, EAST, FIELDS))
    other.take(change(ALICE, EAST, {"near": [FIELDS]}))
    assert other.part.get(ALICE) is None
    assert other.part.find_part(part) == (part, UNNAMED)


def test_one_client_has_a_bounded_number_of_them() -> None:
    following = Following()
    following.take(change(ALICE, EAST, {f"{n}": [FIELDS] for n in range(MAX_PARTS)}))
    assert len(following.part) == MAX_PARTS
    following.take(change(ALICE, EAST, {"more": [FIELDS]}))
    assert len(following.part) == MAX_PARTS
