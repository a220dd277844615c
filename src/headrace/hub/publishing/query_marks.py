"""Marks of queries: what the hub remembers of the batches that each query has committed.

A mark is an entry ``query/NAME`` with the query's batch, the number of its rows and their cover
(:mod:`~headrace.hub.publishing.cover`). It stands in the log right after the rows, in the same append, so neither is
there without the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from headrace.hub.sequencer import Commit, Published
from headrace.hub.state import LargePart, entry
from headrace.log.snapshots.pieces import map_rows
from headrace.message import Batch
from headrace.wire.link.requests import MAX_NAME, WRITE, Number

MAX_QUERIES: Final = 65_536
"""Most streaming queries whose marks are kept: a query may be restarted long after its last batch."""
MAX_WRITES: Final = 1024
"""Most single writes whose marks are kept: there may be many, but their commits are retried soon or never."""

MARKS: Final = 8
"""Batches of one query that are remembered."""

_NOWHERE: Final = Published(None, None)


class Marked(NamedTuple):
    """A query's batch, whose ``rows`` rows end at ``last``."""

    batch: int
    rows: int
    last: int
    digest: int = 0
    token: int = 0

    @property
    def place(self) -> Published:
        """The sequence numbers of the rows, if there are any."""
        return Published(self.last - self.rows + 1, self.last) if self.rows else _NOWHERE

    def is_of(self, token: int, *, some: bool) -> bool:
        """Return whether a commit of ``some`` rows, or of none, is the same request as the one in the log."""
        return (token == self.token != 0 and some) or not (some or self.rows)


class Marks(NamedTuple):
    """A query's latest batches, the newest last, and the client whose query it is, if clients are known."""

    client: str
    marks: tuple[Marked, ...]

    @property
    def newest(self) -> Marked:
        """The newest batch."""
        return self.marks[-1]


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    # Bounded, all of them: a snapshot has no place for longer numbers, and whoever passes entries on may write any.
    batch: Number
    rows: Number
    digest: Number = 0
    token: Number = 0
    client: str = ""


class Queries(LargePart, dict[str, Marks]):
    """Every query's latest batches, as part of the hub's state."""

    name = "query"

    def __init__(self) -> None:
        super().__init__()
        self._writes: dict[str, None] = {}
        """Those of single writes, the oldest first."""

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:  # noqa: ARG002
        """Apply a ``query`` entry, which stands after the last of its rows."""
        mark = msgspec.json.decode(payload, type=_Entry)
        if len(name) > MAX_NAME:
            # Doors write no such entry; a relayed one may hold anything.
            raise msgspec.ValidationError(f"a query's name has at most {MAX_NAME} characters")
        # Newest last, so that the one silent for longest is forgotten first.
        before = self.pop(name, None)
        older = () if before is None else tuple(each for each in before.marks if each.batch < mark.batch)
        newest = Marked(mark.batch, mark.rows, seq, mark.digest, mark.token)
        client = mark.client or (before.client if before is not None else "")
        self[name] = Marks(client, (*older, newest)[-MARKS:])
        if name.startswith(WRITE):
            self._writes.pop(name, None)
            self._writes[name] = None
            if len(self._writes) > MAX_WRITES:
                self._forget(next(iter(self._writes)))
        elif len(self) - len(self._writes) > MAX_QUERIES:
            self._forget(next(query for query in self if query not in self._writes))

    def _forget(self, name: str) -> None:
        del self[name]
        self._writes.pop(name, None)

    def freeze(self) -> Iterator[bytes]:
        """Return the pieces of the snapshot's section, which a thread makes."""
        names, marks = list(self), list(self.values())
        return map_rows(names, marks)

    def load(self, section: bytes) -> None:
        """Restore the marks from a snapshot."""
        loaded = msgspec.msgpack.decode(section, type=dict[str, Marks])
        self.clear()
        self.update(loaded)
        self._writes = dict.fromkeys(name for name in self if name.startswith(WRITE))
        while len(self._writes) > MAX_WRITES:
            self._forget(next(iter(self._writes)))


def mark(query: str, batch: int, rows: int, terms: Commit) -> Batch:
    """Make the entry that marks the rows before it as a query's batch."""
    return entry(Queries.name, query, msgspec.json.encode(_Entry(batch, rows, *terms)))


def token_of(names: Sequence[str]) -> int:
    """Return the token of a commit of these stages, whose names are unique."""
    return int.from_bytes(sha256(",".join(names).encode()).digest()[:7]) if names else 0
