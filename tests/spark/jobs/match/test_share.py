"""A share of the subscriptions goes through the sequence: every change counts for exactly what is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import StorageError
from headrace.hub.routing.subscriptions import (
    Subscriptions,
    expire,
    move,
    serialize_fields,
    subscribe,
    tables,
)
from headrace.message import Batch, Run
from headrace.spark.jobs.folder import Folder
from headrace.spark.jobs.match.share import Share, ring
from headrace.spark.jobs.match.tables import SubscriptionTable, SubscriptionTables
from headrace.wire.attribute.messages import CLIENT_ID_BYTES, ROUTE_BYTES, seq_of
from headrace.wire.link.message import SUBSCRIPTIONS
from headrace.wire.sdk.predicate import Between

HERE, THERE = b"conn-001", b"conn-002"
NUMBERS = pa.map_(pa.string(), pa.float64())


def client(number: int) -> bytes:
    return number.to_bytes(CLIENT_ID_BYTES)


def message(x: float) -> Batch:
    columns = pa.record_batch({"numbers": pa.array([[("x", x)]], NUMBERS)})
    return Batch(Run.of([b"%g" % x]), origin="tube", columns=columns)


def wants(number: int, low: float, high: float, connector: bytes = HERE) -> Batch:
    return subscribe(client(number), connector, serialize_fields({"x": Between(low, high)}))


def rows(batches: Sequence[Batch], first: int = 1) -> pa.RecordBatch:
    """Batches as one part of the sequence."""
    numbered = [each.numbered(first + at, 0, 7) for at, each in enumerate(batches)]
    return pa.concat_batches([each.to_arrow() for each in numbered])


def table(state: Subscriptions, seq: int) -> SubscriptionTable:
    return SubscriptionTable(seq, pa.Table.from_batches(tables(state), SUBSCRIPTIONS))


def empty(number: int = 0, shares: int = 1) -> Share:
    return Share(table(Subscriptions(), 0), number, shares, json_attributes=False)


def pushed(share: Share, part: pa.RecordBatch) -> list[tuple[int, int, bytes]]:
    """What is pushed: sequence number, client, connector."""
    found = []
    for push in share.pushes(part):
        for at in range(0, len(push.clients), ROUTE_BYTES):
            route = push.clients[at : at + ROUTE_BYTES]
            found.append(
                (seq_of(push.msg_id), int.from_bytes(route[:CLIENT_ID_BYTES]), route[CLIENT_ID_BYTES:])
            )
    return found


def test_a_change_counts_for_what_is_behind_it() -> None:
    part = rows(
        [
            message(1),  # 1: nobody wants anything yet
            wants(5, 0, 10),
            message(1),  # 3
            wants(5, 2, 10, THERE),
            message(1),  # 5: not any more
            message(2),
            move(client(5), HERE),
            message(3),  # 8
            expire(client(5), 2),  # The subscription has changed since.
            message(4),  # 10
            expire(client(5), 7),
            message(5),
        ]
    )
    share = empty()
    assert pushed(share, part) == [(3, 5, HERE), (6, 5, THERE), (8, 5, HERE), (10, 5, HERE)]
    assert (share.place, share.changed, len(share)) == (12, 11, 0)


def test_what_no_door_writes_changes_nothing() -> None:
    broken = [
        wants(5, 0, 10),
        *(
            Batch(Run.of([payload]), origin="log", topic=topic)
            for topic, payload in [
                ("subscription/nobody", b"{}"),
                (f"subscription/{client(5).hex()}", b"no JSON"),
                (f"matcher/{client(5).hex()}", b"{}"),
            ]
        ),
        message(1),
    ]
    assert pushed(empty(), rows(broken)) == [(5, 5, HERE)]


def test_shares_together_are_one_and_none_has_anothers() -> None:
    random = Random(4)
    story = []
    for _ in range(600):
        number = random.randrange(40)
        low = random.uniform(0, 100)
        story.append(
            random.choice([wants(number, low, low + 20), subscribe(client(number), HERE, {}), message(low)])
        )
    part = rows(story)
    whole = pushed(empty(), part)
    parts = [pushed(empty(number, 3), part) for number in range(3)]
    assert sorted(whole) == sorted(found for some in parts for found in some)
    assert all(some == sorted(some, key=lambda each: each[0]) for some in parts)
    owners = [{number for _, number, _ in some} for some in parts]
    assert all(owners)
    assert sum(map(len, owners)) == len(set.union(*owners))


def test_a_table_and_the_entries_since_make_the_same_share() -> None:
    random = Random(5)
    state = Subscriptions()
    story: list[Batch] = []
    for number in range(200):
        story.append(wants(number % 50, number, number + random.randrange(100)))
        if number < 100:
            entry = story[-1]
            state.apply(entry.topic.partition("/")[2], entry.run[0], number + 1)
    share = Share(table(state, 100), 0, 1, json_attributes=False)
    share.follow(rows(story[100:], 101))
    other = empty()
    other.follow(rows(story))
    asked = rows([message(x) for x in range(300)], 201)
    assert sorted(pushed(share, asked)) == sorted(pushed(other, asked))
    assert share.changed == other.changed == 200


@pytest.mark.parametrize("shares", [1, 2, 7, 64])
def test_shares_are_about_equal(shares: int) -> None:
    clients = np.random.default_rng(6).integers(0, 256, (20_000, CLIENT_ID_BYTES), np.uint8)
    counts = np.bincount(ring(shares).owners(clients), minlength=shares)
    assert counts.min() > 0.7 * 20_000 / shares
    assert counts.max() < 1.3 * 20_000 / shares


class TestTables:
    @staticmethod
    def add(kept: SubscriptionTables, seq: int) -> None:
        state: Any = Subscriptions()
        state.apply(client(seq).hex(), wants(seq, 0, 1).run[0], 1)
        rows = table(state, seq).rows.replace_schema_metadata({"head": str(seq)})
        assert kept.add(rows) == seq

    def test_the_newest_that_is_not_beyond_a_place_is_found(self, tmp_path: Path) -> None:
        kept = SubscriptionTables(Folder.at(str(tmp_path / "tables")))
        for seq in (0, 10, 20):
            self.add(kept, seq)
        for place, seq in [(0, 0), (9, 0), (10, 10), (19, 10), (500, 20)]:
            found = kept.find(place)
            assert found.seq == seq
            assert found.rows.column("client").to_pylist() == [client(seq).hex()]
        kept.drop_before(19)
        assert kept.find(19).seq == 10
        with pytest.raises(
            StorageError, match="no subscriptions of before 10: executors must see the same path"
        ):
            kept.find(9)
