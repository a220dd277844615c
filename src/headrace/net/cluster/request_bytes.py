"""What a node and the primary say to each other, as bytes: the bulk of Publish and of Ack.

That of a Publish is a head (msgpack, behind its length) that says what is asked, and Arrow rows. That of an Ack is
such a head alone.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from headrace.errors import HeadraceError, LimitError, MalformedError, RefusedError, UnavailableError
from headrace.hub.publishing.idempotent import published
from headrace.hub.publishing.publish_relay import Request
from headrace.hub.sequencer import Published
from headrace.message import Batch, merge
from headrace.wire.link.message import PASSED, PUBLISHED, body_of, rows_of
from headrace.wire.link.plain_rows import parse_published, published_body

_MAX_REASON: Final = 1000

_FEW: Final = 16
"""Messages that are made into a body one by one; more at a time are quicker as Arrow has them."""

_PADDING: Final = bytes(8)


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is asked of the primary."""

    kind: Literal["pass", "publish", "newest", "stage", "commit"]
    publisher: str = ""
    """Whose number it has; of a stage or commit, the query."""
    number: int = 0
    """Of the first row; of a stage or commit, the query's batch."""
    follows: bool = False
    origin: str = ""
    rows: int = 0
    """Of a stage, how many of the commit's rows came before it; of a commit, how many it has in all."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the primary says."""

    first: int | None = None
    last: int | None = None
    repeated: int = 0
    newest: int | None = None
    error: str = ""
    """The code of a refusal; ``primary``: this node is not, or not yet, the one to ask."""
    reason: str = ""

    @property
    def refused(self) -> HeadraceError | None:
        """Why not, if not."""
        if not self.error:
            return None
        if self.error == "unavailable":
            return UnavailableError(self.reason)
        return RefusedError(self.error, self.reason)

    @property
    def published(self) -> Published | HeadraceError:
        """Where it is, or why not."""
        return self.refused or Published(self.first, self.last, self.repeated)


NOT_PRIMARY: Final = Answer(error="primary", reason="this node does not number messages now")

_ASKED: Final = msgspec.msgpack.Decoder(Asked)
_ANSWER: Final = msgspec.msgpack.Decoder(Answer)


def serialize_asked(asked: Asked, body: bytes | memoryview) -> bytes:
    """What is asked, and its rows, as the bulk of a Publish."""
    head = msgspec.msgpack.encode(asked)
    return b"".join((len(head).to_bytes(4), head, _PADDING[: -(len(head) + 4) % 8], body))


def parse_asked(bulk: bytes) -> tuple[Asked, memoryview]:
    """What the bulk of a Publish asks, and its rows."""
    size = int.from_bytes(bulk[:4])
    if size > len(bulk) - 4:
        raise MalformedError("parcel", "bulk", bulk[:16], "must begin with what is asked")
    head = 4 + size
    asked: Asked = _decoded(_ASKED, bulk[4:head])
    return asked, memoryview(bulk)[head + -head % 8 :]


def serialize_answer(answer: Answer) -> bytes:
    """An answer as the bulk of an Ack."""
    return msgspec.msgpack.encode(answer)


def parse_answer(bulk: bytes) -> Answer:
    """The answer that is the bulk of an Ack."""
    answer: Answer = _decoded(_ANSWER, bulk)
    return answer


def asked_for(request: Request) -> Asked:
    """What is asked for a request."""
    if request.passed:
        return Asked("pass", publisher=request.publisher, number=request.number)
    return Asked(
        "publish",
        publisher=request.publisher,
        number=request.number,
        follows=request.follows,
        origin=request.rows[0].origin,
    )


def body_for(request: Request) -> memoryview:
    """A request's rows as a body."""
    batch = request.rows[0]
    if not request.passed and len(request.rows) == 1 and batch.columns is None and len(batch) <= _FEW:
        return memoryview(published_body(list(batch.run), batch.topic))
    schema = PASSED if request.passed else PUBLISHED
    return body_of(merge(request.rows).select(schema.names))


def batch_of(asked: Asked, body: memoryview) -> Batch:
    """The rows of a publish; few messages without attributes need no Arrow."""
    plain = parse_published(body)
    if plain is None:
        return published(
            rows_of(body, PUBLISHED), origin=asked.origin, publisher=asked.publisher, number=asked.number
        )
    topic, run = plain
    return Batch(run, origin=asked.origin, publisher=asked.publisher, number=asked.number, topic=topic)


def refusal(error: HeadraceError) -> Answer:
    """An error as an answer."""
    reason = str(error)[:_MAX_REASON]
    match error:
        case RefusedError(code=code, reason=said):
            return Answer(error=code, reason=said[:_MAX_REASON])
        case LimitError():
            return Answer(error="limit", reason=reason)
        case UnavailableError():
            return Answer(error="unavailable", reason=reason)
        case _:
            return Answer(error="storage", reason=reason)


def _decoded(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise MalformedError("parcel", "bulk", data[:16], str(error)) from None
