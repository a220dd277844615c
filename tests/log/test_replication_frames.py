"""Batches from node to node: what was sent comes back, and whatever was not raises an error of ours."""

from __future__ import annotations

import struct
from random import Random
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from headrace.errors import MalformedError
from headrace.log import frame
from headrace.log.checksum import crc32c
from headrace.log.replication_frames import SALT, pack, unpack
from headrace.message import SCHEMA, Batch, Run, map_column

UUID_ = UUID(int=7)


def batches() -> list[Batch]:
    attributes = map_column("attributes", [{"a": "1"}, {}, {"b": "2"}])
    columns = pa.RecordBatch.from_arrays([attributes], schema=pa.schema([SCHEMA.field("attributes")]))
    return [
        Batch(Run.one(b"lone"), first=5, time=10, origin="tube", node=3, publisher="p", number=4, topic="t"),
        Batch(Run.of([b"a", b"", b"c" * 40]), first=6, time=11, origin="fyrehose", columns=columns),
        Batch(Run.of([b"x" * 20_000] * 3), first=9, time=11, origin="spp", topic="é"),
    ]


def test_what_was_packed() -> None:
    uuid, unpacked = unpack(pack(UUID_, batches()), 5, 11)
    assert uuid == UUID_
    assert [list(each) for each in unpacked] == [list(each) for each in batches()]


@pytest.mark.parametrize(("first", "last"), [(5, 10), (5, 12), (4, 11), (6, 11)])
def test_other_numbers_than_announced(first: int, last: int) -> None:
    with pytest.raises(MalformedError):
        unpack(pack(UUID_, batches()), first, last)


def test_times_that_go_back() -> None:
    earlier = Batch(Run.one(b"x"), first=12, time=3, origin="tube")
    with pytest.raises(MalformedError):
        unpack(pack(UUID_, batches()) + pack(UUID_, [earlier])[16:], 5, 12)


def test_bytes_that_are_cut_or_flipped() -> None:
    data = pack(UUID_, batches()[:2])
    for size in range(len(data)):
        with pytest.raises(MalformedError):
            unpack(data[:size], 5, 8)
    for at in range(16, len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        with pytest.raises(MalformedError):
            unpack(bytes(flipped), 5, 8)


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
            _, made = unpack(bytes(body), 5, 8)
            survived += 1
        except MalformedError:
            continue
        # What passes can be read in full.
        for batch in made:
            batch.to_arrow().validate(full=True)
    assert survived
