"""One SDK client's session: the messages due to it, and whether they are pushed when matched or read from the log.

A session is **live** while everything for its client reaches it by a *path*: the matcher in this process, or a matcher
elsewhere whose pushes come through a dispatcher. Otherwise it has a **cursor** and is fed from the log, with the
client's own predicates, until it can be live again. It gets a cursor when it begins with ``after``, when its outlet is
full, and when its path breaks. So a session needs no queue, and its client never sees how it is fed.

The seam between the two is exact:

- a :class:`MatcherPath` vouches for everything after its ``base``; no push of its :class:`PushSource` was above
  ``seen``, and the pushes for one client come in ascending order;
- a session at a cursor above both may be live: everything before the cursor came from the log, and the path brings
  everything after it;
- nothing at or below ``last`` is sent again: a repeat, by whatever path, is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.hub.cursor import NOWHERE, Cursor
from headrace.hub.routing.pending_changes import PendingChanges
from headrace.hub.routing.subscription_parts import (
    Label,
    Named,
)
from headrace.message import MAX_SEQUENCE, Batch, Run

NOTHING: Final = MAX_SEQUENCE
"""The sequence number of a mark that withdraws a matcher's earlier marks on this connection: a number that no log
reaches. A mark of 0 says that everything is still to come."""


ReadableRows: TypeAlias = Callable[[Batch, list[int]], list[int]]
"""Returns those of some rows of a batch that a client may read."""


Rows: TypeAlias = dict[int, tuple[Label, ...]]
"""The places in a batch of the messages that are for a client, in order, and what it is told of each: the names of the
named subscriptions that it satisfies, and the events of fences."""


class FoundRows(NamedTuple):
    """Batches of the log, and what in each is for a client."""

    first: int
    last: int
    batches: list[tuple[Batch, Rows]]


class ClientOutlet(Protocol):
    """Where a session's bytes go."""

    @property
    def room(self) -> int:
        """Bytes that may be sent before the client takes some; 0 or less when it is full."""

    def send(self, data: bytes) -> None:
        """Send pushes."""

    def later(self) -> None:
        """Call :meth:`~headrace.hub.routing.connector.Connector.resume` when there is room again."""

    def part(self, reason: str, detail: str) -> None:
        """Close the connection; ``reason`` is counted."""


class PushSource:
    """Where pushes come from: this process's matcher, a connection of a dispatcher, or all connections of the fleet.

    A source that never sent a mark is another implementation's, or has just begun.
    """

    __slots__ = ("paths", "seen")

    def __init__(self) -> None:
        self.seen = 0
        """The highest sequence number that was pushed."""
        self.paths: dict[int, MatcherPath] = {}
        """The paths of matchers, by node id."""

    def vouches_for(self, path: MatcherPath | None) -> bool:
        """Whether a session with this path is fed from here.

        Another source may push the same messages, but from another point on, so the two must not be mixed.
        """
        return path is not None and path.source is self


class MatcherPath:
    """What one matcher vouches for by one source: everything after ``base``; all up to ``upto`` has come."""

    __slots__ = ("base", "node", "source", "upto")

    def __init__(self, source: PushSource, node: int, base: int) -> None:
        self.source = source
        self.node = node
        self.base = base
        self.upto = base

    @property
    def begins(self) -> int:
        """The first sequence number at which a session that has everything before it may be live."""
        return max(self.base, self.source.seen) + 1


class MatcherPaths:
    """The paths of matchers elsewhere, by node id; if a matcher has several, the newest is used."""

    def __init__(self) -> None:
        self._paths: dict[int, list[MatcherPath]] = {}

    def get(self, node: int | None) -> MatcherPath | None:
        """The path of a matcher, if it has one."""
        paths = None if node is None else self._paths.get(node)
        return paths[-1] if paths else None

    def mark(self, source: PushSource, node: int, seq: int) -> bool:
        """Note how far a matcher is, by its mark on a source; return whether its clients have another path now.

        A mark of :data:`NOTHING` withdraws the path, since the matcher's pushes take another way from now on.
        """
        path = source.paths.get(node)
        if seq == NOTHING:
            return path is not None and self._give_up(path)
        source.seen = max(source.seen, seq)
        if path is not None:
            path.upto = max(path.upto, seq)
            return False
        path = source.paths[node] = MatcherPath(source, node, seq)
        self._paths.setdefault(node, []).append(path)
        return True

    def lose(self, source: PushSource) -> bool:
        """Forget a source; return whether clients have another path now, or none."""
        used = [self._give_up(path) for path in tuple(source.paths.values())]
        return any(used)

    def _give_up(self, path: MatcherPath) -> bool:
        del path.source.paths[path.node]
        paths = self._paths.get(path.node, [])
        if path not in paths:
            return False  # It was given up already.
        used = paths[-1] is path
        paths.remove(path)
        if not paths:
            del self._paths[path.node]
        return used


class ClientSession:
    """One connected client; made by :meth:`~headrace.hub.routing.connector.Connector.join`."""

    __slots__ = (
        "adding", "after", "client", "floor", "guest", "last", "outlet", "path", "pending", "place", "placed", "reads",
        "says", "sent", "wants",
    )  # fmt: skip

    def __init__(
        self,
        client: bytes,
        outlet: ClientOutlet,
        *,
        after: int | None,
        guest: bool,
        reads: ReadableRows | None = None,
    ) -> None:
        self.client = client
        self.outlet = outlet
        self.reads = reads
        """Selects what the client may read, if not everything: then it is fed from the log alone, which has the
        topics."""
        self.guest = guest
        """Whether the id is valid only for this connection."""
        self.after = after
        """Resume point for the first subscription; ``None`` once subscribed."""
        self.placed = True
        """Whether the state here is as new as the session: only then does it say what the client wants."""
        self.says: Named = {}
        """What the client subscribed that equals the state, to be compared again once ``placed``."""
        self.wants = False
        """Whether it has a subscription."""
        self.place: Cursor[FoundRows] = Cursor()
        """The session's cursor over the log; nowhere while it is live or has no subscription."""
        self.last = 0
        """The last sequence number that was sent or skipped."""
        self.floor = 0
        """The message after which a path is reliable, since its matcher has the client's subscription from there on."""
        self.path: MatcherPath | None = None
        self.sent = 0
        """Messages that were sent to the client."""
        self.pending = 0
        """Number of changes of its subscriptions that are on their way to the log."""
        self.adding = PendingChanges()
        """What these changes may add."""

    @property
    def cursor(self) -> int | None:
        """The next message to read from the log; ``None`` while it is live or has no subscription."""
        return self.place.next if self.place.follows else None

    @cursor.setter
    def cursor(self, seq: int | None) -> None:
        self.place.next = NOWHERE if seq is None else seq

    @property
    def live(self) -> bool:
        """Whether it is fed by its path."""
        return self.wants and self.cursor is None

    def begin(self, cursor: int) -> None:
        """Begin to feed the client everything from ``cursor`` on."""
        self.wants = True
        self.cursor = cursor
        self.last = cursor - 1

    def end(self) -> None:
        """Stop feeding the client."""
        self.wants = False
        self.cursor = None

    def fall_back(self, known: int) -> bool:
        """Switch to the log; return ``False`` if it is fed from there already.

        ``known`` is a number up to which the path certainly was this client's.
        """
        if not self.live:
            return False
        dealt = self.last if self.path is None else max(self.last, min(self.path.upto, known))
        self.cursor = dealt + 1
        return True

    def catch_on(self) -> bool:
        """Become live if the path brings everything from the cursor on."""
        path = self.path
        if (
            self.reads is not None
            or path is None
            or self.cursor is None
            or self.cursor < max(path.begins, self.floor + 1)
        ):
            return False
        self.last = self.cursor - 1
        self.cursor = None
        return True

    def push(self, seqs: Sequence[int] | npt.NDArray[np.int64], frames: Run) -> int:
        """Send live pushes in order while there is room; the log has the rest. Return how many were sent."""
        room, sent = self.outlet.room, len(frames)
        if frames.size > room:
            # The last that is sent may take more than there is.
            begins = frames.offsets[:-1] - frames.offsets[0]
            sent = int(np.searchsorted(begins, room)) if room > 0 else 0
        if sent:
            self.outlet.send(frames.slice(0, sent).content.tobytes() if frames.lone is None else frames.lone)
            self.last = int(seqs[sent - 1])
            self.sent += sent
        if sent < len(frames):
            self.cursor = int(seqs[sent])
        return sent
