"""Messages that were kept here and that the upstream hub refused for good: a log of their own, for a person to look at.

``headrace log dump`` reads it like any other. An entry before the messages of a request says whose they are and why
they were refused. A request is set aside once, even if a crash comes before the outbox has noted that it was.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from headrace.errors import HeadraceError
from headrace.hub.publishing.storing.kept_requests import KeptRequest
from headrace.hub.state import entry
from headrace.log import Log
from headrace.message import Batch

_PART = "aside"


class Refusal(msgspec.Struct, frozen=True):
    """Whose messages were refused, and why."""

    publisher: str
    number: int
    reason: str


class SetAside:
    """The messages set aside from the outbox ``outbox``."""

    def __init__(self, log: Log, outbox: UUID) -> None:
        self.log = log
        self._outbox = outbox
        self._last = ""
        for batch in log.scan_ops(log.first_op):
            if batch.is_entries and batch.topic.startswith(f"{_PART}/"):
                self._last = batch.topic

    @property
    def messages(self) -> int:
        """How many there are."""
        return self.log.head - self.log.first + 1

    @property
    def size(self) -> int:
        """Bytes on the disk, if there is anything."""
        return self.log.size if self.log.tail_op else 0

    def put(self, request: KeptRequest, error: HeadraceError, time: int) -> None:
        """Add a request, unless it is there; it waits for the disk."""
        refusal = Refusal(request.publisher, request.number, str(error))
        described = entry(_PART, f"{self._outbox}/{request.op}", msgspec.json.encode(refusal))
        if described.topic == self._last:
            return
        log = self.log
        op, seq, time = log.tail_op + 1, log.tail, max(time, log.last_time)
        numbered: list[Batch] = []
        for batch in (described, *request.rows):
            numbered.append(batch.numbered(op, seq if batch.is_entries else seq + 1, time, batch.node))
            op, seq = op + len(batch), numbered[-1].last
        log.append(numbered)
        if log.fsync != "never":
            log.sync()
        log.commit(log.tail_op)
        self._last = described.topic
