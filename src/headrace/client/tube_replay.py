"""Replaying: messages that another log has numbered, published here, once.

The publisher of a replay has a name of its own, and a message's number is its sequence number in the log it comes from.
The hub that gets it knows the highest number it has of a publisher, and takes none below it again: that is what makes a
replay repeatable. It is also why rows are sent in order, and each request only after the answer to the one before: a
row that came late would be taken for a repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.tube import LinkClient
from headrace.errors import LimitError
from headrace.wire import link_requests as ask
from headrace.wire.link import MAX_HEAD, MAX_MESSAGE, PUBLISHED, body_of

MAX_ROWS: Final = MAX_MESSAGE - MAX_HEAD
"""What the rows of one request may take: a hub takes no longer message."""
_REQUEST_BYTES: Final = 1 << 20
_REQUEST_ROWS: Final = 8192


class ReplayTarget(LinkClient):
    """The hub that gets the messages."""

    async def append(
        self, publisher: str, number: int, rows: pa.RecordBatch
    ) -> tuple[int | None, int | None]:
        """Publish rows under the publisher's own numbers; asked again after a lost tube, they are there once."""
        body = body_of(rows)
        if len(body) > MAX_ROWS:
            # Only a lone row can be so long: see runs().
            limit = (
                f"{MAX_ROWS} bytes, as long as rows of one publish may be; --from {number + 1} leaves it out"
            )
            raise LimitError("link", f"message {number}, with its envelope", len(body), limit)
        answer = await self.ask(
            lambda n: ask.Publish(id=n, publisher=publisher, number=number, origin="replay"), body
        )
        return answer.head.get("first"), answer.head.get("last")


def runs(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows to be published, in runs whose sequence numbers have no gap and that a request has room for.

    Each comes with its first number.
    """
    if not rows.num_rows:
        return
    seqs = rows.column("seq").to_numpy()
    sizes = np.cumsum(pc.binary_length(rows.column("payload")).to_numpy(zero_copy_only=False), dtype=np.int64)
    ends = [*(np.flatnonzero(np.diff(seqs) != 1) + 1).tolist(), len(seqs)]
    published = rows.select(PUBLISHED.names)
    begin = 0
    for end in ends:
        while begin < end:
            before = int(sizes[begin - 1]) if begin else 0
            room = int(np.searchsorted(sizes, before + _REQUEST_BYTES, side="right"))
            stop = max(begin + 1, min(end, room, begin + _REQUEST_ROWS))
            # Payloads are measured, attributes are not: where they are the larger part, it is halved until it fits.
            while stop - begin > 1 and _size(published.slice(begin, stop - begin)) > MAX_ROWS:
                stop = begin + (stop - begin) // 2
            yield int(seqs[begin]), published.slice(begin, stop - begin)
            begin = stop


def _size(rows: pa.RecordBatch) -> int:
    size: int = pa.ipc.get_record_batch_size(rows)
    return size
