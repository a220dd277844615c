"""Whatever a peer says, a replica raises nothing but our own errors, and keeps what it has committed."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.test_replica import NODES, primary, replica

from headrace.cluster.durable_state import DurableState, serialize_testimony
from headrace.cluster.effects import Advance, CutBack, Effect
from headrace.cluster.history import History
from headrace.cluster.replica import MAX_VIEW, Replica
from headrace.errors import MalformedError
from headrace.wire.parcel.body import RecoveryResponse, Replication, StartViewChange

NUMBERS = st.integers(0, 8) | st.sampled_from([MAX_VIEW, (1 << 63) - 1, (1 << 64) - 1])
BODIES = st.sampled_from(get_args(Replication)).flatmap(
    lambda kind: st.builds(kind, **{field.name: NUMBERS for field in fields(kind)})
)


@st.composite
def bulks(draw: st.DrawFn) -> bytes:
    spans: list[tuple[int, int]] = []
    for view in sorted(draw(st.sets(st.integers(0, 9), max_size=4))):
        spans.append((view, draw(st.integers(spans[-1][1] if spans else 1, 12))))
    nodes = draw(st.sampled_from([NODES, (), (10, 20), (1, 2, 3), (10, 20, 30, 40, 50)]))
    incarnations = draw(st.dictionaries(st.sampled_from([*NODES, 77]), st.integers(0, 9), max_size=3))
    return serialize_testimony(
        DurableState(voter=draw(st.booleans()), nodes=nodes, incarnations=incarnations), History(spans)
    )


INPUTS = st.lists(
    st.tuples(st.sampled_from([*NODES, 77]), BODIES, bulks() | st.binary(max_size=20), st.floats(0, 5)),
    max_size=12,
)


def kinds() -> list[Any]:
    return [
        lambda: replica(10, 4, commit=2),
        lambda: replica(10, 4, commit=2, synced_only=True),
        lambda: replica(10, 4, commit=2, intact=False),
        lambda: primary(4),
    ]


@given(kind=st.sampled_from(kinds()), inputs=INPUTS)
def test_anything_from_anybody(kind: Any, inputs: list[tuple[int, Any, bytes, float]]) -> None:
    one: Replica = kind()
    if one.next_timer() is None or one.state.view == 1:
        check(one, one.start(0.0))
    now = 0.0
    for sender, body, bulk, later in inputs:
        now += later
        before = one.state.commit
        with contextlib.suppress(MalformedError):
            check(one, one.receive(sender, body, bulk, now))
        check(one, one.tick(now))
        assert before <= one.state.commit <= one.state.tail


def check(one: Replica, effects: list[Effect]) -> None:
    commit = 0
    for effect in effects:
        if isinstance(effect, Advance):
            commit = effect.commit
        if isinstance(effect, CutBack):
            assert effect.last >= commit
    assert one.state.commit <= one.state.tail


def test_a_view_that_leaves_no_room() -> None:
    one = replica(10)
    one.start(0.0)
    with pytest.raises(MalformedError, match="at most"):
        one.receive(20, StartViewChange(MAX_VIEW + 1), b"", 0.0)


def test_an_answer_from_another_cluster() -> None:
    one = replica(10, intact=False)
    one.start(0.0)
    nonce = one._recovering._nonce
    assert nonce is not None
    with pytest.raises(MalformedError, match="check cluster"):
        one.receive(
            20,
            RecoveryResponse(1, nonce, 0, 0),
            serialize_testimony(DurableState(voter=True), History()),
            0.0,
        )
