"""The clients and the pushes of what the matcher finds, by compiled code, against a plain loop over the state."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hub.routing.test_subscriptions import ALICE, BOB, EAST, NAMES, SETS, WEST, Following

from headrace.hub.routing.local_matcher import LocalMatcher
from headrace.hub.routing.subscription_parts import parse_fields
from headrace.hub.routing.subscriptions import change, move, replace
from headrace.message import Batch, Run, envelope_rows, map_column
from headrace.wire.attribute.messages import CLIENT_ID_BYTES, ROUTE_BYTES, seq_of
from headrace.wire.sdk.predicate import Between

CAROL = bytes([0xC]) * 12
CHANGES = st.lists(
    st.tuples(
        st.sampled_from([ALICE, BOB, CAROL]),
        st.sampled_from([EAST, WEST]),
        st.one_of(st.none(), st.dictionaries(NAMES, SETS)),
        st.booleans(),
    ),
    max_size=12,
)
SAID = [{}, {"x": 1.0}, {"y": 2.0}, {"x": 3.0, "y": 1.0}, {"x": 9.0, "y": 9.0}]


def batch() -> Batch:
    rows = envelope_rows({"numbers": map_column("numbers", SAID)})
    return Batch(Run.of([b"x"] * len(SAID)), first=1, origin="attribute", columns=rows)


def holds(fields: dict[str, str], said: dict[str, float]) -> bool:
    found = parse_fields(fields).items()
    return all(
        isinstance(each, Between) and name in said and each.low <= said[name] <= each.high
        for name, each in found
    )


@settings(max_examples=50)
@given(CHANGES)
def test_each_client_is_found_once_and_pushed_every_part(changes: list[tuple[Any, ...]]) -> None:
    following = Following()
    matching = LocalMatcher(following.part, lambda _client, _kept: True)
    for client, connector, named, only in changes:
        if named is None:
            following.take(move(client, connector))
        else:
            following.take((replace if only else change)(client, connector, named))
    matches = matching.matcher.match(batch())
    wanted = [
        {
            client: {part for part, each in kept.parts(client).items() if holds(each.fields, said)}
            for client, kept in following.part
        }
        for said in SAID
    ]
    clients = matching.clients_of(matches)
    assert [sorted(clients[row]) for row in range(len(SAID))] == [
        sorted(client for client, parts in each.items() if parts) for each in wanted
    ]
    for without in (None, EAST):
        pushed: dict[int | None, list[bytes]] = {}
        for push in matching.pushes(batch(), matches, without=without):
            routes = [push.clients[at : at + ROUTE_BYTES] for at in range(0, len(push.clients), ROUTE_BYTES)]
            pushed[seq_of(push.msg_id)] = sorted(routes)
        connectors = {client: kept.connector for client, kept in following.part}
        expected = {
            seq: sorted(
                part + connectors[client]
                for client, parts in each.items()
                for part in parts
                if connectors[client] != without
            )
            for seq, each in enumerate(wanted, 1)
        }
        assert list(pushed.items()) == [(seq, routes) for seq, routes in expected.items() if routes]


def test_a_part_that_left_the_index_after_the_match_is_still_pushed() -> None:
    """Another matcher has the client from a later message on; this one has told that it pushes all before."""
    following, here = Following(), [True]
    matching = LocalMatcher(following.part, lambda _client, _kept: here[0])
    following.take(change(ALICE, WEST, {"near": [{"x": '{"use":2,"low":0,"high":9}'}]}))
    matches = matching.matcher.match(batch())
    here[0] = False
    list(matching.sort_out())
    assert not len(matching)
    (part,) = following.part.get(ALICE).parts(ALICE)  # type: ignore[union-attr]
    assert len(part) == CLIENT_ID_BYTES
    pushed = list(matching.pushes(batch(), matches, without=EAST))
    assert [push.clients for push in pushed] == [part + WEST] * 3


def test_all_subscriptions_of_a_client_are_in_one_share() -> None:
    """Else its connector would take the second push of a message for a repeat."""
    following = Following()
    matching = LocalMatcher(following.part, lambda _client, _kept: True)
    named = {f"s{number}": [{name: '{"use":2,"low":0,"high":9}'} for name in "xy"] for number in range(20)}
    clients = [(1 << 40 | number).to_bytes(12) for number in range(50)]
    for client in clients:
        following.take(change(client, EAST if client[-1] % 2 else WEST, named))
    matches = matching.matcher.match(batch())
    whole = list(matching.pushes(batch(), matches, without=None))
    divided = list(matching.shares(batch(), matches, 7, without=None))
    owners = {part: client for client, kept in following.part for part in kept.parts(client)}
    shares: dict[bytes, set[int]] = {}
    joined: dict[bytes, list[bytes]] = {}
    for share, push in divided:
        for at in range(0, len(push.clients), ROUTE_BYTES):
            route = push.clients[at : at + ROUTE_BYTES]
            shares.setdefault(owners[route[:CLIENT_ID_BYTES]], set()).add(share)
            joined.setdefault(push.msg_id, []).append(route)
    assert {client: len(each) for client, each in shares.items()} == dict.fromkeys(clients, 1)
    assert len(set.union(*shares.values())) == 7
    assert [seq_of(push.msg_id) for _, push in divided] == sorted(
        seq_of(push.msg_id) or 0 for _, push in divided
    )
    assert len({(push.msg_id, share) for share, push in divided}) == len(divided)
    for push in whole:
        routes = [push.clients[at : at + ROUTE_BYTES] for at in range(0, len(push.clients), ROUTE_BYTES)]
        assert sorted(joined.pop(push.msg_id)) == sorted(routes)
    assert not joined
