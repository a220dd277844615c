"""An index of subscriptions goes through the sequence: every change counts for exactly what is after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.archive.folder import Folder
from headrace.errors import StorageError
from headrace.hub.routing.subscription_parts import (
    serialize_fields,
)
from headrace.hub.routing.subscriptions import (
    Subscriptions,
    expire,
    move,
    subscribe,
    tables,
)
from headrace.message import SCHEMA, Batch, Run
from headrace.spark.jobs.match.subscription_index import Changes, SubscriptionIndex
from headrace.spark.jobs.match.tables import SubscriptionTable, SubscriptionTables
from headrace.wire.attribute.messages import CLIENT_ID_BYTES, ROUTE_BYTES, seq_of
from headrace.wire.link.message import SUBSCRIPTIONS
from headrace.wire.sdk.predicate import Between

HERE, THERE = b"conn-001", b"conn-002"
NUMBERS = pa.map_(pa.string(), pa.float64())
ENTRIES_SCHEMA = SCHEMA.append(pa.field("op", pa.int64()))


def client(number: int) -> bytes:
    return number.to_bytes(CLIENT_ID_BYTES)


def message(x: float) -> Batch:
    columns = pa.record_batch({"numbers": pa.array([[("x", x)]], NUMBERS)})
    return Batch(Run.of([b"%g" % x]), origin="tube", columns=columns)


def wants(number: int, low: float, high: float, connector: bytes = HERE) -> Batch:
    return subscribe(client(number), connector, serialize_fields({"x": Between(low, high)}))


class Part(NamedTuple):
    """A part of the log as a task gets it: messages, and the entries between them as the link gives those."""

    messages: pa.RecordBatch
    entries: pa.RecordBatch

    def after(self, index: SubscriptionIndex) -> Part:
        """What comes after what an index has seen."""
        return Part(
            self.messages.filter(pc.greater(self.messages.column("seq"), index.place)),
            self.entries.filter(pc.greater(self.entries.column("op"), index.op)),
        )


def part(batches: Sequence[Batch]) -> Part:
    """Batches of one row each as the beginning of a log."""
    messages, entries = [SCHEMA.empty_table()], [ENTRIES_SCHEMA.empty_table()]
    seq = 0
    for op, batch in enumerate(batches, 1):
        seq += not batch.is_entries
        row = batch.numbered(op, seq, 0, 7).to_arrow()
        if batch.is_entries:
            entries.append(pa.Table.from_batches([row.append_column("op", pa.array([op]))]))
        else:
            messages.append(pa.Table.from_batches([row]))
    return Part(_rows(messages, SCHEMA), _rows(entries, ENTRIES_SCHEMA))


def _rows(tables: list[pa.Table], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(
        pa.concat_tables(tables).cast(schema).to_struct_array().combine_chunks()
    )


def table(state: Subscriptions, seq: int, op: int = 0) -> SubscriptionTable:
    return SubscriptionTable(seq, op, pa.Table.from_batches(tables(state), SUBSCRIPTIONS))


def empty() -> SubscriptionIndex:
    return SubscriptionIndex(table(Subscriptions(), 0))


def pushed(index: SubscriptionIndex, part: Part, cut: int = 1000) -> list[tuple[int, int, bytes]]:
    """What is pushed: sequence number, client, connector. Rows come in batches of ``cut``."""
    found = []
    changes = Changes(part.entries.slice(at, cut) for at in range(0, part.entries.num_rows, cut))
    for begin in range(0, part.messages.num_rows, cut):
        for _, push in index.pushes(part.messages.slice(begin, cut), changes, shares=3):
            for at in range(0, len(push.clients), ROUTE_BYTES):
                route = push.clients[at : at + ROUTE_BYTES]
                found.append(
                    (seq_of(push.msg_id), int.from_bytes(route[:CLIENT_ID_BYTES]), route[CLIENT_ID_BYTES:])
                )
    return found


@pytest.mark.parametrize("cut", [1, 2, 3, 1000])
def test_a_change_counts_for_what_is_after_it(cut: int) -> None:
    story = part(
        [
            message(1),  # 1: nobody wants anything yet
            wants(5, 0, 10),
            message(1),  # 2
            wants(5, 2, 10, THERE),
            message(1),  # 3: not any more
            message(2),  # 4
            move(client(5), HERE),
            message(3),  # 5
            expire(client(5), 2),  # The subscription has changed since.
            message(4),  # 6
            expire(client(5), 7),
            message(5),  # 7
            wants(5, 0, 10),  # Whoever matches message 8 gets it anew.
        ]
    )
    index = empty()
    assert pushed(index, story, cut) == [(2, 5, HERE), (4, 5, THERE), (5, 5, HERE), (6, 5, HERE)]
    assert (index.place, index.changed, len(index)) == (7, 6, 0)


def test_of_changes_after_one_message_each_is_told_apart() -> None:
    """In a log where nothing is published, all of them stand after the same message."""
    story = part(
        [
            wants(5, 0, 10),
            move(client(5), THERE),
            expire(client(5), 1),  # It has moved since.
            message(1),
            expire(client(5), 2),
            message(2),
        ]
    )
    assert pushed(empty(), story) == [(1, 5, THERE)]


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
    assert pushed(empty(), part(broken)) == [(1, 5, HERE)]


def told(random: Random, count: int) -> list[Batch]:
    """A story of clients that come, change their minds, move, expire and go, with messages between."""
    story: list[Batch] = []
    for op in range(1, count + 1):
        number, low = random.randrange(12), random.uniform(0, 100)
        story.append(
            random.choice(
                [
                    wants(number, low, low + 30, random.choice([HERE, THERE])),
                    move(client(number), random.choice([HERE, THERE])),
                    expire(client(number), random.randrange(max(op - 30, 1), op + 1)),
                    subscribe(client(number), HERE, {}),
                    message(low),
                    message(low),
                ]
            )
        )
    return story


def naively(story: Sequence[Batch]) -> list[tuple[int, int, bytes]]:
    """What a hub pushes that applies each entry, and matches each message, when its turn comes."""
    state, found, seq = Subscriptions(), [], 0
    for op, batch in enumerate(story, 1):
        if batch.is_entries:
            state.apply(batch.topic.partition("/")[2], batch.run[0], seq, op)
            continue
        seq += 1
        ((_, x),) = batch.to_arrow().column("numbers")[0].as_py()
        for who, kept in state:
            wanted = kept.parts(who)[who].predicates["x"]
            assert isinstance(wanted, Between)
            if wanted.low <= x <= wanted.high:
                found.append((seq, int.from_bytes(who), kept.connector))
    return sorted(found)


@pytest.mark.parametrize("seed", range(5))
def test_a_table_and_the_entries_since_make_the_same_index(seed: int) -> None:
    """Wherever the table was taken, also amid entries that stand after one message."""
    random = Random(seed)
    story = told(random, 500)
    whole, expected = part(story), naively(story)
    assert sorted(pushed(empty(), whole, random.randrange(1, 50))) == expected
    state, seq = Subscriptions(), 0
    for op, batch in enumerate(story, 1):
        if batch.is_entries:
            state.apply(batch.topic.partition("/")[2], batch.run[0], seq, op)
        else:
            seq += 1
        if random.random() < 0.1:
            index = SubscriptionIndex(table(state, seq, op))
            assert sorted(pushed(index, whole.after(index))) == [each for each in expected if each[0] > seq]


class TestTables:
    @staticmethod
    def add(kept: SubscriptionTables, seq: int) -> None:
        state: Any = Subscriptions()
        state.apply(client(seq).hex(), wants(seq, 0, 1).run[0], 0, 1)
        rows = table(state, seq).rows.replace_schema_metadata({"head": str(seq), "op": str(3 * seq)})
        assert kept.add(rows)[:2] == (seq, 3 * seq)

    def test_the_newest_that_is_not_beyond_a_place_is_found(self, tmp_path: Path) -> None:
        kept = SubscriptionTables(Folder.at(str(tmp_path / "tables")))
        for seq in (0, 10, 20):
            self.add(kept, seq)
        for place, seq in [(0, 0), (9, 0), (10, 10), (19, 10), (500, 20)]:
            found = kept.find(place)
            assert (found.seq, found.op) == (seq, 3 * seq)
            assert found.rows.column("client").to_pylist() == [client(seq).hex()]
        kept.drop_before(19)
        assert kept.find(19).seq == 10
        with pytest.raises(
            StorageError, match="no subscriptions of before 10: executors must see the same path"
        ):
            kept.find(9)
