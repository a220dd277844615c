"""One read of messages, bounded in bytes, for segments and archived files."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from headrace.message import Batch

_BESIDE: Final = 4
"""Rows that are larger than this many times their payloads count with a share of their full size."""


class BoundedRead:
    """Batches up to about ``max_bytes``; at least one message, however large."""

    def __init__(self, max_bytes: int) -> None:
        self.batches: list[Batch] = []
        self.has_room = True
        """Whether another batch may follow."""
        self._left = max_bytes

    def add(self, batch: Batch, rows: pa.RecordBatch) -> None:
        """Add a batch, or the part of it that fits. It is a part of ``rows``, whose other columns count too."""
        size = max(batch.run.size, rows.nbytes * len(batch) // rows.num_rows // _BESIDE)
        if size > self._left:
            edges = batch.run.offsets
            fit = int(np.searchsorted(edges, int(edges[0]) + self._left, side="right")) - 1
            fit = min(fit, len(batch) * self._left // size)
            if fit or not self.batches:
                self.batches.append(batch.slice(0, max(fit, 1)))
            self.has_room = False
            return
        self.batches.append(batch)
        self._left -= size
        self.has_room = self._left > 0
