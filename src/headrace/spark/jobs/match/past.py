"""What fences have to know of the messages before a task's range."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.archive.parquet_file import enveloped
from headrace.errors import LostRangeError
from headrace.message import Batch
from headrace.spark.options import SourceOptions
from headrace.spark.source.range_rows import LogRange, read_range


class Past:
    """Reads messages of the log that a task's range is of; for :class:`~headrace.matching.Matcher`."""

    def __init__(self, options: SourceOptions, span: LogRange) -> None:
        self._options = options
        self.span = span
        """The range in hand."""

    def __call__(self, first: int, last: int) -> Iterator[Batch]:
        """Read the messages from one number to another, both included, as far as they are still there."""
        at = first
        while at <= last:
            try:
                for rows in read_range(self._options, LogRange(self.span.log, self.span.path, at, last)):
                    batch = Batch.over(enveloped(rows))
                    yield batch
                    at = batch.last + 1
            except LostRangeError as lost:
                at = max(lost.last, at) + 1
            else:
                return
