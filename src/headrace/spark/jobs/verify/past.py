"""``verify`` and an archive: all of a log's past, by digests that tasks compute.

The hub tells the digests of its blocks (:mod:`headrace.log.proof`), 32 bytes for 65,536 messages. Those of the archive
are computed from its rows, each task some blocks; with ``full`` those of the hub's own rows as well, since what it has
recorded may not be what is on its disk. Blocks are compared once; rows are read only where digests differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.archive.copy import ArchiveCopy
from headrace.archive.table import open_table
from headrace.client.link_copy import HubCopy
from headrace.errors import NoArchiveError, UsageError
from headrace.log.proof.chain import DIGEST_BYTES, Chain, block_range, blocks_in
from headrace.log.proof.comparison import PART, Copy, digests_of, first_difference
from headrace.spark.hub_connections import link
from headrace.spark.jobs.job import spark_ddl
from headrace.spark.jobs.verify.findings import DISAGREEMENT, HOLE, Finding
from headrace.spark.options import HubOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DIGESTS: Final = pa.schema([("block", pa.int64()), ("digest", pa.binary()), ("missing", pa.int64())])
"""What tasks tell: a block with its digest, or with a message that is missing."""


@dataclass(frozen=True)
class HubPlace:
    """A hub, as tasks get it."""

    access: HubOptions

    @contextmanager
    def open(self) -> Iterator[Copy]:
        """Open it."""
        with link(self.access) as client:
            yield HubCopy(self.access.servers, client)


@dataclass(frozen=True)
class ArchivePlace:
    """An archive, as tasks get it."""

    path: str

    @contextmanager
    def open(self) -> Iterator[Copy]:
        """Open its newest version."""
        yield ArchiveCopy(self.path, open_table(self.path))


Place = HubPlace | ArchivePlace


def check_archive(
    spark: SparkSession, hub: HubPlace, archive: ArchivePlace, begin: int, *, full: bool
) -> tuple[int, list[Finding]]:
    """Compare blocks from ``begin`` on that both have; return the first block that is left, and what is wrong."""
    try:
        with archive.open() as theirs, hub.open() as ours:
            recorded = ours.recorded()
            if recorded is None or theirs.log != recorded.uuid:
                raise UsageError(f"{archive.path} is of log {theirs.log}, and the hub has log {ours.log}")
            begin = max(begin, Chain.beginning_at(theirs.log, theirs.first).base)
            end = min(blocks_in(theirs.head), recorded.blocks)
            readable = Chain.beginning_at(ours.log, ours.first).base
    except NoArchiveError:
        return begin, []
    if begin >= end:
        return begin, []
    found: list[Finding] = []
    expected = {block: recorded.digest(block) for block in range(begin, end)}
    if full and max(begin, readable) < end:
        for block, digest, missing in block_digests(spark, hub, max(begin, readable), end):
            if missing is not None:
                found.append(Finding(HOLE, missing, missing, "it is missing", server=hub.access.servers))
            elif digest != expected[block]:
                evidence = "its messages are not those that it recorded"
                found.append(Finding(DISAGREEMENT, *block_range(block), evidence, server=hub.access.servers))
    for block, digest, missing in block_digests(spark, archive, begin, end):
        if missing is not None:
            found.append(Finding(HOLE, missing, missing, "it is missing", server=archive.path))
        elif expected[block] is not None and digest != expected[block]:
            found.append(_named(hub, archive, block))
    return end, found


def block_digests(
    spark: SparkSession, place: Place, begin: int, end: int
) -> list[tuple[int, bytes | None, int | None]]:
    """Compute the digests of blocks in tasks: each block with its digest, or with a message that is missing."""
    parts = -(-(end - begin) // PART)
    rows = spark.range(begin, end, PART, parts).mapInArrow(
        partial(_computed, place, end), spark_ddl(_DIGESTS)
    )
    return sorted((row.block, _bytes(row.digest), row.missing) for row in rows.collect())


def _bytes(digest: bytearray | None) -> bytes | None:
    return None if digest is None else bytes(digest)


def _computed(place: Place, end: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for begin in batch.column(0).to_pylist():
            with place.open() as copy:
                found = list(_blocks(copy, begin, min(begin + PART, end)))
            yield pa.RecordBatch.from_pylist(
                [dict(zip(_DIGESTS.names, each, strict=True)) for each in found], _DIGESTS
            )


def _blocks(copy: Copy, begin: int, end: int) -> Iterator[tuple[int, bytes | None, int | None]]:
    """Yield each block and its digest; one with a message that is missing has none, and the next go on after it."""
    while begin < end:
        made, missing = digests_of(copy, begin, end)
        for at in range(0, len(made), DIGEST_BYTES):
            yield begin, made[at : at + DIGEST_BYTES], None
            begin += 1
        if missing is not None:
            yield begin, None, missing.seq
            begin += 1


def _named(hub: HubPlace, archive: ArchivePlace, block: int) -> Finding:
    """Name the first message of a block that differs, if the hub still has it."""
    first, last = block_range(block)
    with hub.open() as ours, archive.open() as theirs:
        difference = first_difference(ours, theirs, first, last) if ours.first <= first else None
    if difference is None:
        return Finding(DISAGREEMENT, first, last, "its digest is not the hub's", server=archive.path)
    return Finding(DISAGREEMENT, difference.seq, difference.seq, difference.evidence, server=archive.path)
