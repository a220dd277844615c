"""The matchers that share the subscriptions, kept as a part of the hub's state.

A matcher that pushes to connectors elsewhere stands on the ring. It joins and leaves by entries of the log,
``matcher/NAME``: ``{"start": HEX}`` or ``{}``. So every process changes its ring at the same place in the sequence, and
at each message exactly one matcher has each client. A hub that serves its own connector alone writes no such entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from headrace.errors import UsageError
from headrace.hub.state import entry
from headrace.matching import Ring
from headrace.message import Batch, node_id

PART: Final = "matcher"

MAX_MATCHERS: Final = 1024
"""On the ring; whoever wrote the entries. It is no setting: the state would then depend on more than the log."""

FLEET: Final = "fleet"
"""The matchers in Spark are one matcher to all others, of this name; it is on no ring, as it has all clients."""

logger = logging.getLogger("headrace")


class Matchers:
    """Who is on the ring; a part of the state."""

    name = PART
    follows_messages = False

    def __init__(self) -> None:
        self.ring = Ring()
        self.changed: Callable[[int], None] = lambda _seq: None
        """Told when the ring has changed, and by which entry."""

    def apply(self, name: str, payload: bytes, seq: int) -> None:
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
            logger.warning("entry %d of matcher %r is passed over: %s", seq, name, error)
            return
        self.changed(seq)

    def follow(self, _batch: Batch) -> None:
        """Messages change nothing here."""

    def dump(self) -> bytes:
        """The ring as a snapshot's section."""
        return msgspec.msgpack.encode(dict(self.ring.starts))

    def load(self, section: bytes) -> None:
        """Take the ring over from a snapshot."""
        self.ring = Ring()
        for name, start in msgspec.msgpack.decode(section, type=dict[str, bytes]).items():
            self.ring.join(name, start)
        self.changed(0)

    def owner(self, client: bytes) -> int | None:
        """The node id of the matcher that has a client; ``None`` if nobody is on the ring."""
        return node_id(self.ring.owner(client)) if len(self.ring) else None


def join(name: str, start: bytes) -> Batch:
    """The log entry of a matcher that is there."""
    return entry(PART, name, msgspec.json.encode(_Order(start.hex())))


def leave(name: str) -> Batch:
    """The log entry of a matcher that is gone."""
    return entry(PART, name, msgspec.json.encode(_Order()))


class _Order(msgspec.Struct, frozen=True, omit_defaults=True):
    start: str | None = None
