"""Replaying: publish the messages of another log here, once.

The publisher of a replay has a name of its own, and a message's number is its sequence number in the log it comes from.
The receiving hub knows the highest number it has of a publisher, and takes none below it again: that makes a replay
repeatable. It is also why rows are sent in order, and each request only after the answer to the one before: a late row
would be taken for a repeat.

A publish has numbers without a gap. If only few of a log's messages are replayed, hardly two follow one another, and a
request for each would take a round trip. Then rows go **as picked**: in the request by which frontends pass on what
they received, whose rows have numbers of their own. Its mark, a number of the request, makes it repeatable. All who
replay the same count the same marks: of two that do so at once, one finds its mark taken, asks how far the replay has
come, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.link.client import LinkClient
from headrace.errors import LimitError
from headrace.wire.link import requests as ask
from headrace.wire.link.message import MAX_HEAD, MAX_MESSAGE, PASSED, PUBLISHED, Buffer, body_of

MAX_ROWS: Final = MAX_MESSAGE - MAX_HEAD
"""What the rows of one request may take: a hub takes no longer message."""
_REQUEST_BYTES: Final = 1 << 20
_REQUEST_ROWS: Final = 8192


ORIGIN: Final = "replay"


class ReplayTarget(LinkClient):
    """A client of the hub that receives the messages."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._mark = 0
        self._known = -1

    async def append(
        self, publisher: str, number: int, rows: pa.RecordBatch
    ) -> tuple[int | None, int | None]:
        """Publish rows under the publisher's own numbers; repeated after a lost tube, they are in the log once."""
        body = _body(rows, number)
        answer = await self.ask(
            lambda n: ask.Publish(id=n, publisher=publisher, number=number, origin=ORIGIN), body
        )
        return answer.head.get("first"), answer.head.get("last")

    async def known(self, publisher: str) -> int | None:
        """Return the last message that a replay of picked rows has brought; call it before :meth:`append_picked`."""
        # In this order: another replay of the same that comes between the two has taken the mark.
        mark = await self.newest(_marks(publisher))
        newest = await self.newest(publisher)
        self._mark = 0 if mark is None else mark + 1
        self._known = -1 if newest is None else newest
        return newest

    async def append_picked(self, publisher: str, rows: pa.RecordBatch) -> tuple[int | None, int | None]:
        """Publish rows of the envelope's schema under their sequence numbers; they are in the log once."""
        place = None, None
        while (rows := rows.filter(pc.greater(rows.column("seq"), self._known))).num_rows:
            body = _body(_picked(publisher, rows), rows.column("seq")[0].as_py())
            answer = await self.ask(
                lambda n: ask.Pass(id=n, frontend=_marks(publisher), number=self._mark), body
            )
            place = answer.head.get("first"), answer.head.get("last")
            if answer.head.get("repeated"):
                # It was sent twice, since its tube was lost; or somebody else replays the same.
                await self.known(publisher)
            else:
                self._mark += 1
                self._known = rows.column("seq")[-1].as_py()
        return place


def runs(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut rows into runs without a gap in their sequence numbers that fit a request, each with its first number."""
    seqs = rows.column("seq").to_numpy()
    gaps = (np.flatnonzero(np.diff(seqs) != 1) + 1).tolist()
    for run in _cut(rows, gaps):
        yield run.column("seq")[0].as_py(), run.select(PUBLISHED.names)


def picks(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows that are published as picked into parts that fit a request."""
    return _cut(rows, [])


def _cut(rows: pa.RecordBatch, edges: list[int]) -> Iterator[pa.RecordBatch]:
    """Cut rows at these edges, and where there are too many for a request."""
    sizes = np.cumsum(pc.binary_length(rows.column("payload")).to_numpy(zero_copy_only=False), dtype=np.int64)
    begin = 0
    for end in [*edges, rows.num_rows]:
        while begin < end:
            before = int(sizes[begin - 1]) if begin else 0
            room = int(np.searchsorted(sizes, before + _REQUEST_BYTES, side="right"))
            stop = max(begin + 1, min(end, room, begin + _REQUEST_ROWS))
            # Payloads were measured, attributes were not: a part that is too large is halved until it fits.
            while stop - begin > 1 and _size(rows.slice(begin, stop - begin)) > MAX_ROWS:
                stop = begin + (stop - begin) // 2
            yield rows.slice(begin, stop - begin)
            begin = stop


def _size(rows: pa.RecordBatch) -> int:
    size: int = pa.ipc.get_record_batch_size(rows)
    return size


def _picked(publisher: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Put rows into the schema of rows that are passed on."""
    fixed = {"origin": ORIGIN, "publisher": publisher}
    columns = {name: pa.repeat(pa.scalar(value, pa.string()), rows.num_rows) for name, value in fixed.items()}
    columns["number"] = rows.column("seq")
    arrays = [columns[name] if name in columns else rows.column(name) for name in PASSED.names]
    return pa.RecordBatch.from_arrays(arrays, schema=PASSED)


def _marks(publisher: str) -> str:
    """Return the name under which a replay's marks are counted; never too long, unlike the publisher's."""
    return f"replay-{sha256(publisher.encode()).hexdigest()[:32]}"


def _body(rows: pa.RecordBatch, number: int) -> Buffer:
    body = body_of(rows)
    if len(body) > MAX_ROWS:
        # Only a single row can be so long: see _cut().
        limit = f"{MAX_ROWS} bytes, as long as rows of one publish may be; --from {number + 1} leaves it out"
        raise LimitError("link", f"message {number}, with its envelope", len(body), limit)
    return body
