"""The publishing rules of one hub, for clients of its own doors and for nodes that ask it as the primary.

A hub has one :class:`PublishIntake`, whichever doors are open. Only it recognises repeats: rows with a publisher's
number by :mod:`~headrace.hub.publishing.idempotent`, staged commits by :mod:`~headrace.hub.publishing.staged_commits`.

In a cluster, a node that is not primary sends a :class:`PrimaryRequest` as the bulk of a Publish parcel: the length of
a msgpack head, the head, and Arrow rows, or the frames of what it passes on
(:mod:`~headrace.hub.publishing.primary_client`). The primary answers with a :class:`PrimaryAnswer`, msgpack as well, as
the bulk of an Ack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from headrace.errors import (
    HeadraceError,
    LimitError,
    MalformedError,
    RefusedError,
    UnavailableError,
    WireError,
)
from headrace.hub.publishing.idempotent import IdempotentPublishing, published
from headrace.hub.publishing.passed import column_texts, unpack_passed
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.query_marks import Queries
from headrace.hub.publishing.same_rows import Elsewhere
from headrace.hub.publishing.staged_commits import StagedCommits
from headrace.hub.publishing.staging import Staging
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Claim, Commit, Opened, Opening, Published, WhenPublished
from headrace.message import Batch
from headrace.wire.link.message import PUBLISHED, rows_of
from headrace.wire.link.plain_rows import parse_published
from headrace.wire.link.requests import Number

MAX_STAGED: Final = 64 << 20
"""Bytes of staged rows that one node may have at the primary, waiting for their commit."""

MISSING: Final = "missing"
"""Refusal code: rows were staged at another primary, or over another connection, and must come again."""

NOT_PRIMARY: Final = "primary"
"""Refusal code: the node that was asked is not, or not yet, the primary."""

_MAX_TEXT: Final = 0xFFFF
"""Most bytes of a topic or publisher in the log."""
_MAX_REASON: Final = 1000
_PADDING: Final = bytes(8)


class PrimaryRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's request to the primary."""

    kind: Literal["pass", "publish", "newest", "open", "stage", "commit"]
    publisher: str = ""
    """Owner of the number; of a stage or commit, the query."""
    number: Number = 0
    """Number of the first row; of a stage or commit, the query's batch."""
    follows: bool = False
    origin: str = ""
    rows: Number = 0
    """Of a stage, how many of the commit's rows came before it; of a commit or a pass, how many it has in all."""
    epoch: Number | None = None
    client: str = ""
    """The id of the client that asked the node."""
    retry: Number | None = None
    holder: str = ""
    """Of an opening, who opens the name, and whom to name for it (``by``)."""
    by: str = ""
    digest: Number = 0
    """Of a commit, that of its rows, and by which a repeat is known (``token``)."""
    token: Number = 0

    @property
    def claim(self) -> Claim:
        """What the publisher says about itself."""
        return Claim(self.epoch, self.client, self.retry)


class PrimaryAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The primary's answer."""

    first: int | None = None
    last: int | None = None
    repeated: int = 0
    op: int | None = None
    """What the node must have committed of the log before it answers its own client."""
    newest: int | None = None
    epoch: int = 0
    error: str = ""
    """Code of a refusal."""
    reason: str = ""

    @property
    def refused(self) -> HeadraceError | None:
        """The refusal as an error, if it is one."""
        if not self.error:
            return None
        if self.error == "unavailable":
            return UnavailableError(self.reason)
        return RefusedError(self.error, self.reason)

    @property
    def published(self) -> Published | HeadraceError:
        """The rows' sequence numbers, or the refusal."""
        return self.refused or Published(self.first, self.last, self.repeated, self.op)

    @property
    def opened(self) -> Opened | HeadraceError:
        """The epoch and the newest number of a name that was opened, or the refusal."""
        return self.refused or Opened(self.epoch, self.newest)


NOT_THE_PRIMARY: Final = PrimaryAnswer(error=NOT_PRIMARY, reason="this node does not number messages now")

WhenAnswered: TypeAlias = Callable[[PrimaryAnswer], None]

_REQUEST: Final = msgspec.msgpack.Decoder(PrimaryRequest)
_ANSWER: Final = msgspec.msgpack.Decoder(PrimaryAnswer)


def serialize_request(request: PrimaryRequest, body: bytes | memoryview) -> bytes:
    """Make the bulk of a Publish: the request and its rows."""
    head = msgspec.msgpack.encode(request)
    return b"".join((len(head).to_bytes(4), head, _PADDING[: -(len(head) + 4) % 8], body))


def parse_bulk(bulk: bytes) -> tuple[PrimaryRequest, memoryview]:
    """Parse the bulk of a Publish into the request and its rows."""
    size = int.from_bytes(bulk[:4])
    if size > len(bulk) - 4:
        raise MalformedError("parcel", "bulk", bulk[:16], "must begin with a request")
    head = 4 + size
    request: PrimaryRequest = _decoded(_REQUEST, bulk[4:head])
    return request, memoryview(bulk)[head + -head % 8 :]


def serialize_answer(answer: PrimaryAnswer) -> bytes:
    """Make the bulk of an Ack."""
    return msgspec.msgpack.encode(answer)


def parse_answer(bulk: bytes) -> PrimaryAnswer:
    """Parse the bulk of an Ack."""
    answer: PrimaryAnswer = _decoded(_ANSWER, bulk)
    return answer


def refusal(error: HeadraceError) -> PrimaryAnswer:
    """Make an answer of an error."""
    reason = str(error)[:_MAX_REASON]
    match error:
        case RefusedError():
            return PrimaryAnswer(error=error.code, reason=error.reason[:_MAX_REASON])
        case LimitError():
            return PrimaryAnswer(error="limit", reason=reason)
        case WireError():
            return PrimaryAnswer(error="malformed", reason=reason)
        case UnavailableError():
            return PrimaryAnswer(error="unavailable", reason=reason)
        case _:
            return PrimaryAnswer(error="storage", reason=reason)


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
        self._brought: dict[object, _NodeStage] = {}
        """For each node, the one commit whose rows it is staging."""

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
            answer(refusal(result) if isinstance(result, HeadraceError) else PrimaryAnswer(*result))

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
                    self._stage(source, request, body)
                    answer(PrimaryAnswer())
                case "commit":
                    rows = self._rows_of_commit(source, request)
                    terms = Commit(request.digest, request.token, request.client)
                    self.commits.take(request.publisher, request.number, rows, tell, terms)
        except HeadraceError as error:
            answer(refusal(error))

    def forget(self, source: object) -> None:
        """Drop what a node has staged: its connection is closed."""
        self._brought.pop(source, None)

    def _pass(self, request: PrimaryRequest, body: memoryview, tell: WhenPublished) -> None:
        _, batches = unpack_passed(body, request.rows)
        for batch in batches:
            for name in ("topic", "publisher"):
                longest = max(len(text.encode()) for text in column_texts(batch, name))
                if longest > _MAX_TEXT:
                    raise LimitError("parcel", name, longest, _MAX_TEXT)
        self.idempotent.pass_on(request.publisher, request.number, batches, tell, retry=request.retry)

    def _stage(self, source: object, request: PrimaryRequest, body: memoryview) -> None:
        rows = rows_of(body, PUBLISHED)
        if not request.rows:
            # The first rows of a commit, perhaps of a retry: drop older ones.
            self._brought[source] = _NodeStage(request.publisher, request.number)
        staged = self._brought.get(source)
        if staged is None or not staged.continues(request):
            raise RefusedError(MISSING, "the rows before these are not staged: stage them all again")
        staged.size += rows.nbytes
        if staged.size > MAX_STAGED:
            del self._brought[source]
            raise RefusedError(
                "limit", f"a commit of {staged.size} bytes: a cluster takes {MAX_STAGED} at most"
            )
        staged.rows += rows.num_rows
        staged.batches.append(published(rows, origin=request.origin, publisher=request.publisher))

    def _rows_of_commit(self, source: object, request: PrimaryRequest) -> list[Batch]:
        """The rows of a commit, all of them and no others."""
        if not request.rows:
            return []
        staged = self._brought.pop(source, None)
        if staged is None or not staged.continues(request):
            reason = f"not all {request.rows} rows of the commit are staged: stage them again"
            raise RefusedError(MISSING, reason)
        return staged.batches


@dataclass(slots=True)
class _NodeStage:
    """The rows that a node has staged of one commit so far."""

    query: str
    batch: int
    rows: int = 0
    size: int = 0
    batches: list[Batch] = field(default_factory=list)

    def continues(self, request: PrimaryRequest) -> bool:
        """Whether a request belongs to this commit and follows the rows staged so far."""
        return (request.publisher, request.number, request.rows) == (self.query, self.batch, self.rows)


def published_batch(request: PrimaryRequest, body: memoryview) -> Batch:
    """The rows of a publish; a few messages without attributes are parsed without Arrow."""
    plain = parse_published(body)
    if plain is None:
        rows = rows_of(body, PUBLISHED)
        return published(rows, origin=request.origin, publisher=request.publisher, number=request.number)
    topic, run = plain
    return Batch(run, origin=request.origin, publisher=request.publisher, number=request.number, topic=topic)


def _tell_newest(answer: WhenAnswered, newest: int | HeadraceError | None) -> None:
    answer(refusal(newest) if isinstance(newest, HeadraceError) else PrimaryAnswer(newest=newest))


def _tell_opened(answer: WhenAnswered, opened: Opened | HeadraceError) -> None:
    if isinstance(opened, HeadraceError):
        answer(refusal(opened))
    else:
        answer(PrimaryAnswer(epoch=opened.epoch, newest=opened.newest))


def _decoded(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise MalformedError("parcel", "bulk", data[:16], str(error)) from None
