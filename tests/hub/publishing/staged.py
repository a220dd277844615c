"""Stages for tests."""

from __future__ import annotations

import pyarrow as pa

from headrace.hub.publishing.idempotent import published
from headrace.hub.publishing.staging import Stage, StagedPiece
from headrace.wire.link.message import PUBLISHED


class Budget:
    """So many bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def take(self, size: int) -> str | None:
        if self.taken + size > self.most:
            return f"{self.taken} bytes of {self.most}"
        self.taken += size
        return None

    def give_back(self, size: int) -> None:
        self.taken -= size


PLENTY = Budget(1 << 40)


def rows(*payloads: bytes) -> pa.RecordBatch:
    columns = [[""] * len(payloads), [[]] * len(payloads), [[]] * len(payloads), list(payloads)]
    return pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, PUBLISHED, strict=True)], schema=PUBLISHED
    )


def piece(*payloads: bytes) -> StagedPiece:
    return StagedPiece(published(rows(*payloads)))


def stage(query: str = "q", batch: int = 1, budget: Budget = PLENTY) -> Stage:
    return Stage(query, batch, budget)
