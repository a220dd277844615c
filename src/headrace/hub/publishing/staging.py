"""Stages: rows brought to the hub that nobody sees until a commit appends all of them at once.

A Spark query's micro-batch is written by many tasks, any of which may fail and run again. Each **stages** its rows;
when all are done, the driver **commits** the stages of the tasks that succeeded. A commit is one append: every row,
and behind them an entry ``query/NAME`` that says which batch of the query this was and how many rows it had. So
the rows and the knowledge that they are there cannot come apart, and a commit that is tried again, however late, is
answered with the range that the first had.

Stages are not in the log and do not outlive the hub: a commit of stages that are gone is refused, and Spark runs the
batch again. Up to :data:`MAX_MEMORY` they are kept in memory, past that in files; past :data:`MAX_BYTES`, or
after :data:`SECONDS` without a commit, there is no room for them.

Nothing here touches a disk or a clock but :meth:`Stage.spill` and :meth:`Stage.load`, which a thread calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError, LimitError, RefusedError, StorageError
from headrace.hub.publishing.idempotent import published
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Published
from headrace.hub.state import entry
from headrace.log.checksum import crc32c
from headrace.log.files import translating
from headrace.message import Batch, Run
from headrace.wire.link.message import PUBLISHED
from headrace.wire.link.requests import MAX_NUMBER, WRITE

SECONDS: Final = 600.0
MAX_MEMORY: Final = 256 << 20
MAX_BYTES: Final = 4 << 30
MAX_COMMIT: Final = 512 << 20
"""The rows of one commit are one append, which is one write: it must not hold the hub up for long."""
SUMMED_UP: Final = 1 << 20
"""Payloads of so many bytes are worth it to be summed up when they come."""
MAX_STAGES: Final = 65_536
MAX_QUERIES: Final = 65_536
"""Marks of streams kept; each may be tried again when its query is, however late that is."""

MAX_WRITES: Final = 1024
"""Marks of those kept: their commit is tried again soon or never, and there may be one every second."""


class Marked(NamedTuple):
    """A query's newest batch and where its rows are; ``rows`` of them end at ``last``."""

    batch: int
    rows: int
    last: int

    @property
    def span(self) -> tuple[int | None, int | None]:
        """The first and the last row, if there are any."""
        return (self.last - self.rows + 1, self.last) if self.rows else (None, None)


class _Entry(msgspec.Struct, frozen=True):
    batch: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
    rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]


class Queries(dict[str, Marked]):
    """Every query's newest batch, as part of the hub's state."""

    name = "query"
    follows_messages = False

    def __init__(self) -> None:
        super().__init__()
        self._writes: dict[str, None] = {}
        """Which of them are no stream's, the oldest first."""

    def apply(self, name: str, payload: bytes, seq: int) -> None:
        """Follow a ``query`` entry: it stands right behind its rows."""
        mark = msgspec.json.decode(payload, type=_Entry)
        # The newest last, so that those beyond the limit are the ones not heard of for longest.
        self.pop(name, None)
        self[name] = Marked(mark.batch, mark.rows, seq - 1)
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

    def follow(self, _batch: Batch) -> None:
        """Messages change nothing here."""

    def dump(self) -> bytes:
        """The marks as a snapshot's section."""
        return msgspec.msgpack.encode({name: tuple(mark) for name, mark in self.items()})

    def load(self, section: bytes) -> None:
        """Take the marks over from a snapshot."""
        loaded = msgspec.msgpack.decode(section, type=dict[str, tuple[int, int, int]])
        self.clear()
        self.update({name: Marked(*mark) for name, mark in loaded.items()})
        self._writes = dict.fromkeys(name for name in self if name.startswith(WRITE))
        while len(self._writes) > MAX_WRITES:
            self._forget(next(iter(self._writes)))


def mark(query: str, batch: int, rows: int) -> Batch:
    """The entry that says which batch of a query the rows before it were."""
    return entry(Queries.name, query, msgspec.json.encode(_Entry(batch, rows)))


class Stage:
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
        # Rows lie where they came, and keep all of that: ``held`` bytes. What was packed takes more.
        self.size = max(size, held)
        self._rows: Batch | None = rows
        self._path: Path | None = None

    def sum_up(self) -> None:
        """Make the checksum of payloads that are kept here, which the log wants: everybody waits for a commit."""
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
                # A full disk takes some of it, which nobody would ever read.
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                raise
        self._path, self._rows = path, None

    def load(self) -> Batch:
        """The rows, wherever they are."""
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
            with contextlib.suppress(OSError):  # litter is removed when the hub next starts
                path.unlink(missing_ok=True)


class Repeated(NamedTuple):
    """The batch was committed before."""

    first: int | None
    last: int | None


class Load(NamedTuple):
    """Read these stages, then append them."""

    stages: list[Stage]


class Wait(NamedTuple):
    """Another commit of the query is under way."""


Begun: TypeAlias = Repeated | Load | Wait
Told: TypeAlias = Callable[[tuple[int | None, int | None] | HeadraceError], None]


class Staging:
    """All stages of a hub."""

    def __init__(self, directory: Path, *, max_memory: int = MAX_MEMORY, max_bytes: int = MAX_BYTES) -> None:
        self.directory = directory
        self._max_memory = max_memory
        self._max_bytes = max_bytes
        self._stages: dict[str, Stage] = {}
        self._bytes = 0
        self._memory = 0
        self._spilled: set[str] = set()

    def __len__(self) -> int:
        return len(self._stages)

    def add(self, name: str, stage: Stage) -> Path | None:
        """Take a stage; if it has to be in a file, return which. The caller spills it there."""
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

    def pick(self, query: str, batch: int, names: Sequence[str]) -> list[Stage]:
        """The stages of a commit, in its order."""
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

    def remove(self, names: Sequence[str]) -> list[Stage]:
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

    def expire(self, now: float) -> list[Stage]:
        """Forget stages that nobody committed in time."""
        return self.remove([name for name, stage in self._stages.items() if stage.deadline <= now])

    def sweep(self) -> None:
        """Remove the files of an earlier run."""
        for path in self.directory.glob("*.rows"):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


class Commits:
    """Commits, each query's one after the other."""

    def __init__(self, hub: Hub, queries: Queries, staging: Staging) -> None:
        self._hub = hub
        self._queries = queries
        self._staging = staging
        self._under_way: dict[str, list[Callable[[], None]]] = {}

    def begin(self, query: str, batch: int, names: Sequence[str], again: Callable[[], None]) -> Begun:
        """Find out what a commit comes to: it is done already, its stages are to be read, or it must wait.

        In the last case ``again`` is called when it is worth asking again. After :class:`Load`, the caller loads the
        stages and calls :meth:`append`, or :meth:`give_up`.
        """
        newest = self._queries.get(query)
        if newest is not None and batch <= newest.batch:
            # Where an older batch is, is not kept: only its newest may be asked for again.
            return Repeated(*(newest.span if batch == newest.batch else (None, None)))
        if query in self._under_way:
            self._under_way[query].append(again)
            return Wait()
        stages = self._staging.pick(query, batch, names)
        self._under_way[query] = []
        return Load(stages)

    def take(self, query: str, batch: int, rows: Sequence[Batch], told: Told) -> None:
        """Commit rows that another node has staged, once."""
        newest = self._queries.get(query)
        if newest is not None and batch <= newest.batch:
            told(newest.span if batch == newest.batch else (None, None))
        elif query in self._under_way:
            self._under_way[query].append(partial(self.take, query, batch, rows, told))
        else:
            self._under_way[query] = []
            self.append(query, batch, rows, (), told)

    def append(self, query: str, batch: int, rows: Sequence[Batch], names: Sequence[str], told: Told) -> None:
        """Append a commit's rows and its mark; ``told`` the span, or what went wrong."""
        size, most = sum(each.run.size for each in rows), self._hub.append_bytes
        if most is not None and size > most:
            # In a cluster they go from node to node in one parcel. Trying again would not make them fewer.
            told(LimitError("link", "payload of a commit", size, most))
            self.give_up(query)
            return
        if self._hub.sequencer is not None:
            self._hub.sequencer.commit(query, batch, rows, partial(self._committed, query, names, told))
            return
        # All submitted in one go, so in one turn, so in one append that is whole or not there.
        for each in rows:
            self._hub.submit(each, tied=True)

        def settled(result: Batch | StorageError) -> None:
            if isinstance(result, StorageError):
                told(result)
            else:
                told(self._queries[query].span)
                remove_all(self._staging.remove(names))
            self.give_up(query)

        self._hub.submit(mark(query, batch, sum(len(each) for each in rows)), settled)

    def _committed(
        self, query: str, names: Sequence[str], told: Told, result: Published | HeadraceError
    ) -> None:
        """Go on after a commit that another hub was asked for."""
        if isinstance(result, Published):
            told((result.first, result.last))
            remove_all(self._staging.remove(names))
        else:
            told(result)
        self.give_up(query)

    def give_up(self, query: str) -> None:
        """Let the next commit of a query begin."""
        for again in self._under_way.pop(query, ()):
            again()


def remove_all(stages: Sequence[Stage]) -> None:
    """Let go of stages that are forgotten."""
    for stage in stages:
        stage.remove()


def loaded(stages: Sequence[Stage]) -> list[Batch]:
    """The rows of stages, read in a thread."""
    try:
        return [stage.load() for stage in stages]
    except pa.ArrowException as error:
        raise StorageError(f"a stage's file cannot be read back: {error}") from error
