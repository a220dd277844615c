"""The publishing rules of one hub, for clients of its own doors and for nodes that ask it as the primary.

A hub has one :class:`PublishIntake`, whichever doors are open. Only this part recognises repeats: of rows with a
publisher's number by :mod:`~headrace.hub.publishing.idempotent`, of staged commits by
:mod:`~headrace.hub.publishing.staged_commits`.

In a cluster, the :mod:`~headrace.hub.publishing.relaying.primary_client` of a node that is not primary sends
:mod:`~headrace.hub.publishing.relaying.primary_requests` to the primary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from headrace.errors import (
    HeadraceError,
    LimitError,
    RefusedError,
)
from headrace.hub.publishing.idempotent import IdempotentPublishing, published
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.query_marks import Queries
from headrace.hub.publishing.relaying.passed import column_texts, unpack_passed
from headrace.hub.publishing.relaying.primary_requests import (
    MISSING,
    NOT_THE_PRIMARY,
    PrimaryAnswer,
    PrimaryRequest,
    WhenAnswered,
    published_batch,
    refusal,
)
from headrace.hub.publishing.same_rows import Elsewhere
from headrace.hub.publishing.staged_commits import StagedCommits
from headrace.hub.publishing.staging import StagedPiece, Staging, loaded
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Commit, Opened, Opening, Published, WhenPublished
from headrace.message import Batch
from headrace.wire.link.message import PUBLISHED, rows_of

MAX_STAGED: Final = 64 << 20
"""Bytes of one node's staged rows that the primary keeps in memory until their commit; further ones go to files."""

_MAX_TEXT: Final = 0xFFFF
"""Most bytes of a topic or publisher in the log."""


class PublishIntake:
    """Tells new rows from repeats, for everyone who publishes at this hub.

    ``stages`` is the directory for staged rows that do not fit in memory; files of an earlier run are removed.
    ``elsewhere`` compares repeats with the log.
    """

    def __init__(
        self,
        hub: Hub,
        publishers: PublisherNumbers,
        queries: Queries,
        stages: Path,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._hub = hub
        self.idempotent = IdempotentPublishing(hub, publishers, elsewhere)
        self.staging = Staging(stages)
        self.staging.sweep()
        self.commits = StagedCommits(hub, queries, self.staging)
        self._elsewhere = elsewhere
        self._brought: dict[object, _NodeStage] = {}
        """For each node, the one commit whose rows it is staging."""
        self._files = 0

    def answer(self, source: object, request: PrimaryRequest, body: memoryview, reply: WhenAnswered) -> None:
        """Answer a node's request; ``reply`` may be called at once."""
        if self._hub.sequencer is not None:
            reply(NOT_THE_PRIMARY)
            return

        def answer(result: PrimaryAnswer) -> None:
            # If another node numbers messages by now, that one must judge it.
            moved = result.error == "unavailable" and self._hub.sequencer is not None
            reply(NOT_THE_PRIMARY if moved else result)

        def tell(result: Published | HeadraceError) -> None:
            answer(refusal(result) if isinstance(result, HeadraceError) else PrimaryAnswer(*result[:4]))

        try:
            match request.kind:
                case "pass":
                    self._pass(request, body, tell)
                case "publish":
                    batch = published_batch(request, body)
                    self.idempotent.publish(batch, tell, follows=request.follows, claim=request.claim)
                case "newest":
                    self.idempotent.newest(request.publisher, partial(_tell_newest, answer))
                case "open":
                    wanted = Opening(request.holder, request.client, request.by)
                    self.idempotent.open(request.publisher, wanted, partial(_tell_opened, answer))
                case "stage":
                    self._stage(source, request, body, answer)
                case "commit":
                    rows = self._rows_of_commit(source, request)
                    terms = Commit(request.digest, request.token, request.client)
                    self.commits.take(request.publisher, request.number, rows, tell, terms)
        except HeadraceError as error:
            answer(refusal(error))

    def forget(self, source: object) -> None:
        """Drop what a node has staged, since its connection is closed."""
        if (staged := self._brought.pop(source, None)) is not None:
            self.commits.discard(staged.pieces)

    def forget_all(self) -> None:
        """Drop what all nodes have staged, since this hub is no longer the primary."""
        for source in tuple(self._brought):
            self.forget(source)

    def _pass(self, request: PrimaryRequest, body: memoryview, tell: WhenPublished) -> None:
        _, batches = unpack_passed(body, request.rows)
        for batch in batches:
            for name in ("topic", "publisher"):
                longest = max(len(text.encode()) for text in column_texts(batch, name))
                if longest > _MAX_TEXT:
                    raise LimitError("parcel", name, longest, _MAX_TEXT)
        self.idempotent.pass_on(request.publisher, request.number, batches, tell, retry=request.retry)

    def _stage(self, source: object, request: PrimaryRequest, body: memoryview, answer: WhenAnswered) -> None:
        rows = rows_of(body, PUBLISHED)
        if not request.rows:
            # The first rows of a commit, perhaps of a retry: drop older ones.
            self.forget(source)
            self._brought[source] = _NodeStage(request.publisher, request.number, request.origin)
        staged = self._brought.get(source)
        if staged is None or not staged.continues(request):
            raise RefusedError(MISSING, "the rows before these are not staged: stage them all again")
        piece = StagedPiece(published(rows))
        staged.rows += rows.num_rows
        staged.pieces.append(piece)
        if staged.in_memory + piece.size <= MAX_STAGED:
            staged.in_memory += piece.size
            answer(PrimaryAnswer())
            return
        self._files += 1
        path = self.staging.directory / f"node-{self._files}.rows"

        def spilled(problem: RefusedError | None) -> None:
            if problem is not None and self._brought.get(source) is staged:
                self.forget(source)
            answer(PrimaryAnswer() if problem is None else refusal(problem))

        work = partial(_spill, piece, path)
        if self._elsewhere is None:
            spilled(work())
        else:
            self._elsewhere(work, spilled)

    def _rows_of_commit(self, source: object, request: PrimaryRequest) -> list[Batch]:
        """Return the staged rows of a commit; raise an error unless they are complete."""
        if not request.rows:
            return []
        staged = self._brought.pop(source, None)
        if staged is None or not staged.continues(request):
            reason = f"not all {request.rows} rows of the commit are staged: stage them again"
            raise RefusedError(MISSING, reason)
        rows = [replace(each, origin=staged.origin, publisher=staged.query) for each in loaded(staged.pieces)]
        # A file that is mapped stays readable without its name.
        self.commits.discard(staged.pieces)
        return rows


@dataclass(slots=True)
class _NodeStage:
    """The rows of one commit that a node has staged so far."""

    query: str
    batch: int
    origin: str
    rows: int = 0
    in_memory: int = 0
    pieces: list[StagedPiece] = field(default_factory=list)

    def continues(self, request: PrimaryRequest) -> bool:
        """Whether a request belongs to this commit and follows the rows staged so far."""
        return (request.publisher, request.number, request.rows) == (self.query, self.batch, self.rows)


def _spill(piece: StagedPiece, path: Path) -> RefusedError | None:
    """Write a piece to its file, in a thread; return the error if that fails."""
    try:
        piece.spill(path)
    except HeadraceError as error:
        return RefusedError("storage", f"the primary cannot keep the rows of a commit: {error}")
    return None


def _tell_newest(answer: WhenAnswered, newest: int | HeadraceError | None) -> None:
    answer(refusal(newest) if isinstance(newest, HeadraceError) else PrimaryAnswer(newest=newest))


def _tell_opened(answer: WhenAnswered, opened: Opened | HeadraceError) -> None:
    if isinstance(opened, HeadraceError):
        answer(refusal(opened))
    else:
        answer(PrimaryAnswer(epoch=opened.epoch, newest=opened.newest))
