"""What a batch has for sessions, by arrays: to the byte what is delivered match by match."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hub.connector_scene import ALICE, Scene, Wire

from headrace.hub.routing import batch_pushes, session_feed
from headrace.matching import Matches, warm
from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import Between, Predicate
from headrace.wire.sdk.region import Circle

BOB, CAROL, DAVE = (bytes([number]) * 12 for number in (0xB, 0xC, 0xD))
CLIENTS = (ALICE, BOB, CAROL, DAVE)
RANGE: dict[str, Predicate] = {"x": Between(0, 1)}
FENCES: tuple[dict[str, Predicate], ...] = tuple(
    {"x": Fence("y", Circle(0, 0, 1), "key", (event,))} for event in ("enter", "exit")
)


class Found(NamedTuple):
    """For each message the places of the parts that match, among all parts of all clients."""

    messages: list[list[int]]
    room: dict[bytes, int]
    """What fits into each client's outlet."""
    sent: dict[bytes, int]
    """How many of the messages each client has had before."""


FOUND = st.builds(
    Found,
    st.lists(st.lists(st.integers(0, 40), unique=True, max_size=12), min_size=1, max_size=6),
    st.fixed_dictionaries({client: st.sampled_from([0, 50, 200, 1 << 20]) for client in CLIENTS}),
    st.fixed_dictionaries({client: st.sampled_from([0, 0, 1, 3]) for client in CLIENTS}),
)


class Delivered(NamedTuple):
    sent: dict[bytes, bytes]
    cursors: dict[bytes, int | None]
    lasts: dict[bytes, int]
    counts: tuple[float, float]


def deliver(directory: Path, found: Found) -> Delivered:
    """Deliver to clients without a name, with alternatives, with names and with fences; one has left."""
    scene = Scene(directory, max_subscriptions=100)
    try:
        wires = {client: Wire() for client in CLIENTS}
        sessions = {client: scene.connector.join(client, wires[client], after=None) for client in CLIENTS}
        scene.connector.subscribe(sessions[ALICE], (RANGE,))
        scene.connector.subscribe(sessions[BOB], (RANGE, {"y": Between(0, 1)}))
        scene.connector.subscribe(sessions[BOB], (RANGE, {"y": Between(0, 1)}), "near")
        scene.connector.subscribe(sessions[CAROL], FENCES)
        for name in ("near", "fär", "b"):
            scene.connector.subscribe(sessions[CAROL], FENCES, name)
        scene.connector.subscribe(sessions[DAVE], (RANGE,), "gone")
        scene.commit()
        parts = [(part, client) for client, kept in scene.subscriptions for part in kept.parts(client)]
        # Since the match, a part was withdrawn, and somebody is unknown here.
        parts += ((b"withdrawn-42", ALICE), (b"not-here-042", b"not-here-042"))
        scene.match(None)
        batch = scene.commit(len(found.messages))
        assert batch is not None
        scene.connector.advance()
        for client, session in sessions.items():
            assert session.live
            wires[client].free = found.room[client]
            session.last = max(session.last, batch.first + found.sent[client] - 1)
        hits = [
            [parts[each % len(parts)] for each in dict.fromkeys(n % len(parts) for n in some)]
            for some in found.messages
        ]
        ids, owners = (
            np.frombuffer(b"".join(pair[side] for some in hits for pair in some), np.uint8).reshape(-1, 12)
            for side in (0, 1)
        )
        offsets = np.cumsum([0, *map(len, hits)], dtype=np.int64)
        scene.connector.deliver(batch, Matches(offsets, ids, owners))
        return Delivered(
            {client: wire.sent for client, wire in wires.items()},
            {client: session.cursor for client, session in sessions.items()},
            {client: session.last for client, session in sessions.items()},
            (
                scene.hub.counters.get("delivered", door="sdk"),
                scene.hub.counters.get("repeats", door="sdk"),
            ),
        )
    finally:
        scene.log.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FOUND)
def test_sessions_get_the_same_together_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, found: Found
) -> None:
    warm()
    assert batch_pushes.is_ready()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_feed, "FEW", 1 << 30)
        one_by_one = deliver(tmp_path_factory.mktemp("one"), found)
        patch.setattr(session_feed, "FEW", -1)
        patch.setattr(batch_pushes, "CHUNK_BYTES", 100)
        together = deliver(tmp_path_factory.mktemp("all"), found)
    assert together == one_by_one
