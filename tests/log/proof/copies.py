"""Copies of a history for tests: plain lists of messages, and logs on disk that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pyarrow as pa
from msgspec.structs import replace
from tests.log.content import columns, seal_all

from headrace.log import Log
from headrace.log.proof.chain import Chain
from headrace.message import SCHEMA, Batch, Message, Run

LOG = UUID("01234567-89ab-cdef-0123-456789abcdef")


def history(count: int, first: int = 1) -> list[Message]:
    """Messages that use every column."""
    return [
        Message(
            seq=seq,
            payload=b"payload %d" % seq,
            time=1_000_000 + 10 * seq,
            origin="tube",
            node=7,
            publisher=f"p{seq % 3}",
            number=None if seq % 5 == 0 else seq,
            topic=f"t/{seq % 4}",
            attributes={"colour": "red", "place": str(seq)},
            numbers={"speed": seq / 7},
        )
        for seq in range(first, first + count)
    ]


def changes(messages: Sequence[Message], at: int) -> dict[str, list[Message]]:
    """The same history with something wrong at one message, by what is wrong."""
    place = at - messages[0].seq
    old, after = messages[place], messages[place + 1]
    bit = bytes([old.payload[0] ^ 1]) + old.payload[1:]

    def with_one(message: Message) -> list[Message]:
        return [*messages[:place], message, *messages[place + 1 :]]

    swapped = [replace(after, seq=at, time=old.time), replace(old, seq=at + 1, time=after.time)]
    left = [replace(each, seq=each.seq - 1) for each in messages[place + 1 :]]
    return {
        "a changed bit": with_one(replace(old, payload=bit)),
        "a changed attribute": with_one(replace(old, attributes={**old.attributes, "colour": "rad"})),
        "a changed number": with_one(replace(old, numbers={"speed": old.numbers["speed"] + 1e-9})),
        "a changed time": with_one(replace(old, time=old.time + 1)),
        "a changed topic": with_one(replace(old, topic="t/x")),
        "another publisher": with_one(replace(old, publisher="q")),
        "swapped messages": [*messages[:place], *swapped, *messages[place + 2 :]],
        "a message left out": [*messages[:place], *left, replace(messages[-1], payload=b"new")],
    }


def rows(messages: Sequence[Message]) -> pa.RecordBatch:
    """Messages as one record batch."""
    names = [name for name in SCHEMA.names if name not in ("seq", "payload")]
    made = columns(**{name: [getattr(message, name) for message in messages] for name in names})
    run = Run.of([message.payload for message in messages])
    batch = Batch(run, first=messages[0].seq, time=messages[0].time, columns=made)
    table = batch.to_arrow()
    return table.set_column(0, table.schema.field("seq"), pa.array([message.seq for message in messages]))


def write_log(directory: Path, messages: Sequence[Message], each: int, sealed: int, uuid: UUID = LOG) -> Path:
    """A data directory whose log has these messages, in batches of ``each``, sealed after every ``sealed`` of them."""
    log = Log.open(directory / "log", fsync="never", uuid=uuid)
    for count, begin in enumerate(range(0, len(messages), each), 1):
        made = rows(messages[begin : begin + each])
        log.append([Batch.over(made)])
        log.commit(log.tail_op)
        if count % sealed == 0:
            seal_all(log)
    log.close()
    return directory


@dataclass
class ListCopy:
    """A copy that is a list, in batches of ``each`` rows; it may have holes."""

    messages: Sequence[Message]
    name: str = "list"
    each: int = 5
    log: UUID = LOG
    at_hand: bool = True
    chain: Chain | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)

    @property
    def first(self) -> int:
        return self.messages[0].seq

    @property
    def head(self) -> int:
        return self.messages[-1].seq

    def recorded(self) -> Chain | None:
        return self.chain

    def rows(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        self.asked.append((first, last))
        wanted = [message for message in self.messages if first <= message.seq <= last]
        for begin in range(0, len(wanted), self.each):
            yield rows(wanted[begin : begin + self.each])
