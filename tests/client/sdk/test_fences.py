"""Fences at a real hub: the events are those of the messages, whoever is restarted, comes back or asks later."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.client.link.moving import drive, expected, published

from headrace import circle, fence, polygon, where
from headrace.errors import RefusedError, UsageError
from headrace.testing import Hub

HERE = circle(50, 50, 20)
ME = "00000000000000000000000a"


def test_each_message_comes_once_with_its_events() -> None:
    random, corner = Random(4), polygon((0, 0), (60, 0), (0, 60))
    wanted = {
        "": fence("x", "y", HERE, key="taxi"),
        "all": fence("x", "y", HERE, key="taxi", events=("enter", "inside", "exit")),
        "either": where(fence("x", "y", HERE, key="taxi")) | where(fence("x", "y", corner, key="taxi")),
        "few": where(fence("x", "y", corner, key="taxi", events="exit"), kind="bus"),
    }
    with Hub() as hub, hub.connect_sync("sdk://") as sdk, hub.connect_sync("tube://") as link:
        for name, conditions in wanted.items():
            sdk.subscribe(name, conditions) if name else sdk.subscribe(conditions)
        sdk.subscribe("end", where(end=1))
        first = link.head().head + 1
        moves = drive(random, 600)
        link.publish(published(moves[:350]))
        for row in published(moves[350:380]):
            link.publish([row])
        link.publish(published(moves[380:]))
        link.publish(b"end", attributes={"end": 1})
        got: dict[str, dict[int, tuple[str, ...]]] = {name: {} for name in wanted}
        for message in sdk:
            if message.subs == ("end",):
                break
            for name, events in message.events.items():
                got[name][message.seq] = events
            assert set(message.subs) == set(message.events) - {""}
        for name, conditions in wanted.items():
            assert got[name] == expected(conditions, moves, first)
            assert len(got[name]) > 10
            batches = list(link.match(conditions, first))
            tried = {
                seq: tuple(events)
                for batch in batches
                for seq, events in zip(batch["seq"].to_pylist(), batch["events"].to_pylist(), strict=True)
            }
            assert tried == got[name]


def test_a_hub_that_was_restarted_knows_where_keys_were(tmp_path: Path) -> None:
    wanted = fence("x", "y", HERE, key="taxi", events=("enter", "inside", "exit"))
    moves = drive(Random(5), 240)
    got: dict[int, tuple[str, ...]] = {}
    cursor = None
    for part in range(3):
        with Hub(data=tmp_path) as hub, hub.connect_sync("tube://") as link:
            options = {} if cursor is None else {"from_seq": cursor}
            with hub.connect_sync("sdk://", client_id=ME, **options) as sdk:
                sdk.subscribe(wanted)
                if cursor is None:
                    first = link.head().head + 1
                link.publish(published(moves[80 * part : 80 * part + 40]))
                last = max(expected(wanted, moves[: 80 * part + 40], first))
                for message in sdk:
                    got[message.seq] = message.events[""]
                    if message.seq == last:
                        break
                cursor = sdk.cursor
            # What is published meanwhile comes from the log, when the client is back.
            link.publish(published(moves[80 * part + 40 : 80 * part + 80]))
    with Hub(data=tmp_path) as hub, hub.connect_sync("sdk://", client_id=ME, from_seq=cursor) as sdk:
        sdk.subscribe(wanted)
        last = max(expected(wanted, moves, first))
        for message in sdk:
            got[message.seq] = message.events[""]
            if message.seq == last:
                break
    assert got == expected(wanted, moves, first)


def test_what_fences_need_is_bounded() -> None:
    settings = {
        "matching.max_tracks": 3,
        "limits.tracks_per_client": 2,
        "limits.subscriptions_per_client": 20,
    }
    with Hub(settings) as hub:
        with hub.connect_sync("sdk://") as sdk:
            for name in ("x", "y"):
                sdk.subscribe(name, fence(name, "z", HERE, key="taxi"))
            sdk.subscribe("x again", fence("x", "z", circle(0, 0, 1), key="taxi"))
            with pytest.raises(RefusedError):
                sdk.subscribe("one more", fence("a", "z", HERE, key="taxi"))
        with hub.connect_sync("sdk://") as sdk:
            # Two places in the index, and the vertices of both.
            sdk.subscribe("small", fence("x", "z", polygon(*[(n, n * n) for n in range(9)]), key="taxi"))
            with pytest.raises(RefusedError):
                sdk.subscribe(
                    "large", where(x=1) | fence("x", "z", polygon((0, 0), (1, 0), (0, 1)), key="taxi")
                )


def test_each_event_counts_as_an_alternative() -> None:
    """The hub says so: the state would pass over what it cannot take, and nobody would know."""
    three = fence("x", "y", HERE, key="taxi", events=("enter", "inside", "exit"))
    with Hub() as hub, hub.connect_sync("sdk://") as sdk:
        wanted = where(three) | three | three | three | three
        sdk.subscribe(wanted)
        with pytest.raises(RefusedError):
            sdk.subscribe(wanted | three)


def test_a_fence_stands_alone_and_only_where_messages_come_in_order() -> None:
    wanted = fence("x", "y", HERE, key="taxi")
    with pytest.raises(UsageError, match="one fence"):
        where(wanted, **fence("z", "y", HERE, key="taxi"))
    with pytest.raises(UsageError, match="events of a fence"):
        fence("x", "y", HERE, key="taxi", events="leave")
    with Hub() as hub, hub.connect_sync("tube://") as link:
        link.publish(b"x")
        with pytest.raises(RefusedError, match="no fence"):
            link.read(1, 1, where=wanted).to_arrow()
