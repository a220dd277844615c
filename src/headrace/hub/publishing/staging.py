"""Staged commits: rows that a query sends in parts and that are appended all at once, or not at all.

A Spark query's micro-batch is written by many tasks, any of which may fail and run again. Each task **stages** its
rows; when all are done, the driver **commits** the stages of the tasks that succeeded. A commit is one append: every
row, and after them an entry ``query/NAME`` with the query's batch and the number of its rows, its **mark**. It stands
after the last of them. Neither is in the log without the other.

A batch that is not newer than the query's newest is never appended again. If it is one of the last :data:`MARKS` and
covers the same rows (:mod:`~headrace.hub.publishing.cover`), it is a repeat, answered with the range of the first. If
not, it is refused aloud: the query's checkpoint was put back, or somebody else commits under its name, and to answer
that it is done would lose its rows. A commit of the very same stages is known by their names, though they are gone.
Where clients prove who they are, a query is its client's.

Stages are not in the log and do not outlive the hub: a commit of stages that are gone is refused, and Spark runs the
batch again. They are kept in memory up to :data:`MAX_MEMORY` and in files beyond that; beyond :data:`MAX_BYTES` they
are refused, and after :data:`SECONDS` without a commit they are dropped.

Only :meth:`StagedRows.spill` and :meth:`StagedRows.load` touch the disk; call them from a thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError, LimitError, RefusedError, StorageError
from headrace.hub.publishing.cover import Cover
from headrace.hub.publishing.idempotent import published
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Commit, Published, WhenPublished
from headrace.hub.state import entry
from headrace.log.checksum import crc32c
from headrace.log.files import translating
from headrace.log.snapshot_pieces import map_rows
from headrace.message import Batch, Run
from headrace.wire.link.message import PUBLISHED
from headrace.wire.link.requests import MAX_NAME, WRITE, Number

SECONDS: Final = 600.0
MAX_MEMORY: Final = 256 << 20
MAX_BYTES: Final = 4 << 30
MAX_COMMIT: Final = 512 << 20
"""Bytes of one commit: it is one append, one write, which must not hold up the hub for long."""
SUMMED_UP: Final = 1 << 20
"""Payloads of at least this size get their checksum when they are staged."""
MAX_STAGES: Final = 65_536
MAX_QUERIES: Final = 65_536
"""Marks of streams that are kept: a query may be restarted, however late."""
MAX_WRITES: Final = 1024
"""Marks of single writes that are kept: their commits are retried soon or never, and there may be many."""

MARKS: Final = 8
"""Batches of one query that are remembered."""

_NOWHERE: Final = Published(None, None)


_TWO: Final = "Its checkpoint was put back, or another query has its name"


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
        """Whether a commit of ``some`` rows, or of none, is the same request as the one that is in the log."""
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


class Queries(dict[str, Marks]):
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

    def dump(self) -> bytes:
        """Return the marks as a snapshot's section."""
        return b"".join(self.freeze())

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
    """Return the token of a commit of these stages; their names are nobody else's."""
    return int.from_bytes(sha256(",".join(names).encode()).digest()[:7]) if names else 0


class StagedRows:
    """Rows that wait for their commit."""

    def __init__(
        self, query: str, batch: int, part: int, rows: Batch, deadline: float, held: int = 0
    ) -> None:
        self.query = query
        self.batch = batch
        self.part = part
        self.deadline = deadline
        size = rows.run.data.nbytes + rows.run.offsets.nbytes
        if rows.columns is not None:
            size += rows.columns.nbytes
        # Rows keep the memory of their request alive, ``held`` bytes; unpacked, they take more.
        self.size = max(size, held)
        self._rows: Batch | None = rows
        self._path: Path | None = None

    def sum_up(self) -> None:
        """Compute the log's checksum now rather than in the commit, which holds up the hub."""
        rows = self._rows
        if rows is not None and rows.run.size >= SUMMED_UP:
            run = rows.run
            summed = Run(run.data, run.offsets, crc32c(run.content))
            self._rows = replace(rows, run=summed)

    def spill(self, path: Path) -> None:
        """Write the rows to a file and forget them here."""
        with translating(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.write_bytes(self.load().to_arrow().select(PUBLISHED.names).serialize())
            except BaseException:
                # A full disk may leave part of the file.
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                raise
        self._path, self._rows = path, None

    def load(self) -> Batch:
        """Return the rows, from memory or the file."""
        rows = self._rows
        if rows is not None:
            return rows
        if self._path is None:
            raise RefusedError("missing", "the stage was removed")
        with translating(self._path):
            message = pa.ipc.read_message(pa.py_buffer(self._path.read_bytes()))
        return published(pa.ipc.read_record_batch(message, PUBLISHED))

    def remove(self) -> None:
        """Let go of the rows and their file."""
        path, self._path, self._rows = self._path, None, None
        if path is not None:
            with contextlib.suppress(OSError):  # leftovers are removed when the hub next starts
                path.unlink(missing_ok=True)


class Load(NamedTuple):
    """Work for the caller: read these stages, then append them."""

    stages: list[StagedRows]
    known: Marked | None = None
    """The batch, if it is in the log: only :meth:`StagedCommits.compare` the rows with it."""


Begun: TypeAlias = Published | Load | None
"""The place of a batch that is committed already, stages to load, or ``None`` if another commit is under way."""


class Staging:
    """All stages of a hub, within their bounds."""

    def __init__(self, directory: Path, *, max_memory: int = MAX_MEMORY, max_bytes: int = MAX_BYTES) -> None:
        self.directory = directory
        self._max_memory = max_memory
        self._max_bytes = max_bytes
        self._stages: dict[str, StagedRows] = {}
        self._bytes = 0
        self._memory = 0
        self._spilled: set[str] = set()

    def __len__(self) -> int:
        return len(self._stages)

    def add(self, name: str, stage: StagedRows) -> Path | None:
        """Take a stage; return the file to spill it to, if it needs one."""
        if len(self._stages) >= MAX_STAGES or self._bytes + stage.size > self._max_bytes:
            reason = f"{len(self._stages)} stages with {self._bytes} bytes wait for their commits"
            raise RefusedError("limit", reason)
        self._stages[name] = stage
        self._bytes += stage.size
        if self._memory + stage.size <= self._max_memory:
            self._memory += stage.size
            return None
        self._spilled.add(name)
        return self.directory / f"{name}.rows"

    def pick(self, query: str, batch: int, names: Sequence[str]) -> list[StagedRows]:
        """Return the stages of a commit, in its order."""
        picked = []
        for name in names:
            stage = self._stages.get(name)
            if stage is None:
                raise RefusedError(
                    "missing", f"there is no stage {name}: it is committed, aborted or too old"
                )
            if (stage.query, stage.batch) != (query, batch):
                mine = f"batch {stage.batch} of query {stage.query!r}"
                raise RefusedError(
                    "conflict", f"stage {name} is of {mine}, not of batch {batch} of {query!r}"
                )
            picked.append(stage)
        if len(set(names)) != len(names):
            raise RefusedError("conflict", "a stage is named twice")
        size = sum(stage.size for stage in picked)
        if size > MAX_COMMIT:
            raise RefusedError("limit", f"a commit of {size} bytes: {MAX_COMMIT} is the most")
        return picked

    def remove(self, names: Sequence[str]) -> list[StagedRows]:
        """Forget stages; the caller removes their files."""
        removed = []
        for name in names:
            stage = self._stages.pop(name, None)
            if stage is None:
                continue
            self._bytes -= stage.size
            if name in self._spilled:
                self._spilled.discard(name)
            else:
                self._memory -= stage.size
            removed.append(stage)
        return removed

    def expire(self, now: float) -> list[StagedRows]:
        """Forget stages that were not committed in time."""
        return self.remove([name for name, stage in self._stages.items() if stage.deadline <= now])

    def sweep(self) -> None:
        """Remove the files of an earlier run."""
        for path in self.directory.glob("*.rows"):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


class StagedCommits:
    """Commits of stages, one after the other for each query."""

    def __init__(self, hub: Hub, queries: Queries, staging: Staging) -> None:
        self._hub = hub
        self._queries = queries
        self._staging = staging
        self._under_way: dict[str, list[Callable[[], None]]] = {}
        self._answered: dict[tuple[str, int, int], None] = {}
        """Commits, by query, batch and token, that were found to be repeats: their stages are gone."""

    def begin(
        self, query: str, batch: int, names: Sequence[str], again: Callable[[], None], terms: Commit
    ) -> Begun:
        """Begin a commit. If another one of the query is under way, ``again`` is called when it ends.

        After :class:`Load`, the caller loads the stages and calls :meth:`append` or :meth:`give_up`.
        """
        known = self._known(query, batch, terms.client)
        if known is not None:
            if known.is_of(terms.token, some=bool(names)) or (query, batch, terms.token) in self._answered:
                return self._place(known)
            return Load(self._staging.pick(query, batch, names), known)
        if query in self._under_way:
            self._under_way[query].append(again)
            return None
        stages = self._staging.pick(query, batch, names)
        self._under_way[query] = []
        return Load(stages)

    def compare(self, query: str, known: Marked, cover: Cover) -> Published:
        """Return the place of a batch that is in the log, if it has the same rows."""
        if (known.rows, known.digest) != cover:
            raise RefusedError(
                "conflict",
                f"batch {known.batch} of query {query!r} is in the log with {known.rows} rows, and these {cover.rows} "
                f"are not the same: nothing was appended. {_TWO}",
            )
        return self._place(known)

    def answered(self, query: str, batch: int, token: int) -> None:
        """Remember that a commit with this token has the rows that are in the log, in case it comes again."""
        self._answered[query, batch, token] = None
        if len(self._answered) > MAX_WRITES:
            del self._answered[next(iter(self._answered))]

    def take(
        self, query: str, batch: int, rows: Sequence[Batch], reply: WhenPublished, terms: Commit
    ) -> None:
        """Commit rows that another node has staged, once."""
        try:
            known = self._known(query, batch, terms.client)
            if known is not None:
                same = known.is_of(terms.token, some=bool(rows))
                cover = Cover(sum(map(len, rows)), terms.digest)
                reply(self._place(known) if same else self.compare(query, known, cover))
                return
        except RefusedError as error:
            reply(error)
            return
        if query in self._under_way:
            self._under_way[query].append(partial(self.take, query, batch, rows, reply, terms))
        else:
            self._under_way[query] = []
            self.append(query, batch, rows, (), reply, terms)

    def _known(self, query: str, batch: int, client: str) -> Marked | None:
        """Return the mark of a batch that is not new; raise if it is not known any more, or not the client's."""
        kept = self._queries.get(query)
        if kept is None:
            return None
        if kept.client and client and kept.client != client:
            raise RefusedError("forbidden", f"query {query!r} belongs to client {kept.client}")
        if batch > kept.newest.batch:
            return None
        for each in reversed(kept.marks):
            if each.batch == batch:
                return each
        raise RefusedError(
            "conflict",
            f"query {query!r} has come to batch {kept.newest.batch}, and batch {batch} is not among the last that are "
            f"known of it: whether its rows are in the log cannot be told, nothing was appended. {_TWO}",
        )

    def _place(self, known: Marked) -> Published:
        # Those who follow this hub's log have the batch, too, once they have all that is committed here.
        return known.place._replace(op=self._hub.log.head_op)

    def append(
        self,
        query: str,
        batch: int,
        rows: Sequence[Batch],
        names: Sequence[str],
        reply: WhenPublished,
        terms: Commit,
    ) -> None:
        """Append a commit's rows and its mark; ``reply`` gets their place, or the error."""
        size, most = sum(each.run.size for each in rows), self._hub.append_bytes
        if most is not None and size > most:
            # In a cluster they go from node to node in one parcel; a retry would not help.
            reply(LimitError("link", "payload of a commit", size, most))
            self.give_up(query)
            return
        if self._hub.sequencer is not None:
            committed = partial(self._committed, query, batch, terms.token, names, reply)
            self._hub.sequencer.commit(query, batch, rows, committed, terms)
            return
        # Submitted together, so appended in one write, whole or not at all.
        for each in rows:
            self._hub.submit(each, tied=True)

        def settled(result: Batch | StorageError) -> None:
            if isinstance(result, StorageError):
                reply(result)
            else:
                reply(self._queries[query].newest.place._replace(op=result.last_op))
                remove_all(self._staging.remove(names))
            self.give_up(query)

        self._hub.submit(mark(query, batch, sum(len(each) for each in rows), terms), settled)

    def _committed(
        self,
        query: str,
        batch: int,
        token: int,
        names: Sequence[str],
        reply: WhenPublished,
        result: Published | HeadraceError,
    ) -> None:
        """Finish a commit that another hub was asked for."""
        reply(result)
        if isinstance(result, Published):
            self.answered(query, batch, token)
            remove_all(self._staging.remove(names))
        self.give_up(query)

    def give_up(self, query: str) -> None:
        """Let the next commit of a query begin."""
        for again in self._under_way.pop(query, ()):
            again()


def remove_all(stages: Sequence[StagedRows]) -> None:
    """Remove the rows and files of stages."""
    for stage in stages:
        stage.remove()


def loaded(stages: Sequence[StagedRows]) -> list[Batch]:
    """Read the rows of stages, in a thread."""
    try:
        return [stage.load() for stage in stages]
    except pa.ArrowException as error:
        raise StorageError(f"a stage's file cannot be read back: {error}") from error
