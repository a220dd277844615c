"""The requests of a node to the primary, and the answers: the bulk of Publish and Ack parcels.

A request is the length of a msgpack head, the head, and either Arrow rows or the frames that the node passes on
(:mod:`~headrace.hub.publishing.relaying.passed`). An answer is msgpack as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from headrace.errors import (
    HeadraceError,
    LimitError,
    MalformedError,
    RefusedError,
    UnavailableError,
    WireError,
)
from headrace.hub.publishing.idempotent import published
from headrace.hub.publishing.relaying.passed import pack_passed
from headrace.hub.publishing.relaying.requests import RelayRequest
from headrace.hub.sequencer import Claim, Opened, Published
from headrace.message import Batch, merge
from headrace.wire.link.message import PUBLISHED, body_of, rows_of
from headrace.wire.link.plain_rows import parse_published, published_body
from headrace.wire.link.requests import Number

MISSING: Final = "missing"
"""Refusal code: rows were staged at another primary, or over another connection, and must be staged again."""

NOT_PRIMARY: Final = "primary"
"""Refusal code: this node is not the primary, or not yet."""

_MAX_REASON: Final = 1000
_PADDING: Final = bytes(8)

_FEW: Final = 16
"""Most messages whose body is made without Arrow; for more, Arrow is quicker."""

Rows: TypeAlias = bytes | memoryview


class PrimaryRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's request to the primary."""

    kind: Literal["pass", "publish", "newest", "open", "stage", "commit"]
    publisher: str = ""
    """Owner of the number; in a stage or commit, the query."""
    number: Number = 0
    """Number of the first row; in a stage or commit, the query's batch."""
    follows: bool = False
    origin: str = ""
    rows: Number = 0
    """In a stage, the number of the commit's rows before it; in a commit or a pass, the number of all its rows."""
    epoch: Number | None = None
    client: str = ""
    """The id of the client that asked the node."""
    retry: Number | None = None
    holder: str = ""
    """In an opening, who opens the name, and under which name errors mention them (``by``)."""
    by: str = ""
    digest: Number = 0
    """In a commit, the digest of its rows, and the ``token`` that identifies a repeat."""
    token: Number = 0

    @property
    def claim(self) -> Claim:
        """The publisher's claim to its name."""
        return Claim(self.epoch, self.client, self.retry)


class PrimaryAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The primary's answer."""

    first: int | None = None
    last: int | None = None
    repeated: int = 0
    op: int | None = None
    """The operation that the node must have committed before it answers its own client."""
    newest: int | None = None
    epoch: int = 0
    error: str = ""
    """Code of a refusal."""
    reason: str = ""

    @property
    def refused(self) -> HeadraceError | None:
        """The refusal as an error; ``None`` if the answer is not a refusal."""
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
    """Make the answer that reports an error."""
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


def published_batch(request: PrimaryRequest, body: memoryview) -> Batch:
    """Read the rows of a publish; a few messages without attributes are parsed without Arrow."""
    plain = parse_published(body)
    if plain is None:
        rows = rows_of(body, PUBLISHED)
        return published(rows, origin=request.origin, publisher=request.publisher, number=request.number)
    topic, run = plain
    return Batch(run, origin=request.origin, publisher=request.publisher, number=request.number, topic=topic)


def request_for(request: RelayRequest) -> PrimaryRequest:
    """Make the request for relayed rows."""
    if request.passed:
        rows = sum(len(batch) for batch in request.rows)
        return PrimaryRequest(
            "pass",
            publisher=request.publisher,
            number=request.number,
            rows=rows,
            retry=request.claim.retry,
        )
    return PrimaryRequest(
        "publish",
        publisher=request.publisher,
        number=request.number,
        follows=request.follows,
        origin=request.rows[0].origin,
        **request.claim._asdict(),
    )


def body_for(request: RelayRequest, uuid: UUID) -> Rows:
    """Make the body of relayed rows, for the hub that numbers the log ``uuid``."""
    if request.passed:
        return pack_passed(uuid, request.rows)
    batch = request.rows[0]
    if len(request.rows) == 1 and batch.columns is None and len(batch) <= _FEW:
        return published_body(list(batch.run), batch.topic)
    return body_of(merge(request.rows).select(PUBLISHED.names))


def _decoded(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise MalformedError("parcel", "bulk", data[:16], str(error)) from None
