"""The fingerprint of a history: a short text that stands for all messages up to one.

Readers ask for it again and again, each time a little further on (a Spark query with every micro-batch). So the digest
goes on from where it has come: only what is new is read, by ``hashlib``, whose state can be copied in memory but not be
saved. What is saved beside the log is :class:`~headrace.log.proof.chain.Chain`, which has the same fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.log.proof.canonical import canonical
from headrace.log.proof.chain import block_pieces, chained, fingerprint_of

if TYPE_CHECKING:
    from hashlib import _Hash


@dataclass(frozen=True)
class History:
    """The messages up to ``through``."""

    through: int
    value: bytes
    """The chain over the full blocks."""
    open: _Hash
    """The digest of the open block so far; not to be updated, since others go on from it."""

    @classmethod
    def of_blocks(cls, value: bytes, end: int) -> History:
        """Return the history up to the end of a block, which has this chain."""
        return cls(end, value, hashlib.sha256())

    @cached_property
    def fingerprint(self) -> str:
        """The text that stands for these messages."""
        return fingerprint_of(self.value, self.open.digest())

    def extended(self, rows: Iterable[pa.RecordBatch]) -> History:
        """Return the history with the messages that follow."""
        through, value, digest = self.through, self.value, self.open.copy()
        for each in rows:
            for data, edges in canonical(each):
                for piece, count, is_full in block_pieces(through, data.data, edges):
                    digest.update(piece)
                    through += count
                    if is_full:
                        value, digest = chained(value, digest.digest()), hashlib.sha256()
        return History(through, value, digest)
