"""Cuts a group of submissions that is too large for one append into parts that are appended one after the other.

In a cluster, an append goes from node to node in one parcel. A group that does not fit, such as a Spark batch of a
gigabyte, is appended in parts, each tied to the next. The log and every node treat them as one append, which is
committed as a whole or not at all (:mod:`headrace.cluster.tied_ops`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from headrace.hub.sequencer import Submission
from headrace.message import Batch

PART_BYTES: Final = 4 << 20
"""Payload bytes of a part; between two parts, all other submissions have their turn."""


def parts_of(group: Sequence[Submission], most: int) -> Iterator[list[Submission]]:
    """Yield the parts of a group, each of about ``most`` payload bytes or less, or of one row."""
    part: list[Submission] = []
    room = most
    for batch, done, tied in group:
        pieces = list(_cut(batch, most))
        for place, piece in enumerate(pieces, 1):
            last = place == len(pieces)
            if part and piece.run.size > room:
                yield part
                part, room = [], most
            part.append(Submission(piece, done if last else None, tied or not last))
            room -= piece.run.size
    if part:
        yield part


def _cut(batch: Batch, most: int) -> Iterator[Batch]:
    if batch.run.size <= most:
        yield batch
        return
    edges, begin = batch.run.offsets, 0
    while begin < len(batch):
        end = int(np.searchsorted(edges, edges[begin] + most, "right")) - 1
        end = min(max(end, begin + 1), len(batch))
        yield batch.slice(begin, end)
        begin = end
