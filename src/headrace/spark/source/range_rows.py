"""Read a range of the sequence in an executor, as Arrow record batches: from files if possible, else over the link.

A sealed segment never changes, so an executor that sees the hub's files (on the same machine, or on a shared file
system) reads them itself. Their index has the log's uuid, the range and a checksum of every record batch, and another
has their topics: what the options rule out is skipped unread. What is not sealed yet, or cannot be read this way, comes
over the link. Small batches are joined into ones that suit Spark.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.errors import HeadraceError, LostRangeError, TrimmedError, UsageError
from headrace.hub.filtered_read import read_passing
from headrace.hub.filters import Filter
from headrace.log.sealed.index import SegmentIndex
from headrace.log.sealed.segment import SealedSegment
from headrace.spark.hub_connections import link, wait_for_head
from headrace.spark.options import SourceOptions
from headrace.spark.source.archived_rows import archived_rows
from headrace.wire.link.requests import parse_where

ROWS: Final = 10_000
BYTES: Final = 8 << 20
"""Fewest rows or bytes of a batch for Spark, except the last."""

TRIMMED: Final = "retention removed them before they were read"
GO_ON: Final = "; with failOnDataLoss=false a query skips them"
"""The remedy, after the reason."""
REWOUND: Final = "the log now ends before them"

logger = logging.getLogger("headrace.spark")


class LogRange(NamedTuple):
    """Messages ``first`` to ``last`` of a log whose files are at ``path`` on the hub's machine."""

    log: str
    path: str
    first: int
    last: int
    files: Sequence[str] = ()
    """The archive's files that have them, if it does."""


def read_range(options: SourceOptions, span: LogRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range that the options choose, in the columns that they name."""
    rows = _read(options, span)
    if options.columns is not None:
        columns = list(options.columns)
        rows = (batch.select(columns) for batch in rows)
    return gathered(rows)


def _read(options: SourceOptions, span: LogRange) -> Iterator[pa.RecordBatch]:
    cursor = span.first
    wanted = _filter(options)
    if span.files and options.archive is not None:
        yield from archived_rows(
            options, options.archive, span.log, span.files, span.first, span.last, wanted
        )
        return
    segments = sealed_segments(span) if options.files else iter(())
    for segment in segments:
        if segment.first > cursor:
            break
        last = min(segment.last, span.last)
        try:
            if wanted is None:
                for rows in segment_rows(segment, cursor, last):
                    yield rows
                    cursor += rows.num_rows
            while cursor <= last and wanted is not None:
                # What the segment's index of topics rules out is not read.
                passing, upto, _ = read_passing(segment, cursor, last, wanted, BYTES)
                yield from passing
                cursor = upto + 1
        except (OSError, HeadraceError) as error:
            # The hub knows whether retention removed it or it is damaged.
            logger.info("%s cannot be read here (%s): asking the hub", segment.path, error)
            break
    if cursor <= span.last:
        yield from _by_link(options, span._replace(first=cursor))


def _filter(options: SourceOptions) -> Filter | None:
    """Make the filter that the options set, if they do."""
    if options.topic is None and options.origins is None and options.where is None:
        return None
    return Filter(options.topic, options.origins, parse_where(options.predicates or {}))


def sealed_segments(span: LogRange) -> Iterator[SealedSegment]:
    """Yield the sealed segments from the one in which ``span`` begins, as far as they are visible here.

    A segment's name orders it among the others, but counts bookkeeping too: only its index has its message numbers.
    """
    following = span.first
    try:
        paths = sorted(Path(span.path).glob("*.arrow"))
        begin = bisect_right(paths, span.first, key=_first_message) - 1
        for path in paths[max(begin, 0) :]:
            if following > span.last:
                return
            segment = SealedSegment.open(path)
            if str(segment.uuid) != span.log or segment.first > following:
                return
            # A segment may have no message at all.
            if segment.last >= following:
                yield segment
                following = segment.last + 1
    except (OSError, HeadraceError, ValueError):
        # Files that cannot be read are left to the hub, which knows why.
        return


def _first_message(path: Path) -> int:
    return SegmentIndex.read(path.with_suffix(".index")).first


def segment_rows(segment: SealedSegment, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Yield messages ``first`` to ``last`` of a segment, by its own record batches."""
    for number, batch in enumerate(segment.index.batches):
        begin, count = int(batch["first"]), int(batch["count"])
        if begin + count <= first:
            continue
        if begin > last:
            return
        rows = segment.rows(number)
        skip = max(first - begin, 0)
        yield rows.slice(skip, min(last - begin + 1, count) - skip)


def _by_link(options: SourceOptions, span: LogRange) -> Iterator[pa.RecordBatch]:
    first = span.first
    with link(options.access.beginning_with(span.first)) as client:
        if client.log != span.log:
            raise UsageError(another_log(span.log, client.log))
        while first <= span.last:
            stream = client.read(
                first,
                span.last,
                topic=options.topic,
                origin=None if options.origins is None else list(options.origins),
                where=options.predicates,
            )
            try:
                yield from stream
            except TrimmedError as trimmed:
                first = max(first, stream.cursor or first)
                lost = min(trimmed.oldest - 1, span.last)
                report_loss(options, first, lost)
                first = lost + 1
                continue
            first = stream.cursor or first
            if first <= span.last and wait_for_head(client, span.last, options.access).head < span.last:
                # It existed when the batch was planned.
                report_loss(options, first, span.last, REWOUND)
                return


def report_loss(options: SourceOptions, first: int, last: int, why: str = TRIMMED) -> None:
    """Report lost messages: as an error or, if the user wants to skip them, in the log and to the hub."""
    if options.fail_on_data_loss:
        raise LostRangeError(first, last, f"{why}{GO_ON}")
    logger.warning("%s; skipping them", LostRangeError(first, last, why))
    # Tell the hub too, if it answers: perhaps nobody reads this process's log.
    with suppress(HeadraceError), link(options.access, at_once=True) as client:
        client.report_lost(options.reader, first, last)


def another_log(before: str, now: str, what: str = "checkpoint") -> str:
    """Make the error text for offsets, or an archive, of another log."""
    return (
        f"the {what} belongs to log {before}, but the hub has log {now}: sequence numbers of one mean nothing in "
        f"the other. Connect to the hub it was made with, or begin with a new {what}"
    )


def another_history(seq: int, before: str, now: str, log: str) -> str:
    """Make the error text for an offset of a history that the log does not have."""
    return (
        f"the checkpoint has read up to message {seq} of log {log} with the history {before}, but the hub's log has "
        f"the history {now} up to there: it has lost its end (a power failure, a copy that was put back) and numbered "
        "other messages the same. Some that were read no longer exist, and some that exist were not read. Begin with "
        "a new checkpoint, at the first message that was not read; or go on after this message with "
        "failOnDataLoss=false"
    )


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches into ones that are worth their overhead."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS or size >= BYTES:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
