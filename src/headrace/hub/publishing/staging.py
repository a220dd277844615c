"""Staged rows: a query sends them in parts, and nobody sees them before its commit.

A Spark query's micro-batch is written by many tasks, any of which may fail and run again. Each task fills a **stage**
of its own, in numbered **pieces**; when all are done, the driver commits the stages of the tasks that succeeded
(:mod:`~headrace.hub.publishing.staged_commits`). A piece that is sent again replaces the piece with its number.

A batch may have any size: pieces are kept in memory up to :data:`MAX_MEMORY`, and in files beyond that. Each client has
a budget for its stages. Stages that nobody will commit any more are dropped by these rules:

- when a query commits a batch, its stages of older batches are dropped;
- if a budget is used up, the stages of its queries that have been silent for :data:`QUIET_SECONDS` are dropped, those
  of the query silent for longest first;
- after :data:`KEPT_SECONDS` of silence a query's stages are dropped in any case.

Stages do not outlive the hub: a commit of stages that are gone is refused, and Spark runs the batch again.

Only :meth:`StagedPiece.spill`, :meth:`StagedPiece.load` and :meth:`StagedPiece.remove` touch the disk; call them from a
thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
from msgspec.structs import replace

from headrace.errors import FullError, RefusedError, StorageError
from headrace.hub.publishing.cover import Cover, cover_of
from headrace.hub.publishing.idempotent import published
from headrace.log.checksum import crc32c
from headrace.log.files import translating
from headrace.message import Batch, Run
from headrace.wire.link.message import PUBLISHED

QUIET_SECONDS: Final = 600.0
KEPT_SECONDS: Final = 86_400.0
MAX_MEMORY: Final = 256 << 20
LEAST_COST: Final = 64 << 10
"""Least bytes that are charged for a piece: even a small one takes some memory."""
SPARE: Final = 64 << 20
"""Bytes of the disk that stages leave to the log."""
SUMMED_UP: Final = 1 << 20
"""Payloads of at least this size get their checksum when they are staged."""


class StageBudget(Protocol):
    """Pays for the stages of one client."""

    def take(self, size: int) -> str | None:
        """Pay for so many bytes, or return why that is not possible."""

    def give_back(self, size: int) -> None:
        """Get back what was paid."""


class StagedPiece:
    """Rows that wait for their commit, in memory or in a file."""

    def __init__(self, rows: Batch, held: int = 0) -> None:
        size = rows.run.data.nbytes + rows.run.offsets.nbytes
        if rows.columns is not None:
            size += rows.columns.nbytes
        # Rows keep their request's memory alive, which is ``held`` bytes; unpacked rows take more.
        self.size = max(size, held, LEAST_COST)
        self.in_memory = True
        """Whether the piece counts as being in memory."""
        self._rows: Batch | None = rows
        self._path: Path | None = None
        self._cover: Cover | None = None
        self._removed = False

    def sum_up(self) -> None:
        """Compute the log's checksum now; in the commit it would hold up the hub."""
        rows = self._rows
        if rows is not None and rows.run.size >= SUMMED_UP:
            run = rows.run
            self._rows = replace(rows, run=Run(run.data, run.offsets, crc32c(run.content)))

    def spill(self, path: Path) -> None:
        """Write the rows to a file and forget them here."""
        self.cover()
        with translating(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            found = os.statvfs(path.parent)
            free = found.f_bavail * found.f_frsize
            if free < self.size + SPARE:
                raise FullError(str(path.parent), f"only {free >> 20} MiB are free: no more rows are staged")
            try:
                path.write_bytes(self.load().to_arrow().select(PUBLISHED.names).serialize())
            except BaseException:
                # A full disk may leave part of the file.
                _unlink(path)
                raise
        self._path, self._rows = path, None
        if self._removed:
            # The stage was removed while this was written.
            self.remove()

    def load(self) -> Batch:
        """Return the rows, from memory or mapped from the file."""
        rows, path = self._rows, self._path
        if rows is not None:
            return rows
        if path is None or self._removed:
            raise RefusedError("missing", "the stage was removed")
        with translating(path), pa.memory_map(str(path)) as file:
            return published(pa.ipc.read_record_batch(pa.ipc.read_message(file.read_buffer()), PUBLISHED))

    def cover(self) -> Cover:
        """Return the cover of the rows."""
        if self._cover is None:
            self._cover = cover_of([self.load()])
        return self._cover

    def remove(self) -> None:
        """Drop the rows and delete their file."""
        self._removed = True
        path, self._path, self._rows = self._path, None, None
        if path is not None:
            _unlink(path)


@dataclass(slots=True)
class Stage:
    """The part of a query's batch that one task has staged."""

    query: str
    batch: int
    budget: StageBudget
    pieces: dict[int, StagedPiece] = field(default_factory=dict)

    def in_order(self) -> list[StagedPiece]:
        """Return the pieces in order; raise an error if one is missing."""
        if missing := [number for number in range(len(self.pieces)) if number not in self.pieces]:
            raise RefusedError("missing", f"piece {missing[0]} of a stage of query {self.query!r} is missing")
        return [self.pieces[number] for number in range(len(self.pieces))]


class Staging:
    """All stages of a hub, within their bounds."""

    def __init__(self, directory: Path, *, max_memory: int = MAX_MEMORY) -> None:
        self.directory = directory
        self._max_memory = max_memory
        self._stages: dict[str, Stage] = {}
        self._heard: dict[str, float] = {}
        """When each query that has stages was last heard of, the one silent for longest first."""
        self._memory = 0
        self._files = 0

    def __len__(self) -> int:
        return len(self._stages)

    def add(
        self, name: str, number: int, stage: Stage, piece: StagedPiece, now: float
    ) -> tuple[Path | None, list[StagedPiece]]:
        """Add a piece; return the file to spill it to, if it needs one, and the pieces to remove.

        If the piece is the first of its stage, ``stage`` becomes the stage.
        """
        kept = self._stages.get(name)
        if kept is not None and (kept.query, kept.batch, kept.budget) != (
            stage.query, stage.batch, stage.budget,
        ):  # fmt: skip
            raise _another(name, kept, stage.query, stage.batch)
        self._hear(stage.query, now)
        removed: list[StagedPiece] = []
        while (lacking := stage.budget.take(piece.size)) is not None:
            quiet = self._quiet(stage.budget, now)
            if not quiet:
                self._forget_silent()
                raise RefusedError("limit", f"{lacking}: commit or abort what is staged, or raise the limit")
            removed += self.remove(quiet)
        kept = self._stages.setdefault(name, stage)
        if (before := kept.pieces.pop(number, None)) is not None:
            removed += self._without([before], kept.budget)
        kept.pieces[number] = piece
        if self._memory + piece.size <= self._max_memory:
            self._memory += piece.size
            return None, removed
        piece.in_memory = False
        self._files += 1
        return self.directory / f"{self._files}.rows", removed

    def pick(self, query: str, batch: int, names: Sequence[str]) -> list[StagedPiece]:
        """Return the pieces of a commit, in its order."""
        picked: list[StagedPiece] = []
        for name in names:
            stage = self._stages.get(name)
            if stage is None:
                raise RefusedError(
                    "missing", f"there is no stage {name}: it was committed, aborted or dropped"
                )
            if (stage.query, stage.batch) != (query, batch):
                raise _another(name, stage, query, batch)
            picked += stage.in_order()
        if len(set(names)) != len(names):
            raise RefusedError("conflict", "a stage is named twice")
        return picked

    def queries(self, names: Sequence[str]) -> set[str]:
        """Return the queries that these stages belong to."""
        return {stage.query for name in names if (stage := self._stages.get(name)) is not None}

    def remove(self, names: Sequence[str]) -> list[StagedPiece]:
        """Forget stages; the caller removes the rows and files of their pieces."""
        removed: list[StagedPiece] = []
        for name in names:
            stage = self._stages.pop(name, None)
            if stage is not None:
                removed += self._without(list(stage.pieces.values()), stage.budget)
        self._forget_silent()
        return removed

    def remove_piece(self, name: str, number: int, piece: StagedPiece) -> None:
        """Forget a piece that could not be kept, unless another one has replaced it."""
        stage = self._stages.get(name)
        if stage is not None and stage.pieces.get(number) is piece:
            del stage.pieces[number]
            self._without([piece], stage.budget)

    def outdated(self, query: str, batch: int) -> list[StagedPiece]:
        """Forget a query's stages of batches before one that is committed."""
        return self.remove(
            [name for name, each in self._stages.items() if each.query == query and each.batch < batch]
        )

    def expire(self, now: float) -> list[StagedPiece]:
        """Forget the stages of queries that have been silent for too long."""
        silent = {query for query, heard in self._heard.items() if now - heard >= KEPT_SECONDS}
        return self.remove([name for name, stage in self._stages.items() if stage.query in silent])

    def sweep(self) -> None:
        """Remove the files of an earlier run."""
        for path in self.directory.glob("*.rows"):
            _unlink(path)

    def _hear(self, query: str, now: float) -> None:
        self._heard.pop(query, None)
        self._heard[query] = now

    def _quiet(self, budget: StageBudget, now: float) -> list[str]:
        """Return the stages to drop for room in a budget: those of its query that was silent for longest."""
        for query, heard in self._heard.items():
            if now - heard < QUIET_SECONDS:
                break
            found = [
                name for name, each in self._stages.items() if (each.query, each.budget) == (query, budget)
            ]
            if found:
                return found
        return []

    def _forget_silent(self) -> None:
        """Forget when queries without stages were last active."""
        if len(self._heard) > 2 * len(self._stages):
            staging = {stage.query for stage in self._stages.values()}
            self._heard = {query: heard for query, heard in self._heard.items() if query in staging}

    def _without(self, pieces: list[StagedPiece], budget: StageBudget) -> list[StagedPiece]:
        for piece in pieces:
            budget.give_back(piece.size)
            if piece.in_memory:
                self._memory -= piece.size
        return pieces


def remove_all(pieces: Sequence[StagedPiece]) -> None:
    """Remove the rows and files of pieces."""
    for piece in pieces:
        piece.remove()


def loaded(pieces: Sequence[StagedPiece]) -> list[Batch]:
    """Read the rows of pieces, in a thread."""
    with _readable():
        return [piece.load() for piece in pieces]


def covered(pieces: Sequence[StagedPiece]) -> Cover:
    """Return the cover of all pieces; call this in a thread."""
    with _readable():
        return Cover.total(piece.cover() for piece in pieces)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise StorageError(f"a stage's file cannot be read back: {error}") from error


def _another(name: str, stage: Stage, query: str, batch: int) -> RefusedError:
    owner = f"batch {stage.batch} of query {stage.query!r}"
    return RefusedError("conflict", f"stage {name} is of {owner}, not of batch {batch} of {query!r}")


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):  # leftovers are removed when the hub next starts
        path.unlink(missing_ok=True)
