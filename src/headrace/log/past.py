"""The past of a log: older messages that its directory no longer has, but an archive does.

A log that has a past reads through it as through one more segment before its own (:attr:`headrace.log.Log.past`), so
readers need not know where a message lies. An implementation translates the errors of its storage: a read returns the
messages or raises a :class:`~headrace.errors.StorageError`, and never leaves any out.
"""

from __future__ import annotations

from typing import Protocol

from headrace.log.topics.found import Found
from headrace.log.topics.segment_topics import TopicChoice
from headrace.message import Batch


class Past(Protocol):
    """Messages ``first`` to ``last``, without a hole. Any thread may read them except the event loop's."""

    @property
    def first(self) -> int:
        """The oldest message."""

    @property
    def last(self) -> int:
        """The newest message; ``first - 1`` if there is none."""

    def read(self, first: int, last: int, max_bytes: int) -> list[Batch]:
        """Read messages from ``first`` on, up to ``last`` or about ``max_bytes``, at least one."""

    def find(self, first: int, last: int, topics: TopicChoice | None, max_bytes: int) -> Found:
        """Read messages from ``first`` on that may be of chosen topics."""

    def seq_at(self, time: int) -> int | None:
        """Return the first message stamped at or after ``time`` (µs), if there is one."""

    def reach(self, first: int, size: int) -> tuple[int, int]:
        """Return the last message within about ``size`` stored bytes from ``first`` on, and their size; no I/O."""

    def first_time(self) -> int | None:
        """Return the time of the oldest message; no I/O."""
