"""Replay: publish messages that another log has numbered, each once.

``headrace replay`` and the Spark job read rows in order; this module names the replay, leaves messages out, and makes
requests.

A replay is a publisher with a name of its own, and a message's number is its sequence number in the log it comes from.
The hub takes no number of a publisher twice: that makes a replay repeatable. So rows are sent in order, and each
request waits for the answer to the one before: a row that came late would be taken for a repeat.

The numbers of a publish have no gap. Where few messages are replayed, hardly two are adjacent, and a request for each
would cost a round trip. Then rows are sent **as picked**: in the request by which frontends relay publishes, whose rows
have numbers of their own. Its mark, a number of the request, makes it repeatable. Marks are counted by the replay's
name: if two processes run the same replay at once, one finds its mark taken, asks for the last message, and resumes
after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.link.client import LinkClient
from headrace.errors import LimitError
from headrace.hub.publishing.relaying.passed import pack_passed
from headrace.message import Batch, envelope_rows
from headrace.wire.link import requests as ask
from headrace.wire.link.message import MAX_HEAD, MAX_MESSAGE, PUBLISHED, Buffer, body_of

MAX_ROWS: Final = MAX_MESSAGE - MAX_HEAD
"""Most bytes of rows in one request."""
_REQUEST_BYTES: Final = 1 << 20
_REQUEST_ROWS: Final = 8192

ORIGIN: Final = "replay"


def publisher_name(log: str, choice: Sequence[str] | None = None) -> str:
    """Name the replay of a log; another choice of its messages is another replay."""
    name = f"replay {log}"
    return name if choice is None else f"{name} {sha256(chr(10).join(choice).encode()).hexdigest()[:8]}"


class ReplayTarget(LinkClient):
    """The hub that a log is replayed to: :meth:`resume`, then :meth:`send` rows in order."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._publisher = ""
        self._picked = False
        self._mark = 0
        self._known = -1
        self.messages = 0
        """Messages sent."""
        self.first_seq: int | None = None
        """Sequence number of the first of them at this hub."""
        self.last_seq: int | None = None

    async def resume(self, publisher: str, *, picked: bool = False) -> int | None:
        """Begin or resume a replay; return the number of its last message that this hub has, if any.

        ``picked`` says that hardly two of the messages to come are adjacent.
        """
        self._publisher, self._picked = publisher, picked
        newest = await (self.known(publisher) if picked else self.newest(publisher))
        self._known = -1 if newest is None else newest
        return newest

    async def send(self, rows: pa.RecordBatch) -> None:
        """Publish rows of the envelope's schema, except what the hub has."""
        wanted = pc.greater(rows.column("seq"), self._known)
        rows = rows if pc.all(wanted).as_py() else rows.filter(wanted)
        if self._picked:
            for part in picks(rows):
                self._note(await self.append_picked(self._publisher, part))
        else:
            for number, run in runs(rows):
                self._note(await self.append(self._publisher, number, run))
        self.messages += rows.num_rows

    def _note(self, place: tuple[int | None, int | None]) -> None:
        first, self.last_seq = place
        self.first_seq = first if self.first_seq is None else self.first_seq

    async def append(
        self, publisher: str, number: int, rows: pa.RecordBatch
    ) -> tuple[int | None, int | None]:
        """Publish rows under the publisher's own numbers; a request repeated after a lost tube adds nothing."""
        body = _body(rows, number)
        answer = await self.ask(
            lambda n: ask.PublishRequest(id=n, publisher=publisher, number=number, origin=ORIGIN), body
        )
        return answer.head.get("first"), answer.head.get("last")

    async def known(self, publisher: str) -> int | None:
        """Return the last message that a replay of picked rows has sent; call it before :meth:`append_picked`."""
        # In this order: if another process runs the same replay meanwhile, our mark is taken.
        mark = await self.newest(_marks(publisher))
        newest = await self.newest(publisher)
        self._mark = 0 if mark is None else mark + 1
        self._known = -1 if newest is None else newest
        return newest

    async def append_picked(self, publisher: str, rows: pa.RecordBatch) -> tuple[int | None, int | None]:
        """Publish rows of the envelope's schema, once, under their sequence numbers as the publisher's own."""
        place = None, None
        while (rows := rows.filter(pc.greater(rows.column("seq"), self._known))).num_rows:
            body = pack_passed(UUID(self.log), [_picked(publisher, rows)])
            _check_size(body, rows.column("seq")[0].as_py())
            count = rows.num_rows
            answer = await self.ask(
                lambda n: ask.PassRequest(
                    id=n,
                    frontend=_marks(publisher),
                    number=self._mark,
                    rows=count,  # noqa: B023 -- it is asked before the next turn of the loop
                ),
                body,
            )
            place = answer.head.get("first"), answer.head.get("last")
            if answer.head.get("repeated"):
                # The request was repeated after a lost tube, or another process runs the same replay.
                await self.known(publisher)
            else:
                self._mark += 1
                self._known = rows.column("seq")[-1].as_py()
        return place


def runs(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut rows into runs without a gap in their numbers that fit a request; each comes with its first number."""
    seqs = rows.column("seq").to_numpy()
    gaps = (np.flatnonzero(np.diff(seqs) != 1) + 1).tolist()
    for run in _cut(rows, gaps):
        yield run.column("seq")[0].as_py(), run.select(PUBLISHED.names)


def picks(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows to be published as picked into parts that fit a request."""
    return _cut(rows, [])


def _cut(rows: pa.RecordBatch, edges: list[int]) -> Iterator[pa.RecordBatch]:
    """Cut rows at these places, and where there are too many for a request."""
    sizes = np.cumsum(pc.binary_length(rows.column("payload")).to_numpy(zero_copy_only=False), dtype=np.int64)
    begin = 0
    for end in [*edges, rows.num_rows]:
        while begin < end:
            before = int(sizes[begin - 1]) if begin else 0
            room = int(np.searchsorted(sizes, before + _REQUEST_BYTES, side="right"))
            stop = max(begin + 1, min(end, room, begin + _REQUEST_ROWS))
            # Only payloads are measured. Where attributes are the larger part, halve until it fits.
            while (
                stop - begin > 1 and pa.ipc.get_record_batch_size(rows.slice(begin, stop - begin)) > MAX_ROWS
            ):
                stop = begin + (stop - begin) // 2
            yield rows.slice(begin, stop - begin)
            begin = stop


def _picked(publisher: str, rows: pa.RecordBatch) -> Batch:
    fixed = {"origin": ORIGIN, "publisher": publisher}
    columns = {name: pa.repeat(pa.scalar(value, pa.string()), rows.num_rows) for name, value in fixed.items()}
    columns["number"] = rows.column("seq")
    kept = {name: rows.column(name) for name in PUBLISHED.names}
    return Batch.from_arrow(envelope_rows(columns | kept))


def _marks(publisher: str) -> str:
    """Return the name under which a replay's marks are counted, which is short however long the publisher's is."""
    return f"replay-{sha256(publisher.encode()).hexdigest()[:32]}"


def _body(rows: pa.RecordBatch, number: int) -> Buffer:
    body = body_of(rows)
    _check_size(body, number)
    return body


def _check_size(body: Buffer, number: int) -> None:
    if len(body) > MAX_ROWS:
        # Only a single row can be so long: see _cut().
        limit = f"{MAX_ROWS} bytes, as long as rows of one publish may be; --from {number + 1} leaves it out"
        raise LimitError("link", f"message {number}, with its envelope", len(body), limit)
