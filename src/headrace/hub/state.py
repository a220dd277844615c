"""The hub's state as a function of the log: a snapshot, and every entry since, applied in order.

The state has **parts** (holds, services, publishers' numbers, …). Each follows the log on its own and has one section
of the snapshot. Two things reach a part:

- *entries*: they stand in the log between messages (origin ``log``) and have no numbers. Their topic is
  ``<part>/<name>``; the part alone knows their payload;
- *batches* of messages, for parts whose state depends on messages (:class:`MessageFollower`).

Nothing else changes the state: a change is an appended entry. So a restarted hub, a frontend and a cluster node that
have the same log have the same state.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable
from uuid import UUID

import msgspec

from headrace.hub.holds import Holds
from headrace.log import Log
from headrace.log.snapshot import Snapshot
from headrace.message import NOT_A_MESSAGE, Batch, Run


class StatePart(Protocol):
    """One part of the state."""

    name: str
    """The name of its section in the snapshot, and the beginning of its entries' topics."""

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:
        """Apply one of the part's own entries, which stands after message ``seq``; ``op`` is its alone."""

    def dump(self) -> bytes:
        """Return the part as its section of a snapshot."""

    def load(self, snapshot: Snapshot) -> None:
        """Restore the state from a snapshot; sections of unknown parts are ignored."""
        self.op, self.seq = snapshot.op, snapshot.seq
        for name, section in snapshot.sections.items():
            if name in self._parts:
                self._parts[name].load(section)


def entry(part: str, name: str, payload: bytes) -> Batch:
    """Make a log entry that is not a message: a change of ``part``'s state."""
    return Batch(Run.of([payload]), origin=NOT_A_MESSAGE, topic=f"{part}/{name}")
