"""What a node asks of the primary, and how the primary answers: Publish and Ack, with their bulk.

At a node that is not primary, what doors take in waits in :class:`~headrace.hub.passing.Passing`, which makes each
try again harmless. Here its requests go to the primary as Publish parcels on the connection that this node has
dialled, and the answers come back on the same one. When the primary is another one, or the connection is lost,
whatever is not answered is asked anew; when this node itself is the primary, it answers itself.

What they say, as bytes, is in :mod:`~headrace.net.cluster_asking`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pyarrow.compute as pc

from headrace.errors import (
    HeadraceError,
    LimitError,
    MalformedError,
    RefusedError,
    UnavailableError,
)
from headrace.hub.hub import Hub
from headrace.hub.passing import Passing, Request
from headrace.hub.publishing import Publishing, mark, published
from headrace.hub.sequencer import Published, Told, ToldNewest
from headrace.hub.staging import Commits
from headrace.message import Batch
from headrace.net.cluster_asking import (
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
from headrace.net.parcel import ParcelStream
from headrace.wire.link import PASSED, PUBLISHED, body_of, rows_of
from headrace.wire.parcel_body import Ack, Publish

MAX_WAITING: Final = 64 << 20
"""Bytes that may be under way to the primary before publishers are made to wait."""

MAX_STAGED: Final = 64 << 20
"""Bytes of stages that one node may have at the primary, waiting for their commit."""

_MAX_TEXT: Final = 0xFFFF
"""Bytes of a topic or a publisher: what the log keeps of one that a whole batch shares."""

_STAGE_BYTES: Final = 4 << 20
_RETRY_SECONDS: Final = 0.05


class LostPrimaryError(Exception):
    """What was asked is not answered: ask the next primary."""


class Primary:
    """The primary's side: every request comes to one judgement, whichever node it came from."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._publishing: Publishing
        self._commits: Commits
        self._staged: dict[object, list[Batch]] = {}

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
                    rows_staged = self._staged.pop(source, [])
                    self._commits.take(asked.publisher, asked.number, rows_staged, partial(_tell_span, tell))
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
        staged = self._staged.setdefault(source, [])
        size = sum(each.run.size for each in staged) + rows.nbytes
        if size > MAX_STAGED:
            del self._staged[source]
            raise RefusedError("limit", f"a commit of {size} bytes: a cluster takes {MAX_STAGED} at most")
        staged.append(published(rows, origin=asked.origin, publisher=asked.publisher))


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
        for request in self.passing.surrender():
            self._ask(asked_for(request), body_for(request), partial(self._answered, request))

    def acknowledged(self, stream: ParcelStream, ack: Ack, bulk: bytes) -> None:
        """The primary has answered."""
        if stream is not self._stream:
            return
        waiting = self._waiting.pop(ack.request, None)
        answer = parse_answer(bulk)
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
        if self._stream is None:
            if self._here:
                for request in self.passing.surrender():
                    self._ask(asked_for(request), body_for(request), partial(self._answered, request))
            return
        for request in self.passing.due():
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
        async def work() -> Published | HeadraceError:
            origin = rows[0].origin if rows else "spark"
            for each in rows:
                table = each.to_arrow().select(PUBLISHED.names)
                at, step = 0, max(1, table.num_rows * _STAGE_BYTES // max(table.nbytes, 1))
                while at < table.num_rows:
                    body = body_of(table.slice(at, step))
                    asked = Asked("stage", publisher=query, number=batch, origin=origin)
                    staged = (await self._call(asked, body)).published
                    if isinstance(staged, HeadraceError):
                        return staged
                    at += step
            return (await self._call(Asked("commit", publisher=query, number=batch), b"")).published

        self._attempt(work, told)

    def _ask_newest(self, publisher: str, told: ToldNewest) -> None:
        async def work() -> int | HeadraceError | None:
            answer = await self._call(Asked("newest", publisher=publisher), b"")
            return answer.refused or answer.newest

        self._attempt(work, told)

    async def _call(self, asked: Asked, body: bytes | memoryview) -> Answer:
        future: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()

        def told(answer: Answer | None) -> None:
            if not future.done():
                future.set_result(answer)

        self._ask(asked, body, told)
        answer = await future
        if answer is None or answer.error == "primary":
            if answer is not None:
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


def _tell(tell: Callable[[Answer], None], result: Published | HeadraceError) -> None:
    if isinstance(result, HeadraceError):
        tell(refusal(result))
    else:
        tell(Answer(result.first, result.last, int(result.repeated)))


def _tell_newest(tell: Callable[[Answer], None], newest: int | HeadraceError | None) -> None:
    tell(refusal(newest) if isinstance(newest, HeadraceError) else Answer(newest=newest))


def _tell_span(tell: Callable[[Answer], None], result: tuple[int | None, int | None] | HeadraceError) -> None:
    tell(refusal(result) if isinstance(result, HeadraceError) else Answer(*result))
