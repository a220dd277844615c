"""Commits of staged rows: all rows of a query's batch, and its mark, are appended at once or not at all.

A batch that is not newer than the query's newest is never appended again. If it is one of the last
:data:`~headrace.hub.publishing.query_marks.MARKS` and covers the same rows (:mod:`~headrace.hub.publishing.cover`), it
is a repeat, and answered with the range of the first. If not, it is refused with an error: either an older checkpoint
of the query was restored, or somebody else commits under its name, and a positive answer would lose the rows. The retry
of a commit is recognised by the names of its stages, even when the stages are gone. Where clients prove who they are, a
query belongs to its client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from headrace.errors import HeadraceError, RefusedError, StorageError, UnavailableError
from headrace.hub.publishing.cover import Cover
from headrace.hub.publishing.query_marks import MAX_WRITES, Marked, Queries, mark
from headrace.hub.publishing.staging import StagedPiece, Staging, remove_all
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Commit, Published, WhenPublished
from headrace.message import Batch

_TWO: Final = "An older checkpoint was restored, or another query has the same name"


class Load(NamedTuple):
    """Work for the caller: read these stages, then append them."""

    pieces: list[StagedPiece]
    known: Marked | None = None
    """The batch if it is in the log: then only :meth:`StagedCommits.compare` the rows with it."""


Begun: TypeAlias = Published | Load | None
"""The place of a batch that is committed already, stages to load, or ``None`` while another commit is running."""


class StagedCommits:
    """Commits of stages, one after the other for each query."""

    def __init__(self, hub: Hub, queries: Queries, staging: Staging) -> None:
        self._hub = hub
        self._queries = queries
        self._staging = staging
        self._under_way: dict[str, list[Callable[[], None]]] = {}
        self._relayed: dict[str, list[Callable[[], None]]] = {}
        """Commits that another hub was asked for; if this hub becomes the primary, it takes them itself."""
        self._answered: dict[tuple[str, int, int], None] = {}
        """Query, batch and token of commits that were found to be repeats; their stages are gone."""
        self.discard: Callable[[Sequence[StagedPiece]], object] = remove_all
        """Removes pieces; set by the owner, who has threads for that."""

    def begin(
        self, query: str, batch: int, names: Sequence[str], again: Callable[[], None], terms: Commit
    ) -> Begun:
        """Begin a commit. If another commit of the query is running, ``again`` is called when it ends.

        After :class:`Load`, the caller loads the stages and calls :meth:`append` or :meth:`give_up`.
        """
        known = self._known(query, batch, terms.client)
        if known is not None:
            if known.is_of(terms.token, some=bool(names)) or (query, batch, terms.token) in self._answered:
                return self._place(known)
            return Load(self._staging.pick(query, batch, names), known)
        for waiting in (self._under_way, self._relayed):
            if query in waiting:
                waiting[query].append(again)
                return None
        pieces = self._staging.pick(query, batch, names)
        self._under_way[query] = []
        return Load(pieces)

    def compare(self, query: str, known: Marked, cover: Cover) -> Published:
        """Return the place of a batch that is in the log, if it has the same rows."""
        if (known.rows, known.digest) != cover:
            raise RefusedError(
                "conflict",
                f"batch {known.batch} of query {query!r} is in the log with {known.rows} rows, but these {cover.rows} "
                f"are not the same: nothing was appended. {_TWO}",
            )
        return self._place(known)

    def answered(self, query: str, batch: int, token: int, names: Sequence[str]) -> None:
        """Remember that a commit with this token has the rows that are in the log, in case it is retried."""
        self._answered[query, batch, token] = None
        if len(self._answered) > MAX_WRITES:
            del self._answered[next(iter(self._answered))]
        self._clear(query, batch, names)

    def take(
        self, query: str, batch: int, rows: Sequence[Batch], reply: WhenPublished, terms: Commit
    ) -> None:
        """Commit rows that another node has staged, once."""
        if self._hub.sequencer is not None:
            # This commit waited for another one, and meanwhile this node has stopped being the primary.
            reply(UnavailableError("another node is the primary now"))
            return
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
        """Return the mark of a batch that is not new; raise an error if it is forgotten or another client's."""
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
            f"query {query!r} has committed batch {kept.newest.batch}, and batch {batch} is too old to be remembered, "
            f"so it is not known whether its rows are in the log: nothing was appended. {_TWO}",
        )

    def _place(self, known: Marked) -> Published:
        # A follower of this hub's log has the batch once it has everything that is committed here.
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
        if self._hub.sequencer is not None:
            self._relayed[query] = self._under_way.pop(query, [])
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
                self._clear(query, batch, names)
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
            self.answered(query, batch, token, names)
        for again in self._relayed.pop(query, ()):
            again()

    def _clear(self, query: str, batch: int, names: Sequence[str]) -> None:
        """Remove the stages that a batch no longer needs, since it is in the log."""
        self.discard([*self._staging.remove(names), *self._staging.outdated(query, batch)])

    def give_up(self, query: str) -> None:
        """Let the next commit of a query begin."""
        for again in self._under_way.pop(query, ()):
            again()
