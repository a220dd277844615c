"""Compare copies of one history: by digests, and row by row only where digests differ.

A copy is a log, a hub or an archive: anything with rows under sequence numbers. Its digests are recorded, or computed
from its rows, several blocks at a time. The first block that differs is compared row by row, in step, so that memory
does not depend on how large the messages are.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Protocol
from uuid import UUID

import numpy as np
import pyarrow as pa

from headrace.errors import shorten
from headrace.log.proof.canonical import canonical
from headrace.log.proof.chain import DIGEST_BYTES, Chain, ChainExtension, blocks_in, end_of
from headrace.message import SCHEMA, messages

PART: Final = 16
"""Blocks that one task computes: about a million messages."""


class Copy(Protocol):
    """A copy of a history; its rows can be read by several threads."""

    name: str
    log: UUID
    first: int
    head: int

    def recorded(self) -> Chain | None:
        """Return the digests that it has recorded, up to ``head``; ``None`` if it records none."""

    def rows(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield messages in the envelope's schema, in order; a missing message is left out."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first message that two copies do not share."""

    seq: int
    fields: tuple[str, ...]
    """The fields that differ; none if the message is missing."""
    evidence: str


class MissingError(Exception):
    """A message is not where it should be."""

    def __init__(self, seq: int, found: int | None) -> None:
        self.seq = seq
        self.found = found
        super().__init__(
            f"message {seq} is missing" if found is None else f"message {seq} is missing: {found} follows"
        )


def computed(
    copy: Copy, progress: Callable[[int], None] = lambda _: None, threads: int = 0
) -> tuple[Chain, MissingError | None]:
    """Compute a copy's digests from its rows; stop at the first message that is missing.

    ``progress`` is called with the number of messages of each step.
    """
    chain = Chain.beginning_at(copy.log, copy.first)
    threads = threads or os.cpu_count() or 1
    full = blocks_in(copy.head)
    parts = [(begin, min(begin + PART, full)) for begin in range(chain.base, full, PART)]
    digests = b""
    missing = None
    with ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(digests_of, copy, *part) for part in parts[: 2 * threads]]
        following = iter(parts[2 * threads :])
        while waiting and missing is None:
            found, missing = waiting.pop(0).result()
            digests += found
            progress(end_of(len(found) // DIGEST_BYTES))
            if (part := next(following, None)) is not None:
                waiting.append(pool.submit(digests_of, copy, *part))
        for each in waiting:
            each.cancel()
    if digests:
        chain = Chain(copy.log, end_of(chain.base + len(digests) // DIGEST_BYTES), chain.base, digests)
    if missing is not None:
        return chain, missing
    try:
        rows = in_order(copy.rows(chain.through + 1, copy.head), chain.through + 1, copy.head)
        return chain.extended(rows, copy.head), None
    except MissingError as error:
        return chain, error


def digests_of(copy: Copy, begin: int, end: int) -> tuple[bytes, MissingError | None]:
    """Compute the digests of blocks ``begin`` up to ``end`` from rows; stop at a missing message and return it too."""
    first, last = end_of(begin) + 1, end_of(end)
    extension = ChainExtension(Chain(copy.log, first - 1, begin), last)
    try:
        for rows in in_order(copy.rows(first, last), first, last):
            extension.add(rows)
    except MissingError as missing:
        return extension.digests, missing
    return extension.digests, None


def digest_of(copy: Copy, first: int, last: int) -> bytes:
    """Compute the digest of a range from a copy's rows, as if it were a block."""
    digest = hashlib.sha256()
    for rows in in_order(copy.rows(first, last), first, last):
        for data, edges in canonical(rows):
            digest.update(data[edges[0] : edges[-1]].data)
    return digest.digest()


def overlaid(recorded: Chain, fresh: Chain) -> Chain:
    """Return the recorded digests, replaced by the fresh ones where there are any."""
    begin, end = (
        max(fresh.base - recorded.base, 0) * DIGEST_BYTES,
        max(fresh.blocks - recorded.base, 0) * DIGEST_BYTES,
    )
    digests = recorded.digests[:begin] + fresh.digests + recorded.digests[end:]
    known = fresh.through == recorded.through and fresh.open is not None
    return replace(recorded, digests=digests, open=fresh.open if known else recorded.open)


def first_differing_block(ours: Chain, theirs: Chain) -> int | None:
    """The first block that is full and known in both and differs."""
    begin, end = max(ours.base, theirs.base), min(ours.blocks, theirs.blocks)
    return next((block for block in range(begin, end) if ours.digest(block) != theirs.digest(block)), None)


def first_difference(ours: Copy, theirs: Copy, first: int, last: int) -> Difference | None:
    """The first message of a range that differs in two copies."""
    names = ours.name, theirs.name
    with (
        closing(_Steps(ours.rows(first, last), first, last)) as here,
        closing(_Steps(theirs.rows(first, last), first, last)) as there,
    ):
        while first <= last:
            # Whichever lacks the next message is the one that differs.
            missing = [
                name for name, each in zip(names, (here, there), strict=True) if not each.has(first, last)
            ]
            if missing:
                return Difference(first, (), f"message {first} is missing in {' and in '.join(missing)}")
            count = min(here.left, there.left)
            one, other = here.take(count), there.take(count)
            at = _first_differing_row(one, other)
            if at is not None:
                return _explained(one.slice(at, 1), other.slice(at, 1), names)
            first += count
    return None


def in_order(rows: Iterable[pa.RecordBatch], first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Pass on rows whose numbers are ``first`` to ``last``; raise :class:`MissingError` where one is missing."""
    expected = first
    for each in rows:
        seqs = each.column("seq").to_numpy()
        wrong = np.flatnonzero(seqs != np.arange(expected, expected + len(seqs)))
        if len(wrong):
            if wrong[0]:
                yield each.slice(0, int(wrong[0]))
            raise MissingError(expected + int(wrong[0]), int(seqs[wrong[0]]))
        if len(seqs):
            yield each
        expected += len(seqs)
    if expected <= last:
        raise MissingError(expected, None)


class _Steps:
    """Rows taken in steps; they end at the first missing one."""

    def __init__(self, rows: Iterator[pa.RecordBatch], first: int, last: int) -> None:
        self._rows = in_order(rows, first, last)
        self._now: pa.RecordBatch | None = None

    @property
    def left(self) -> int:
        return 0 if self._now is None else self._now.num_rows

    def has(self, seq: int, last: int) -> bool:
        """Whether there is a next message."""
        if seq <= last and not self.left:
            try:
                self._now = next(self._rows)
            except (MissingError, StopIteration):
                return False
        return bool(self.left)

    def take(self, count: int) -> pa.RecordBatch:
        assert self._now is not None  # noqa: S101 -- has() was asked
        taken, self._now = self._now.slice(0, count), self._now.slice(count)
        return taken

    def close(self) -> None:
        self._rows.close()  # type: ignore[attr-defined]


def _first_differing_row(one: pa.RecordBatch, other: pa.RecordBatch) -> int | None:
    if _bytes(one) == _bytes(other):
        return None
    low, high = 0, one.num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if _bytes(one.slice(low, middle - low)) == _bytes(other.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def _bytes(rows: pa.RecordBatch) -> bytes:
    return b"".join(data[edges[0] : edges[-1]].tobytes() for data, edges in canonical(rows))


def _explained(one: pa.RecordBatch, other: pa.RecordBatch, names: tuple[str, str]) -> Difference:
    (ours,), (theirs,) = messages(one), messages(other)
    fields = tuple(name for name in SCHEMA.names if repr(getattr(ours, name)) != repr(getattr(theirs, name)))
    evidence = "; ".join(
        f"{name} is {shorten(getattr(ours, name))} in {names[0]} and {shorten(getattr(theirs, name))} in {names[1]}"
        for name in fields
    )
    return Difference(ours.seq, fields, evidence)
