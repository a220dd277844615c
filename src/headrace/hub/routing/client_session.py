"""What one SDK client is owed, and from where it gets it: pushed as it is matched, or read from the log.

A session is **live** while everything that is for its client reaches it by a *path*: the matcher in this process, or a
matcher elsewhere whose pushes come through a dispatcher. Else it has a **cursor** and is fed from the log, with the
client's own predicates, until it can be live again. It gets a cursor when it begins with ``after``, when its outlet is
full, and when its path breaks. So a session has no queue, and how it is fed is never seen by the client.

The seam between the two is exact:

- a :class:`Path` vouches for all that lies behind its ``base``; what has come on its :class:`Source` is not above
  ``seen``, and what comes next for one client is above what came before;
- a session at a cursor above both may be live: all that it passed came from the log, all the rest is still to come;
- nothing at or below ``last`` is sent again: a repeat, by whatever path, is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from headrace.hub.cursor import NOWHERE, Cursor
from headrace.hub.routing.subscriptions import Fields
from headrace.message import MAX_SEQUENCE, Batch

NOTHING: Final = MAX_SEQUENCE
"""The sequence number of a mark that withdraws what a matcher's marks said by this way: a number that no log reaches. A
mark of 0 says that all there will ever be is still to come."""


class FoundRows(NamedTuple):
    """Batches of the log, and which of each one's messages are for a client, by place."""

    first: int
    last: int
    batches: list[tuple[Batch, list[int]]]


class Outlet(Protocol):
    """Where a session's bytes go."""

    @property
    def room(self) -> int:
        """How many bytes may still be sent before the client takes some; 0 or less when it is full."""

    def send(self, data: bytes) -> None:
        """Send pushes."""

    def later(self) -> None:
        """There was no room for all: call :meth:`~headrace.hub.routing.connector.Connector.resume` when there is."""

    def part(self, reason: str, detail: str) -> None:
        """Close the connection; ``reason`` is counted."""


class Source:
    """Where pushes come from: this process's matcher, a connection of a dispatcher, or all connections of the fleet.

    One that never says what it vouches for is of another make, or has only begun.
    """

    __slots__ = ("paths", "seen")

    def __init__(self) -> None:
        self.seen = 0
        """The highest sequence number that has come."""
        self.paths: dict[int, Path] = {}
        """By the node id of the matcher."""

    def vouches_for(self, path: Path | None) -> bool:
        """Whether a session with this path is fed from here.

        Another source may bring the same, but not from the same message on: what the two bring must not be mixed.
        """
        return path is not None and path.source is self


class Path:
    """What one matcher vouches for, by one source: everything behind ``base``; up to ``upto`` all has come."""

    __slots__ = ("base", "node", "source", "upto")

    def __init__(self, source: Source, node: int, base: int) -> None:
        self.source = source
        self.node = node
        self.base = base
        self.upto = base

    @property
    def begins(self) -> int:
        """The first sequence number from which a session that has all before it may be live."""
        return max(self.base, self.source.seen) + 1


class Paths:
    """The paths of the matchers elsewhere, by node id. A matcher may have several: the newest is used."""

    def __init__(self) -> None:
        self._paths: dict[int, list[Path]] = {}

    def get(self, node: int | None) -> Path | None:
        """The path of a matcher, if it has one."""
        paths = None if node is None else self._paths.get(node)
        return paths[-1] if paths else None

    def mark(self, source: Source, node: int, seq: int) -> bool:
        """A matcher says by a source how far it is; ``True`` if its clients have another path now.

        A mark of :data:`NOTHING` withdraws: what the matcher pushes goes another way from here on.
        """
        path = source.paths.get(node)
        if seq == NOTHING:
            return path is not None and self._give_up(path)
        source.seen = max(source.seen, seq)
        if path is not None:
            path.upto = max(path.upto, seq)
            return False
        path = source.paths[node] = Path(source, node, seq)
        self._paths.setdefault(node, []).append(path)
        return True

    def lose(self, source: Source) -> bool:
        """A source is gone; ``True`` if clients have another path now, or none."""
        used = [self._give_up(path) for path in tuple(source.paths.values())]
        return any(used)

    def _give_up(self, path: Path) -> bool:
        del path.source.paths[path.node]
        paths = self._paths.get(path.node, [])
        if path not in paths:
            return False  # It belongs to who was here before.
        used = paths[-1] is path
        paths.remove(path)
        if not paths:
            del self._paths[path.node]
        return used


class Session:
    """One client that is connected here; made by :meth:`~headrace.hub.routing.connector.Connector.join`."""

    __slots__ = (
        "after", "client", "floor", "guest", "last", "outlet", "path", "pending", "place", "placed", "says", "wants"
    )  # fmt: skip

    def __init__(self, client: bytes, outlet: Outlet, *, after: int | None, guest: bool) -> None:
        self.client = client
        self.outlet = outlet
        self.guest = guest
        """Whether the id is the connection's own, of no use to anybody once it is closed."""
        self.after = after
        """What its first subscription resumes behind, until there is one."""
        self.placed = True
        """Whether the state here is no older than the session: only then does it tell what the client wants."""
        self.says: Fields | None = None
        """The fields that the client says it wants, where they are nothing new to a state that may be too old."""
        self.wants = False
        """Whether it has a subscription."""
        self.place: Cursor[FoundRows] = Cursor()
        """Its cursor over the log, which wants nothing while the session is live or wants nothing."""
        self.last = 0
        """All up to here is dealt with."""
        self.floor = 0
        """A path may be relied on from behind here only: its matcher has had the client's subscription since."""
        self.path: Path | None = None
        self.pending = 0
        """How many changes of its subscription are under way to the log."""

    @property
    def cursor(self) -> int | None:
        """The next message to read from the log for it; ``None`` while it is live or wants nothing."""
        return self.place.next if self.place.follows else None

    @cursor.setter
    def cursor(self, seq: int | None) -> None:
        self.place.next = NOWHERE if seq is None else seq

    @property
    def live(self) -> bool:
        """Whether it is fed by its path."""
        return self.wants and self.cursor is None

    def begin(self, cursor: int) -> None:
        """Want everything from ``cursor`` on."""
        self.wants = True
        self.cursor = cursor
        self.last = cursor - 1

    def end(self) -> None:
        """Want nothing more."""
        self.wants = False
        self.cursor = None

    def fall_back(self, known: int) -> bool:
        """Be fed from the log from now on; ``True`` unless it already is.

        Its path was its own up to ``known`` at least.
        """
        if not self.live:
            return False
        dealt = self.last if self.path is None else max(self.last, min(self.path.upto, known))
        self.cursor = dealt + 1
        return True

    def catch_on(self) -> bool:
        """Be live if the cursor has come so far that the path has all the rest."""
        path = self.path
        if path is None or self.cursor is None or self.cursor < max(path.begins, self.floor + 1):
            return False
        self.last = self.cursor - 1
        self.cursor = None
        return True

    def push(self, seqs: Sequence[int], frames: Sequence[bytes]) -> int:
        """Send live pushes, in order, as far as there is room; from the first without room on, the log has them."""
        room = self.outlet.room
        size = sum(map(len, frames))
        if size <= room:
            self.outlet.send(frames[0] if len(frames) == 1 else b"".join(frames))
            self.last = seqs[-1]
            return len(frames)
        sent = 0
        while sent < len(frames) and room > 0:
            room -= len(frames[sent])
            sent += 1
        if sent:
            self.outlet.send(b"".join(frames[:sent]))
            self.last = seqs[sent - 1]
        if sent < len(frames):
            self.cursor = seqs[sent]
        return sent
