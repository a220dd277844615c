"""Fences on the wire."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.matching.drawn import NAMES, regions

from headrace.errors import MalformedError, WireError
from headrace.message import MAX_SEQUENCE
from headrace.wire.sdk.fence import EVENTS, Fence
from headrace.wire.sdk.predicate import Equals, parse_field, serialize_field, split_events
from headrace.wire.sdk.region import Circle
from headrace.wire.sdk.subscribe import Subscribe, parse_subscribe, subscribe_elements

CIRCLE = {"y": "y", "circle": [0, 0, 1]}
FENCE = Fence("y", Circle(0, 0, 1), "key")

fences = st.builds(
    Fence,
    NAMES,
    regions,
    NAMES,
    st.sets(st.sampled_from(EVENTS), min_size=1).map(
        lambda some: tuple(event for event in EVENTS if event in some)
    ),
    st.integers(0, MAX_SEQUENCE),
)


def field(fence: object) -> bytes:
    return json.dumps({"use": 3, "extra": json.dumps({"fence": fence})}).encode()


@given(fences)
def test_what_is_written_is_read(fence: Fence) -> None:
    assert parse_field(serialize_field(fence)) == fence


def test_without_events_it_is_entered_and_left() -> None:
    assert parse_field(field({**CIRCLE, "key": "key"})) == FENCE
    assert FENCE.events == ("enter", "exit")


@pytest.mark.parametrize(
    "fence",
    [
        CIRCLE,
        {**CIRCLE, "key": 7},
        {"circle": [0, 0, 1], "key": "key"},
        {"y": "y", "key": "key"},
        {**CIRCLE, "key": "key", "events": []},
        {**CIRCLE, "key": "key", "events": ["leave"]},
        {**CIRCLE, "key": "key", "events": ["exit", "exit"]},
        {**CIRCLE, "key": "key", "events": "exit"},
        {**CIRCLE, "key": "key", "after": -1},
        {**CIRCLE, "key": "key", "after": MAX_SEQUENCE + 1},
        {**CIRCLE, "key": "key", "other": 1},
        {**CIRCLE, "key": "key", "polygon": [[0, 0], [1, 0], [0, 1]]},
        [],
    ],
)
def test_what_is_no_fence_is_refused(fence: object) -> None:
    with pytest.raises(WireError):
        parse_field(field(fence))


def test_it_stands_alone() -> None:
    inner = json.dumps({"not": {"fence": {**CIRCLE, "key": "key"}}})
    with pytest.raises(MalformedError, match="stand alone"):
        parse_field(json.dumps({"use": 3, "extra": inner}).encode())
    two = [b"sub", b"x", serialize_field(FENCE), b"y", serialize_field(FENCE)]
    with pytest.raises(MalformedError, match="at most one"):
        parse_subscribe(two)


def test_each_event_is_an_alternative_of_its_own() -> None:
    command = Subscribe({"x": FENCE, "kind": Equals("bus")}, "near", ({"kind": Equals("tram")},))
    assert parse_subscribe(subscribe_elements(command)) == command
    entered, left, tram = split_events(command.alternatives)
    assert [each["x"].events for each in (entered, left)] == [("enter",), ("exit",)]  # type: ignore[union-attr]
    assert entered["kind"] == left["kind"] == Equals("bus")
    assert tram == {"kind": Equals("tram")}
