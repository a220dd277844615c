"""Batches from node to node: what was sent comes back, and whatever was not raises an error of ours."""

from __future__ import annotations

import struct
from random import Random
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.log.content import operations

from headrace.errors import MalformedError
from headrace.log import frame
from headrace.log.checksum import crc32c
from headrace.log.replication_frames import SALT, pack, unpack
from headrace.message import NOT_A_MESSAGE, SCHEMA, Batch, Run, map_column

UUID_ = UUID(int=7)


def batches() -> list[Batch]:
    """Messages 5 to 11 and entries between them, operations 20 to 30."""
    attributes = map_column("attributes", [{"a": "1"}, {}, {"b": "2"}])
    columns = pa.RecordBatch.from_arrays([attributes], schema=pa.schema([SCHEMA.field("attributes")]))
    lone = Run.one(b"lone")
    several = Run.of([b"a", b"", b"c" * 40])
    return [
        Batch(lone, 5, 10, origin="tube", node=3, publisher="p", number=4, topic="t", op=20),
        Batch(several, 6, 11, origin="fyrehose", columns=columns, op=21),
        Batch(Run.of([b"x", b"y"]), 8, 11, origin=NOT_A_MESSAGE, topic="holds/a", op=24),
        Batch(lone, 8, 11, origin=NOT_A_MESSAGE, topic="holds/b", op=26),
        Batch(Run.of([b"x" * 20_000] * 3), 9, 11, origin="spp", topic="é", op=27),
        Batch(lone, 11, 12, origin=NOT_A_MESSAGE, op=30),
    ]


def test_what_was_packed() -> None:
    uuid, unpacked = unpack(pack(UUID_, batches()), 20, 30)
    assert uuid == UUID_
    assert operations(unpacked) == operations(batches())
    assert [each.is_entries for each in unpacked] == [each.is_entries for each in batches()]


@pytest.mark.parametrize("count", range(1, 7))
def test_any_part(count: int) -> None:
    """They may begin and end with entries."""
    for begin in range(7 - count):
        part = batches()[begin : begin + count]
        _, unpacked = unpack(pack(UUID_, part), part[0].op, part[-1].last_op)
        assert operations(unpacked) == operations(part)


@pytest.mark.parametrize(("first", "last"), [(20, 29), (20, 31), (19, 30), (21, 30)])
def test_other_operations_than_announced(first: int, last: int) -> None:
    with pytest.raises(MalformedError):
        unpack(pack(UUID_, batches()), first, last)


def test_times_that_go_back() -> None:
    earlier = Batch(Run.one(b"x"), first=12, time=3, origin="tube", op=31)
    with pytest.raises(MalformedError):
        unpack(pack(UUID_, batches()) + pack(UUID_, [earlier])[16:], 20, 31)


@pytest.mark.parametrize("place", range(1, 6))
def test_a_batch_that_is_left_out_doubled_or_moved(place: int) -> None:
    """Whether it is messages or entries: what follows does not fit."""
    made = batches()
    moved = [*made[: place - 1], made[place], made[place - 1], *made[place + 1 :]]
    for wrong in (made[:place] + made[place + 1 :], [*made[:place], made[place], *made[place:]], moved):
        with pytest.raises(MalformedError):
            unpack(pack(UUID_, wrong), 20, 30)


@pytest.mark.parametrize("wrong", [7, 9, 0])
def test_entries_after_another_message(wrong: int) -> None:
    """The operations follow, but the entries stand elsewhere."""
    made = batches()
    made[2] = replace(made[2], first=wrong)
    with pytest.raises(MalformedError, match="must follow message 8"):
        unpack(pack(UUID_, made), 20, 30)


def test_bytes_that_are_cut_or_flipped() -> None:
    data = pack(UUID_, batches()[:3])
    for size in range(len(data)):
        with pytest.raises(MalformedError):
            unpack(data[:size], 20, 25)
    for at in range(16, len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        with pytest.raises(MalformedError):
            unpack(bytes(flipped), 20, 25)


def test_frames_that_lie_under_a_good_checksum() -> None:
    """A peer can make any bytes and their checksum: nothing but our own error may come of it."""
    random = Random(1)
    good = pack(uuid4(), batches()[:2])
    lengths = [frame.check(good[16:], 0, SALT)]
    survived = 0
    for _ in range(4_000):
        body = bytearray(good)
        at = 16 + random.randrange(8, lengths[0] if random.random() < 0.5 else len(good) - 16)
        body[at] = random.randrange(256)
        for begin in (0, lengths[0]):
            end = lengths[0] if begin == 0 else len(good) - 16
            window = bytes(body[16 + begin + 8 : 16 + end])
            struct.pack_into("<I", body, 16 + begin + 4, crc32c(window, SALT))
        try:
            _, made = unpack(bytes(body), 20, 23)
            survived += 1
        except MalformedError:
            continue
        # What passes can be read in full.
        for batch in made:
            batch.to_arrow().validate(full=True)
    assert survived
