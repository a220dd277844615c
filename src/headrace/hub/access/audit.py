"""The audit trail: records of who was let in, who was refused what, and who changed what.

A peer can cause records at will, so they are rationed. For each kind and peer, :data:`BURST` records a minute are
written, and then one with the number of further ones; for each kind and all peers together, :data:`MOST` a minute. Each
kind has its own ration and its own room (:class:`AuditSink`), so a flood of refusals only displaces older refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

BURST: Final = 20
MOST: Final = 240
MINUTE: Final = 60.0
PEERS: Final = 1000
"""Most peers whose records are counted separately in a minute; those of others are counted together."""
_LONGEST: Final = 300
"""Most characters of a name in a record, since peers choose names."""


class AuditKind(StrEnum):
    """The subject of a record."""

    LET_IN = "let_in"
    REFUSED = "refused"
    CHANGED = "changed"


class AuditSink(Protocol):
    """Where records go; each kind has room of its own there."""

    def write(self, kind: AuditKind, record: Mapping[str, Any]) -> None:
        """Keep a record; this must not wait for a disk."""


@dataclass(slots=True)
class _Ration:
    """What was written of one kind in the current minute."""

    since: float
    written: int = 0
    left_out: int = 0
    """Records that were left out and are in no peer's count."""
    peers: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    """Numbers of records that came and that were left out, by principal, address, door, action and reason."""


class AuditTrail:
    """Makes records and rations them; ``clock`` gives seconds since 1970."""

    def __init__(self, sink: AuditSink, clock: Callable[[], float]) -> None:
        self._sink = sink
        self._clock = clock
        self._rations = {kind: _Ration(clock()) for kind in AuditKind}

    def note(
        self,
        kind: AuditKind,
        *,
        door: str,
        peer: str,
        principal: str,
        action: str = "",
        what: str = "",
        reason: str = "",
    ) -> None:
        """Write a record, or count it if there have been many."""
        now = self._clock()
        ration = self._rations[kind]
        if not 0 <= now - ration.since < MINUTE:
            ration = self._next_minute(kind, now)
        address = peer.partition(" ")[0].rpartition(":")[0] or peer
        who = (principal, address, door, action, reason)
        counts = ration.peers.get(who)
        if counts is None:
            if len(ration.peers) >= PEERS:
                ration.left_out += 1
                return
            counts = ration.peers[who] = [0, 0]
        if counts[0] >= BURST or ration.written >= MOST:
            counts[1] += 1
            return
        counts[0] += 1
        ration.written += 1
        facts = {
            "door": door,
            "peer": peer,
            "principal": principal,
            "action": action,
            "what": what[:_LONGEST],
            "reason": reason,
        }
        self._write(kind, now, {name: value for name, value in facts.items() if value})

    def tick(self) -> None:
        """Once a minute is over, write how many records were left out."""
        now = self._clock()
        for kind, ration in self._rations.items():
            if not 0 <= now - ration.since < MINUTE:
                self._next_minute(kind, now)

    def close(self) -> None:
        """Write how many records were left out."""
        for kind in AuditKind:
            self._next_minute(kind, self._clock())

    def _next_minute(self, kind: AuditKind, now: float) -> _Ration:
        over = self._rations[kind]
        ration = self._rations[kind] = _Ration(now)
        told = 0
        silent = over.left_out
        for (principal, address, door, action, reason), (_, left_out) in over.peers.items():
            if not left_out:
                continue
            if told >= BURST:
                silent += left_out
                continue
            told += 1
            facts = {
                "door": door,
                "peer": address,
                "principal": principal,
                "action": action,
                "reason": reason,
                "more": left_out,
            }
            self._write(kind, now, {name: value for name, value in facts.items() if value})
        if silent:
            self._write(kind, now, {"peer": "others", "more": silent})
        return ration

    def _write(self, kind: AuditKind, now: float, facts: Mapping[str, Any]) -> None:
        self._sink.write(kind, {"time": round(now, 3), "event": str(kind), **facts})
