"""What a node asks of the primary, and how the primary answers: Publish and Ack, with their bulk.

At a node that is not primary, what doors take in waits in :class:`~headrace.hub.publishing.publish_relay.Passing`,
which makes each try again harmless. Here its requests go to the primary as Publish parcels on the connection that
this node has dialled, and the answers come back on the same one. When the primary is another one, or the connection
is lost, whatever is not answered is asked anew; when this node itself is the primary, it answers itself.

What they say, as bytes, is in :mod:`~headrace.net.cluster.request_bytes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import (
    HeadraceError,
    LimitError,
    MalformedError,
    RefusedError,
    UnavailableError,
)
from headrace.hub.publishing.idempotent import Publishing, mark, published
from headrace.hub.publishing.publish_relay import Passing, Request
from headrace.hub.publishing.staging import Commits
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Published, Told, ToldNewest
from headrace.message import Batch
from headrace.net.cluster.parcel_door import ParcelStream
from headrace.net.cluster.request_bytes import (
    NOT_PRIMARY,
    Answer,
    Asked,
    asked_for,
    batch_of,
    body_for,
    parse_answer,
    refusal,
    serialize_asked,
)
from headrace.wire.link.message import PASSED, PUBLISHED, body_of, rows_of
from headrace.wire.parcel.body import Ack, Publish

MAX_WAITING: Final = 64 << 20
"""Bytes that may be under way to the primary before publishers are made to wait."""

MAX_STAGED: Final = 64 << 20
"""Bytes of stages that one node may have at the primary, waiting for their commit."""

MISSING: Final = "missing"
"""The code of a refusal: rows that were brought to another primary, or by another connection, must come again."""

_MAX_TEXT: Final = 0xFFFF
"""Bytes of a topic or a publisher: what the log keeps of one that a whole batch shares."""

_STAGE_BYTES: Final = 4 << 20
_RETRY_SECONDS: Final = 0.05


class LostPrimaryError(Exception):
    """What was asked is not answered, or has to be brought from the beginning: ask the primary that there is then."""


class Primary:
    """The primary's side: every request comes to one judgement, whichever node it came from."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._publishing: Publishing
        self._commits: Commits
        self._staged: dict[object, Staged] = {}
        """Of each node, the one commit whose rows it is bringing."""

    def judge_by(self, publishing: Publishing, commits: Commits) -> None:
        """Take what knows of repeats; the link's operations have the same."""
        self._publishing, self._commits = publishing, commits

    def answer(self, source: object, asked: Asked, body: memoryview, tell: Callable[[Answer], None]) -> None:
        """Do what is asked; ``tell`` may be called at once."""
        if self._hub.sequencer is not None:
            tell(NOT_PRIMARY)
            return
        tell = partial(self._tell, tell)
        try:
            match asked.kind:
                case "pass":
                    self._pass(asked, body, tell)
                case "publish":
                    self._publishing.publish(
                        batch_of(asked, body), partial(_tell, tell), follows=asked.follows
                    )
                case "newest":
                    self._publishing.newest(asked.publisher, partial(_tell_newest, tell))
                case "stage":
                    self._stage(source, asked, body)
                    tell(Answer())
                case "commit":
                    rows = self._staged_for(source, asked)
                    self._commits.take(asked.publisher, asked.number, rows, partial(_tell_span, tell))
        except HeadraceError as error:
            tell(refusal(error))

    def _tell(self, tell: Callable[[Answer], None], answer: Answer) -> None:
        # What was not taken because another node numbers now is for that node to judge.
        moved = answer.error == "unavailable" and self._hub.sequencer is not None
        tell(NOT_PRIMARY if moved else answer)

    def forget(self, source: object) -> None:
        """A node's connection is over: what it staged is, too."""
        self._staged.pop(source, None)

    def _pass(self, asked: Asked, body: memoryview, tell: Callable[[Answer], None]) -> None:
        rows = rows_of(body, PASSED)
        if not rows.num_rows:
            raise MalformedError("parcel", "rows", 0, "there must be some")
        for name in ("topic", "publisher"):
            longest = pc.max(pc.binary_length(rows.column(name))).as_py()
            if longest > _MAX_TEXT:
                raise LimitError("parcel", name, longest, _MAX_TEXT)
        batch = Batch.from_arrow(rows)

        def told(result: Published | HeadraceError) -> None:
            if isinstance(result, Published) and result.last is not None:
                # The mark has the place behind the rows.
                result = Published(result.last - len(batch), result.last - 1, result.repeated)
            _tell(tell, result)

        self._publishing.publish(
            mark(asked.publisher, asked.number), told, follows=asked.number > 0, behind=batch
        )

    def _stage(self, source: object, asked: Asked, body: memoryview) -> None:
        rows = rows_of(body, PUBLISHED)
        if not asked.rows:
            # The first of a commit, perhaps of one that is brought again: what came before is not part of it.
            self._staged[source] = Staged(asked.publisher, asked.number)
        staged = self._staged.get(source)
        if staged is None or not staged.goes_on_with(asked):
            raise RefusedError(MISSING, "the rows before these are not staged: stage them all again")
        staged.size += rows.nbytes
        if staged.size > MAX_STAGED:
            del self._staged[source]
            size = staged.size
            raise RefusedError("limit", f"a commit of {size} bytes: a cluster takes {MAX_STAGED} at most")
        staged.rows += rows.num_rows
        staged.batches.append(published(rows, origin=asked.origin, publisher=asked.publisher))

    def _staged_for(self, source: object, asked: Asked) -> list[Batch]:
        """The rows of a commit, all of them and no others."""
        if not asked.rows:
            return []
        staged = self._staged.pop(source, None)
        if staged is None or not staged.goes_on_with(asked):
            raise RefusedError(
                MISSING, f"not all {asked.rows} rows of the commit are staged: stage them again"
            )
        return staged.batches


@dataclass(slots=True)
class Staged:
    """What a node has brought of a commit."""

    query: str
    batch: int
    rows: int = 0
    size: int = 0
    batches: list[Batch] = field(default_factory=list)

    def goes_on_with(self, asked: Asked) -> bool:
        """Whether what is asked is of this commit, and right behind what is here."""
        return (asked.publisher, asked.number, asked.rows) == (self.query, self.batch, self.rows)


class ToPrimary:
    """The other side: this node's requests on their way to whoever is primary."""

    def __init__(self, hub: Hub, primary: Primary, *, patience: float, name: Callable[[], str]) -> None:
        self._hub = hub
        self._primary = primary
        self._patience = patience
        self.passing = Passing(
            hub,
            name=name,
            patience=patience,
            most=MAX_WAITING,
            now=asyncio.get_running_loop().time(),
            unreachable="no primary of the cluster has answered",
        )
        self.passing.wake = self._send_due
        self.passing.committing = self._commit
        self.passing.asking = self._ask_newest
        self._stream: ParcelStream | None = None
        self._here = False
        self._view = 0
        self._number = 0
        self._waiting: dict[int, Callable[[Answer | None], None]] = {}
        """Who waits for the answer to which request on this stream; told None when it will not come."""
        self._bringing = asyncio.Lock()
        """Held while a commit's rows are brought: the primary takes those of one commit at a time from a node."""
        self._aimed = asyncio.Event()
        self._again: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = 0.0
        """When a primary last answered as such."""

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self.passing.size or self._tasks)

    def aim(self, stream: ParcelStream | None, view: int) -> None:
        """Ask the primary of ``view`` from now on, which is behind this stream; ``None``: there is none to ask."""
        if stream is self._stream and view == self._view and not self._here:
            return
        self._drop()
        self._stream, self._view = stream, view
        if stream is not None:
            self._aimed.set()
            self.passing.connected()

    def aim_here(self) -> None:
        """This node is the primary now: it answers what it has asked."""
        self._drop()
        self._here = True
        self._aimed.set()
        self.passing.connected(here=True)

    def acknowledged(self, stream: ParcelStream, ack: Ack, bulk: bytes) -> None:
        """The primary has answered."""
        if stream is not self._stream:
            return
        # One that cannot be read ends the connection, and is no answer: who waits for it asks again.
        answer = parse_answer(bulk)
        waiting = self._waiting.pop(ack.request, None)
        if waiting is not None:
            waiting(answer)

    def close(self) -> None:
        """Ask nothing more."""
        self._drop()
        for task in tuple(self._tasks):
            task.cancel()

    # Within

    def _drop(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._stream, self._here = None, False
        self._aimed.clear()
        self.passing.lost(asyncio.get_running_loop().time())
        waiting, self._waiting = self._waiting, {}
        for told in waiting.values():
            told(None)

    def _send_due(self) -> None:
        # All are taken before one is asked: here it may be answered at once, which asks for what is due then.
        for request in tuple(self.passing.due(here=self._here)):
            self._ask(asked_for(request), body_for(request), partial(self._answered, request))

    def _ask(self, asked: Asked, body: bytes | memoryview, told: Callable[[Answer | None], None]) -> None:
        if self._here:
            self._primary.answer(self, asked, memoryview(body), told)
            return
        if self._stream is None:
            told(None)
            return
        self._number += 1
        self._waiting[self._number] = told
        bulk = serialize_asked(asked, body)
        if not self._stream.post(Publish(self._view, self._number), bulk, certain=True):
            self._lost()

    def _answered(self, request: Request, answer: Answer | None) -> None:
        if answer is None:
            return  # It is asked again.
        if answer.error == "primary":
            self._lost()
            return
        self.passing.answered(request, answer.published)

    def _lost(self) -> None:
        """Whoever was asked is not the primary, or not yet: ask anew in a moment, in the same order."""
        stream, view = self._stream, self._view
        if stream is None or self._again is not None:
            return
        self._drop()
        self._stream, self._view = None, 0

        def again() -> None:
            self._again = None
            if self._stream is None and not self._here and stream.admitted:
                self.aim(stream, view)

        self._again = asyncio.get_running_loop().call_later(_RETRY_SECONDS, again)

    def _commit(self, query: str, batch: int, rows: Sequence[Batch], told: Told) -> None:
        origin = rows[0].origin if rows else "spark"

        async def work() -> Published | HeadraceError:
            async with self._bringing:
                count = 0
                for table in _pieces(rows):
                    stage = Asked("stage", publisher=query, number=batch, origin=origin, rows=count)
                    staged = (await self._call(stage, body_of(table))).published
                    if isinstance(staged, HeadraceError):
                        return staged
                    count += table.num_rows
                commit = self._begin(Asked("commit", publisher=query, number=batch, rows=count), b"")
            # The primary has taken the rows when it gets this: the next commit need not wait for its answer.
            return (await self._finish(commit)).published

        self._attempt(work, told)

    def _ask_newest(self, publisher: str, told: ToldNewest) -> None:
        async def work() -> int | HeadraceError | None:
            answer = await self._call(Asked("newest", publisher=publisher), b"")
            return answer.refused or answer.newest

        self._attempt(work, told)

    async def _call(self, asked: Asked, body: bytes | memoryview) -> Answer:
        return await self._finish(self._begin(asked, body))

    def _begin(self, asked: Asked, body: bytes | memoryview) -> asyncio.Future[Answer | None]:
        future: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()

        def told(answer: Answer | None) -> None:
            if not future.done():
                future.set_result(answer)

        self._ask(asked, body, told)
        return future

    async def _finish(self, begun: asyncio.Future[Answer | None]) -> Answer:
        answer = await begun
        if answer is None or answer.error in ("primary", MISSING):
            if answer is not None and answer.error == "primary":
                self._lost()
            raise LostPrimaryError
        self._heard = asyncio.get_running_loop().time()
        return answer

    def _attempt(self, work: Any, told: Any) -> None:
        """Try something that may be tried again, with one primary after the other; tell what came out."""

        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def trying() -> Any:
            # One that says again and again that it is not the primary is not waited for anew each time.
            while loop.time() < (deadline := max(begun, self._heard) + self._patience):
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._aimed.wait()
                except TimeoutError:
                    break
                try:
                    return await work()
                except LostPrimaryError:
                    await asyncio.sleep(_RETRY_SECONDS)
            return UnavailableError(f"the cluster has had no primary for {self._patience:g} s: try again")

        async def tell() -> None:
            told(await trying())

        task = asyncio.ensure_future(tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _pieces(rows: Sequence[Batch]) -> Iterator[pa.RecordBatch]:
    """Rows as bodies of a size that nobody else has to wait long behind."""
    for batch in rows:
        table = batch.to_arrow().select(PUBLISHED.names)
        step = max(1, table.num_rows * _STAGE_BYTES // max(table.nbytes, 1))
        for at in range(0, table.num_rows, step):
            yield table.slice(at, step)


def _tell(tell: Callable[[Answer], None], result: Published | HeadraceError) -> None:
    if isinstance(result, HeadraceError):
        tell(refusal(result))
    else:
        tell(Answer(result.first, result.last, int(result.repeated)))


def _tell_newest(tell: Callable[[Answer], None], newest: int | HeadraceError | None) -> None:
    tell(refusal(newest) if isinstance(newest, HeadraceError) else Answer(newest=newest))


def _tell_span(tell: Callable[[Answer], None], result: tuple[int | None, int | None] | HeadraceError) -> None:
    tell(refusal(result) if isinstance(result, HeadraceError) else Answer(*result))
