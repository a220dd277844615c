"""Matching a batch against segments, a piece at a time, within bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.matching import kernels
from headrace.matching.attribute_reading import Facts
from headrace.matching.index.segment import Ints, Segment
from headrace.matching.matches import Matches

FIRST_ROOM = 1 << 12
"""Initial room for a segment's matching rows."""


class BatchScan:
    """One batch against the segments of one version."""

    def __init__(
        self,
        segments: Sequence[Segment],
        facts: Facts,
        attributes: Sequence[Ints],
        seed: np.uint64,
        version: int,
    ) -> None:
        self._segments = segments
        self._facts = facts
        self._attributes = attributes
        self._seed = seed
        self._version = version
        self._counts = np.empty((len(segments), facts.first.shape[1] - 1), np.int32)

    def piece(self, begin: int, end: int, most: int) -> Matches:
        """Match messages from ``begin`` on, up to ``most`` clients or one message."""
        found: list[Ints] = []
        for index in range(len(self._segments)):
            # A segment that runs out of room shortens the piece for all.
            end, rows = self._match(index, begin, end, most)
            found.append(rows)
        counts = self._counts[:, begin:end].sum(axis=0, dtype=np.int64)
        offsets = np.zeros(end - begin + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        if offsets[-1] > most and end - begin > 1:
            # Too many in total, though not in any one segment.
            end = begin + max(1, int(np.searchsorted(offsets, most, side="right")) - 1)
            offsets = offsets[: end - begin + 1]
        clients = np.empty((int(offsets[-1]), 3), np.uint32)
        owned = any(segment.clients.shape[1] > 3 for segment in self._segments)
        owners = np.empty(clients.shape if owned else (0, 3), np.uint32)
        at = offsets[:-1].copy()
        for segment, rows, each in zip(self._segments, found, self._counts, strict=True):
            kernels.collect(segment.clients, rows, each, begin, end, at, clients, owners)
        return Matches(offsets, clients.view(np.uint8), owners.view(np.uint8) if owned else None)

    def _match(self, index: int, begin: int, end: int, most: int) -> tuple[int, Ints]:
        segment = self._segments[index]
        # There is always room for one message, which may match every row.
        enough = max(most, segment.rows)
        room = min(enough, FIRST_ROOM + 256 * (end - begin))
        rows = np.empty(room, np.int32)
        used, at = 0, begin
        while True:
            at, more = kernels.match(
                segment,
                self._facts,
                self._attributes[index],
                self._seed,
                self._version,
                at,
                end,
                rows[used:],
                self._counts[index],
            )
            used += more
            if at == end or len(rows) == enough:
                return at, rows[:used]
            larger = np.empty(min(enough, 4 * len(rows)), np.int32)
            larger[:used] = rows[:used]
            rows = larger
