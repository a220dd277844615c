"""The hub's state as a function of the log: a snapshot, and every entry since, applied in order.

The state has **parts** (holds, services, publishers' numbers, …). Each follows the log on its own and has one section
of the snapshot. Two things reach a part:

- *entries*, which stand in the log between messages (origin ``log``) and have no numbers. Their topic is
  ``<part>/<name>``; only the part understands their payload;
- *batches* of messages, for parts whose state depends on messages (:class:`MessageFollower`).

Nothing else changes the state: a change is an appended entry. So a restarted hub, a frontend and a cluster node that
have the same log have the same state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol, runtime_checkable

import msgspec

from headrace.hub.holds import Holds
from headrace.log import Log
from headrace.log.snapshots.pieces import Section
from headrace.log.snapshots.snapshot import FrozenState, Snapshot
from headrace.message import NOT_A_MESSAGE, Batch, Run

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of reading a payload, including those for bytes that are not text and for values nested too deeply."""


class StatePart(Protocol):
    """One part of the state."""

    name: str
    """The name of its section in the snapshot, and the beginning of its entries' topics."""

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:
        """Apply one of the part's own entries, which stands after message ``seq``; ``op`` is its alone."""

    def dump(self) -> bytes:
        """Return the part as its section of a snapshot."""

    def load(self, section: bytes) -> None:
        """Restore the part from a snapshot."""


class LargePart:
    """A part whose section is made in a thread, in pieces, since that may take long."""

    def freeze(self) -> Iterator[bytes]:
        """Return the pieces of the part's section as it is now, whatever changes before they are made.

        Called on the event loop, so it only takes references; the pieces are made in a thread.
        """
        raise NotImplementedError

    def dump(self) -> bytes:
        """Return the part as its section of a snapshot, made at once."""
        return b"".join(self.freeze())


@runtime_checkable
class MessageFollower(Protocol):
    """A part whose state depends on messages as well."""

    def follow(self, batch: Batch) -> None:
        """Apply a batch."""


class HubState:
    """The hub's state, which includes everything up to operation ``op``; message ``seq`` is its newest."""

    def __init__(self, *parts: StatePart) -> None:
        self.op = 0
        self.seq = 0
        self.unread = 0
        """Number of entries whose payload could not be read."""
        self.holds = Holds()
        self._parts: dict[str, StatePart] = {part.name: part for part in (self.holds, *parts)}
        self._followers = [part for part in self._parts.values() if isinstance(part, MessageFollower)]

    def restore(self, log: Log) -> None:
        """Load the state at a log's head."""
        if log.snapshot is not None:
            self.load(log.snapshot)
            log.forget_sections()
        for batch in log.scan_ops(self.op + 1):
            self.apply(batch)

    def apply(self, batch: Batch) -> None:
        """Apply one committed batch."""
        self.op, self.seq = batch.last_op, batch.last
        if batch.origin == NOT_A_MESSAGE:
            for op, message in enumerate(batch, batch.op):
                kind, _, name = message.topic.partition("/")
                part = self._parts.get(kind)
                if part is not None:
                    try:
                        part.apply(name, message.payload, message.seq, op)
                    except _UNREADABLE:
                        # A relayed entry may be malformed. It changes nothing, here and wherever this log is read.
                        self.unread += 1
        for part in self._followers:
            part.follow(batch)

    def freeze(self) -> FrozenState:
        """Return the state as it is now, from which a thread makes a snapshot in pieces."""
        sections: dict[str, Section] = {
            name: part.freeze() if isinstance(part, LargePart) else part.dump()
            for name, part in self._parts.items()
        }
        return FrozenState(self.op, self.seq, sections)

    def sections(self) -> dict[str, bytes]:
        """Return the state as a snapshot's sections, made at once."""
        return {name: part.dump() for name, part in self._parts.items()}

    def load(self, snapshot: Snapshot) -> None:
        """Restore the state from a snapshot; sections of unknown parts are ignored."""
        self.op, self.seq = snapshot.op, snapshot.seq
        for name, section in snapshot.sections.items():
            if name in self._parts:
                self._parts[name].load(section)


def entry(part: str, name: str, payload: bytes) -> Batch:
    """Make a log entry that is not a message: a change of ``part``'s state."""
    return Batch(Run.of([payload]), origin=NOT_A_MESSAGE, topic=f"{part}/{name}")
