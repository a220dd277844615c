"""The ring of matchers that share the subscriptions, and the rule that takes silent ones off it.

A matcher that pushes to connectors elsewhere is on the ring. It joins and leaves by entries of the log,
``matcher/NAME``: ``{"start": HEX}`` or ``{}``. So every process changes its ring at the same point in the sequence, and
at each message exactly one matcher has each client. A hub that serves only its own connector writes no such entry.

**Silence.** A matcher hears the matchers that it dials, by name. A matcher that was heard and then falls silent is gone
after ``patience`` seconds. A matcher that was never heard may have died before this process began, or may be one that
only others dial; the two look the same. So a name on the ring that stays unheard for as long is taken off **once**, and
only while some of the dialled matchers have not given their names, since it may be one of them. If the matcher is alive
after all, it finds itself off the ring, joins again, and is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from headrace.errors import UsageError
from headrace.hub.state import entry
from headrace.matching import Ring
from headrace.message import Batch, node_id

PART: Final = "matcher"

MAX_MATCHERS: Final = 1024
"""Most matchers on the ring. This is not a setting, since the state must depend on the log alone."""

MAX_SPARED: Final = MAX_MATCHERS
"""Most remembered names that were taken off unheard, and are not taken off again; the oldest are forgotten first."""

FLEET: Final = "fleet"
"""The name of the matchers in Spark, which count as one matcher; it is on no ring, since it has all clients."""

logger = logging.getLogger("headrace")


class MatcherRing:
    """The matchers on the ring; a part of the state."""

    name = PART

    def __init__(self) -> None:
        self.ring = Ring()
        self.changed: Callable[[int], None] = lambda _seq: None
        """Called after the ring has changed, with the message after which it has."""

    def apply(self, name: str, payload: bytes, seq: int, _op: int) -> None:
        """Follow a ``matcher`` entry."""
        try:
            start = msgspec.json.decode(payload, type=_Order).start
            if start is None:
                self.ring.leave(name)
            elif name not in self.ring and len(self.ring) >= MAX_MATCHERS:
                raise UsageError(f"{MAX_MATCHERS} matchers are on the ring")
            else:
                self.ring.join(name, bytes.fromhex(start))
        except (msgspec.MsgspecError, ValueError, UsageError) as error:
            logger.warning("an entry after message %d, of matcher %r, is passed over: %s", seq, name, error)
            return
        self.changed(seq)

    def dump(self) -> bytes:
        """Return the ring as a snapshot's section."""
        return msgspec.msgpack.encode(dict(self.ring.starts))

    def load(self, section: bytes) -> None:
        """Take the ring over from a snapshot."""
        self.ring = Ring()
        for name, start in msgspec.msgpack.decode(section, type=dict[str, bytes]).items():
            self.ring.join(name, start)
        self.changed(0)

    def owner(self, client: bytes) -> int | None:
        """Return the node id of the matcher that has a client; ``None`` if the ring is empty."""
        return node_id(self.ring.owner(client)) if len(self.ring) else None


class SilentMatchers:
    """What one matcher has heard from the others; ``me`` is its own name."""

    def __init__(self, me: str, patience: float) -> None:
        self._me = me
        self._patience = patience
        self._heard: dict[str, float] = {}
        self._unheard: dict[str, float] = {}
        """Names on the ring that were not heard, and since when."""
        self._spared: dict[str, None] = {}

    def __contains__(self, name: object) -> bool:
        """Whether a matcher was heard lately."""
        return name in self._heard

    def heard(self, name: str, now: float) -> None:
        """Note that a matcher lives."""
        self._heard[name] = now
        self._unheard.pop(name, None)

    def gone(self, ring: Iterable[str], now: float, *, all_here: bool) -> list[str]:
        """Return the names to take off the ring now; ``all_here`` says that all dialled matchers gave their names."""
        on_ring = set(ring)
        late = [name for name, heard in self._heard.items() if now - heard >= self._patience]
        for name in late:
            del self._heard[name]
        strangers = [name for name in on_ring if name != self._me and name not in self._heard]
        self._unheard = {name: self._unheard.get(name, now) for name in strangers if name not in self._spared}
        gone = [name for name in late if name in on_ring]
        if not all_here:
            unheard = [
                name
                for name, since in self._unheard.items()
                if name not in gone and now - since >= self._patience
            ]
            self._spare(unheard)
            gone += unheard
        return sorted(gone)

    def stayed(self, name: str) -> None:
        """Judge a matcher anew that could not be taken off the ring."""
        self._spared.pop(name, None)

    def _spare(self, names: list[str]) -> None:
        for name in names:
            del self._unheard[name]
            self._spared[name] = None
        while len(self._spared) > MAX_SPARED:
            del self._spared[next(iter(self._spared))]


def join(name: str, start: bytes) -> Batch:
    """Make the log entry that puts a matcher on the ring."""
    return entry(PART, name, msgspec.json.encode(_Order(start.hex())))


def leave(name: str) -> Batch:
    """Make the log entry that takes a matcher off the ring."""
    return entry(PART, name, msgspec.json.encode(_Order()))


class _Order(msgspec.Struct, frozen=True, omit_defaults=True):
    start: str | None = None
