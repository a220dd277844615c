"""The link's ``lost``: readers report ranges that were gone before they read them, and list the known ones.

A report becomes a log entry, so every hub that follows the log knows it. It is counted once, by the hub that took the
report. Ranges that the state knows already need no entry.
"""

from __future__ import annotations

from headrace.errors import RefusedError, StorageError
from headrace.hub.lost_ranges import LostRanges, lose
from headrace.hub.sequence import Hub
from headrace.hub.sequence_ranges import Range
from headrace.message import Batch
from headrace.net.link.connection import LinkConnection
from headrace.wire.link import requests as ask


class LinkLostRanges:
    """The lost ranges of one hub's readers, for its link."""

    def __init__(self, hub: Hub, losses: LostRanges) -> None:
        self._hub = hub
        self._losses = losses
        losses.observer = self._entered
        self._under_way = 0
        self._fresh: dict[int, list[Range]] = {}
        """The newly lost ranges of each entry, by its position in the log, while this hub awaits commits of its own."""

    def lost(self, connection: LinkConnection, request: ask.LostRequest, _body: memoryview) -> None:
        """Answer with the lost ranges; if the request reports one, append it to the log first."""
        reader, first, last = request.reader, request.first, request.last
        if (first is None) != (last is None) or (first is not None and reader is None):
            raise RefusedError("malformed", "a loss has a reader, first and last")
        if reader is None or first is None or last is None:
            connection.answer(request.id, lost=self._losses.facts(reader))
            return
        if first > last:
            raise RefusedError("malformed", f"there are no messages {first} to {last}")
        if not self._losses.unknown(reader, first, last):
            connection.answer(request.id, lost=self._losses.facts(reader))
            return

        def done(result: Batch | StorageError) -> None:
            self._under_way -= 1
            if isinstance(result, StorageError):
                connection.fail(request.id, result)
            else:
                for fresh in self._take(result.op):
                    detail = f"gone before {reader!r} had read them"
                    self._hub.counters.report("reader_lost", *fresh, detail, at_will=True)
                connection.answer(request.id, lost=self._losses.facts(reader))

        self._under_way += 1
        self._hub.submit(lose(reader, first, last), done)

    def _entered(self, op: int, fresh: list[Range]) -> None:
        if self._under_way:
            self._fresh[op] = fresh

    def _take(self, op: int) -> list[Range]:
        """Return the newly lost ranges of an entry, and drop those of earlier entries, which other hubs submitted."""
        taken = self._fresh.pop(op, [])
        if not self._under_way:
            self._fresh.clear()
        while self._fresh and (oldest := next(iter(self._fresh))) < op:
            del self._fresh[oldest]
        return taken
