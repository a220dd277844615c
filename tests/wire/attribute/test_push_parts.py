"""Pushes and heartbeats in parts: what is split is joined, within bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LimitError, MalformedError, UnexpectedError
from headrace.wire.attribute.items import MAX_BODY
from headrace.wire.attribute.messages import (
    AnyPush,
    DispatcherDecoder,
    DispatcherPush,
    Extra,
    Heartbeat,
    MatcherPush,
    Push,
    RouterDecoder,
    msg_id,
    serialize,
)
from headrace.wire.attribute.push_parts import (
    MAX_CONNECTORS,
    MAX_HELD_BYTES,
    HeartbeatJoiner,
    PushJoiner,
    split,
    split_heartbeat,
)

MSG_ID = msg_id(1000, 60396)
OTHER_ID = msg_id(1001, 60396)
CLIENT = bytes(range(12))

HEAD, MID, TAIL, SINGLE = Extra.HEAD, Extra.MID, Extra.TAIL, Extra.SINGLE


def clients(count: int) -> bytes:
    return b"".join(number.to_bytes(12) for number in range(count))


def routes(count: int) -> bytes:
    return b"".join(number.to_bytes(12) + b"conn-%03d" % (number % 1000) for number in range(count))


def extras(parts: list[AnyPush]) -> list[Extra]:
    return [part.extra for part in parts]


def join_all(joiner: PushJoiner, parts: list[AnyPush], now: float = 0.0) -> list[AnyPush]:
    return [whole for part in parts if (whole := joiner.join(part, now)) is not None]


PUSHES = st.one_of(
    st.builds(
        MatcherPush,
        st.just(MSG_ID),
        st.integers(0, 6000).map(lambda size: bytes(i % 251 for i in range(size))),
        st.integers(0, 400).map(routes),
    ),
    st.builds(
        DispatcherPush,
        st.just(MSG_ID),
        st.just(b"conn-001"),
        st.integers(1900, 2100).map(bytes),
        st.integers(0, 400).map(clients),
    ),
    st.builds(Push, st.just(MSG_ID), st.integers(0, 2100).map(bytes), st.integers(0, 400).map(clients)),
)


@given(PUSHES)
def test_what_is_split_is_joined(push: AnyPush) -> None:
    parts = list(split(push))
    joiner = PushJoiner()
    assert [joiner.join(part, 0.0) for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert joiner.join(parts[-1], 0.0) == push
    assert joiner.held_bytes == joiner.held_pushes == 0


@given(PUSHES)
def test_every_part_can_be_sent(push: AnyPush) -> None:
    parts = list(split(push))
    wires = [serialize(part) for part in parts]
    assert all(len(wire) <= 4 + MAX_BODY for wire in wires)
    if len(parts) == 1:
        assert extras(parts) == [SINGLE]
        assert parts == [push]
    else:
        assert extras(parts) == [HEAD, *[MID] * (len(parts) - 2), TAIL]
    decoder = RouterDecoder() if isinstance(push, Push) else DispatcherDecoder()
    assert list(decoder.feed(b"".join(wires))) == parts


@given(PUSHES)
def test_parts_are_as_few_as_possible(push: AnyPush) -> None:
    *full, last = list(split(push))
    for part in full:
        assert len(serialize(part)) + push.ENTRY_BYTES + 3 > 4 + MAX_BODY
    assert last.payload or last.clients or not full


def test_a_head_carries_the_payload_and_the_first_clients() -> None:
    head, tail = split(Push(MSG_ID, bytes(1000), clients(100)))
    room = (MAX_BODY - 15 - 3 - 1000 - 3) // 12
    assert head == Push(MSG_ID, bytes(1000), clients(room), HEAD)
    assert tail == Push(MSG_ID, b"", clients(100)[12 * room :], TAIL)


def test_a_payload_goes_on_in_the_next_part() -> None:
    payload = bytes(i % 256 for i in range(3000))
    head, tail = split(Push(MSG_ID, payload, CLIENT))
    assert head == Push(MSG_ID, payload[: MAX_BODY - 15 - 3], b"", HEAD)
    assert tail == Push(MSG_ID, payload[MAX_BODY - 15 - 3 :], CLIENT, TAIL)


@pytest.mark.parametrize("size", range(MAX_BODY - 15 - 3 - 16, MAX_BODY - 15 - 3 + 2))
def test_around_the_brim(size: int) -> None:
    push = Push(MSG_ID, bytes(size), CLIENT)
    parts = list(split(push))
    assert len(parts) == (1 if 15 + 3 + size + 15 <= MAX_BODY else 2)
    assert join_all(PushJoiner(), parts) == [push]
    for part in parts:
        assert len(serialize(part)) <= 4 + MAX_BODY


def test_what_is_no_client_list_is_not_split() -> None:
    with pytest.raises(MalformedError):
        list(split(Push(MSG_ID, b"", bytes(13))))


# Joining


def test_a_single_is_whole_at_once() -> None:
    joiner = PushJoiner(max_bytes=0, max_pushes=0, max_seconds=0)
    push = Push(MSG_ID, b"snow", CLIENT)
    assert joiner.join(push, 0.0) is push


def test_clients_count_only_once_the_tail_has_come() -> None:
    joiner = PushJoiner()
    assert joiner.join(Push(MSG_ID, b"sno", CLIENT, HEAD), 0.0) is None
    assert joiner.join(Push(MSG_ID, b"w", CLIENT, MID), 1.0) is None
    assert (joiner.held_bytes, joiner.held_pushes) == (28, 1)
    assert joiner.join(Push(MSG_ID, b"", CLIENT, TAIL), 2.0) == Push(MSG_ID, b"snow", CLIENT * 3)


def test_pushes_may_come_interleaved() -> None:
    parts: list[AnyPush] = [
        Push(MSG_ID, b"a", CLIENT, HEAD),
        Push(OTHER_ID, b"x", CLIENT, HEAD),
        Push(MSG_ID, b"b", b"", TAIL),
        Push(OTHER_ID, b"y", b"", TAIL),
    ]
    assert join_all(PushJoiner(), parts) == [Push(MSG_ID, b"ab", CLIENT), Push(OTHER_ID, b"xy", CLIENT)]


def test_the_same_message_for_two_connectors_is_two_pushes() -> None:
    one = DispatcherPush(MSG_ID, b"conn-001", b"snow", CLIENT)
    two = DispatcherPush(MSG_ID, b"conn-002", b"snow", CLIENT)
    parts: list[AnyPush] = [
        replace(one, clients=b"", extra=HEAD),
        replace(two, clients=b"", extra=HEAD),
        replace(two, payload=b"", extra=TAIL),
        replace(one, payload=b"", extra=TAIL),
    ]
    assert join_all(PushJoiner(), parts) == [two, one]


@pytest.mark.parametrize("extra", [MID, TAIL])
def test_a_part_without_a_head_is_refused(extra: Extra) -> None:
    with pytest.raises(UnexpectedError, match=f"{extra.name} without a Head"):
        PushJoiner().join(Push(MSG_ID, b"", CLIENT, extra), 0.0)


def test_nothing_follows_a_tail() -> None:
    joiner = PushJoiner()
    joiner.join(Push(MSG_ID, b"", CLIENT, HEAD), 0.0)
    joiner.join(Push(MSG_ID, b"", CLIENT, TAIL), 0.0)
    with pytest.raises(UnexpectedError):
        joiner.join(Push(MSG_ID, b"", CLIENT, TAIL), 0.0)


def test_a_second_head_begins_again() -> None:
    joiner = PushJoiner(max_pushes=1, max_bytes=20)
    joiner.join(Push(MSG_ID, b"first try", b"", HEAD), 0.0)
    joiner.join(Push(MSG_ID, b"second", b"", HEAD), 9.0)
    assert joiner.held_bytes == 6
    assert joiner.join(Push(MSG_ID, b"", CLIENT, TAIL), 30.0) == Push(MSG_ID, b"second", CLIENT)


# Bounds


def test_bounded_in_bytes_over_all_pushes() -> None:
    joiner = PushJoiner(max_bytes=40)
    joiner.join(Push(MSG_ID, bytes(10), CLIENT, HEAD), 0.0)
    joiner.join(Push(OTHER_ID, bytes(18), b"", HEAD), 0.0)
    with pytest.raises(LimitError) as caught:
        joiner.join(Push(MSG_ID, b"x", b"", MID), 0.0)
    assert (caught.value.value, caught.value.limit) == (41, 40)
    assert joiner.held_bytes == 40
    joiner.join(Push(OTHER_ID, b"", b"", TAIL), 0.0)
    assert joiner.join(Push(MSG_ID, b"x", b"", TAIL), 0.0) == Push(MSG_ID, bytes(10) + b"x", CLIENT)


def test_bounded_in_pushes() -> None:
    joiner = PushJoiner(max_pushes=2)
    for seq in (1, 2):
        joiner.join(Push(msg_id(seq, 0), b"", b"", HEAD), 0.0)
    with pytest.raises(LimitError) as caught:
        joiner.join(Push(msg_id(3, 0), b"", b"", HEAD), 0.0)
    assert (caught.value.value, caught.value.limit) == (3, 2)
    assert joiner.held_pushes == 2


def test_bounded_in_seconds() -> None:
    joiner = PushJoiner(max_seconds=30)
    joiner.join(Push(MSG_ID, b"snow", b"", HEAD), 100.0)
    joiner.join(Push(MSG_ID, b"", CLIENT, MID), 130.0)
    with pytest.raises(LimitError, match="seconds since the Head"):
        joiner.join(Push(MSG_ID, b"", CLIENT, TAIL), 130.5)


def test_what_is_overdue_is_dropped_and_named() -> None:
    joiner = PushJoiner(max_seconds=30)
    joiner.join(Push(MSG_ID, b"snow", b"", HEAD), 100.0)
    joiner.join(Push(OTHER_ID, b"rain", b"", HEAD), 120.0)
    assert joiner.expire(130.0) == []
    assert joiner.expire(140.0) == [MSG_ID]
    assert (joiner.held_pushes, joiner.held_bytes) == (1, 4)
    with pytest.raises(UnexpectedError):
        joiner.join(Push(MSG_ID, b"", CLIENT, TAIL), 140.0)
    assert joiner.expire(151.0) == [OTHER_ID]
    assert joiner.held_bytes == 0


def test_a_large_fan_out_fits() -> None:
    push = MatcherPush(MSG_ID, bytes(65_526), routes(20_000))
    assert len(push.payload) + len(push.clients) < MAX_HELD_BYTES
    parts: list[AnyPush] = list(split(push))
    assert join_all(PushJoiner(), parts) == [push]


PARTS = st.builds(
    Push,
    st.sampled_from([MSG_ID, OTHER_ID, msg_id(3, 1)]),
    st.binary(max_size=20),
    st.integers(0, 3).map(clients),
    st.sampled_from(Extra),
)


@given(st.lists(st.tuples(PARTS, st.floats(0, 20)), max_size=30))
def test_whatever_comes_the_bounds_hold(arrivals: list[tuple[Push, float]]) -> None:
    joiner = PushJoiner(max_bytes=60, max_pushes=2, max_seconds=30)
    now = 0.0
    begun: dict[bytes, list[Push]] = {}
    for part, later in arrivals:
        now += later
        try:
            whole = joiner.join(part, now)
        except (LimitError, UnexpectedError):
            return
        if part.extra is SINGLE:
            assert whole == part
            continue
        if part.extra is HEAD:
            begun[part.msg_id] = []
        begun[part.msg_id].append(part)
        assert joiner.held_bytes <= 60
        assert joiner.held_pushes <= 2
        if part.extra is TAIL:
            parts = begun.pop(part.msg_id)
            payload = b"".join(part.payload for part in parts)
            assert whole == Push(part.msg_id, payload, b"".join(part.clients for part in parts))
        else:
            assert whole is None
        assert joiner.held_bytes == sum(
            len(part.payload) + len(part.clients) for parts in begun.values() for part in parts
        )


# Heartbeats


def ids(count: int) -> bytes:
    return b"".join(b"conn%04d" % number for number in range(count))


def whole(joiner: HeartbeatJoiner, parts: list[Heartbeat]) -> list[Heartbeat]:
    return [heartbeat for part in parts if (heartbeat := joiner.join(part)) is not None]


@given(st.integers(0, MAX_CONNECTORS), st.integers(0, MAX_CONNECTORS))
def test_a_heartbeat_is_split_and_joined(connectors: int, relying: int) -> None:
    heartbeat = Heartbeat(7, ids(connectors), ids(relying))
    parts = list(split_heartbeat(heartbeat))
    wire = [serialize(part) for part in parts]
    assert all(len(each) <= MAX_BODY + 4 for each in wire)
    read = [part for part in DispatcherDecoder().feed(b"".join(wire)) if isinstance(part, Heartbeat)]
    joiner = HeartbeatJoiner()
    for _ in range(2):
        assert whole(joiner, read) == [heartbeat]
    assert (len(parts) == 1) == (connectors + relying <= 247), "only what does not fit comes in parts"
    assert [part.ends for part in parts] == [False] * (len(parts) - 1) + [True]


def test_a_heartbeat_that_begins_again_is_the_one_that_counts() -> None:
    joiner = HeartbeatJoiner()
    head, *_ = split_heartbeat(Heartbeat(7, ids(600)))
    later = list(split_heartbeat(Heartbeat(8, ids(300))))
    assert whole(joiner, [head, *later]) == [Heartbeat(8, ids(300))]
    assert whole(joiner, [head, Heartbeat(9)]) == [Heartbeat(9)]


@pytest.mark.parametrize("extra", [MID, TAIL])
def test_a_part_of_a_heartbeat_without_a_head_is_refused(extra: Extra) -> None:
    joiner = HeartbeatJoiner()
    with pytest.raises(UnexpectedError, match="without a Head"):
        joiner.join(Heartbeat(7, extra=extra))


def test_a_heartbeat_names_so_many_and_no_more() -> None:
    joiner = HeartbeatJoiner()
    for heartbeat in (Heartbeat(7, ids(MAX_CONNECTORS + 1)), Heartbeat(7, b"", ids(MAX_CONNECTORS + 1))):
        with pytest.raises(LimitError, match=f"{MAX_CONNECTORS}"):
            whole(joiner, list(split_heartbeat(heartbeat)))
    endless = [Heartbeat(7, ids(200), extra=HEAD), *[Heartbeat(7, ids(200), extra=MID)] * 100]
    with pytest.raises(LimitError):
        whole(joiner, endless)
