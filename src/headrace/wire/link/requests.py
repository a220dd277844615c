"""The requests of the link: one frozen type per operation, and the head that carries it.

A request's head is a map with ``op`` and ``id``; the other members are the operation's own. Parsing checks their types
and bounds, and an error names the member. Unknown members are ignored, so that an older hub understands a newer client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import Meta

from headrace.errors import LimitError, MalformedError, UnexpectedError, WireError
from headrace.message import MAX_SEQUENCE, Run
from headrace.wire.link.message import MAX_MESSAGE, Buffer, parse
from headrace.wire.link.plain_rows import parse_published
from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import Predicate, parse_field

MAX_ID: Final = (1 << 53) - 1
"""Whole numbers up to here are the same in every language, JavaScript included."""
MAX_NUMBER: Final = (1 << 62) - 1
"""A publisher's own numbers are signed 64-bit in the log; this leaves room to continue from the largest."""
MAX_NAME: Final = 255
MAX_PIECE: Final = (1 << 31) - 1
"""The highest number of a piece of a stage."""
MAX_STAGES: Final = 4096
"""Stages that one commit may name."""
MAX_PASSED: Final = (1 << 31) - 1
"""Rows that one ``pass`` may carry: more than fit a message."""
MAX_ATTRIBUTES: Final = 64
DEFAULT_CREDIT: Final = 4 << 20
MAX_CREDIT: Final = 64 << 20

WRITE: Final = "write-"
"""Prefix of the name of a query that is a batch write, which is retried soon or never."""

Id: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_ID)]
Seq: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_SEQUENCE + 1)]
Op: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_SEQUENCE + 1)]
"""A position in the log, which counts messages and entries."""
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Credit: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_CREDIT)]
Pattern: TypeAlias = Annotated[str, Meta(max_length=4096)]
Origins: TypeAlias = Annotated[list[Name], Meta(min_length=1, max_length=16)]
Where: TypeAlias = Annotated[dict[str, Any], Meta(max_length=MAX_ATTRIBUTES)]


def _operation(name: str) -> str:
    return name.removesuffix("Request").lower()


class _Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op", tag=_operation):
    id: Id


MAX_HISTORIES: Final = 2
"""Fingerprints that one request asks for."""


class HelloRequest(_Request, frozen=True, kw_only=True):
    """Open the link."""

    version: Annotated[int, Meta(ge=0)]
    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    auth: dict[str, Any] | None = None


class HeadRequest(_Request, frozen=True, kw_only=True):
    """Ask how far the log reaches; with ``first``, how far ``bytes`` reach from there.

    With ``history``, ask for the fingerprints of the log's history up to each of these messages.
    """

    first: Seq | None = None
    bytes: Annotated[int, Meta(ge=1, le=MAX_NUMBER)] | None = None
    history: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)], ...], Meta(max_length=MAX_HISTORIES)
    ] = ()


class StatusRequest(_Request, frozen=True, kw_only=True):
    """Ask for the hub's status."""


class _Stream(_Request, frozen=True, kw_only=True):
    topic: Pattern | None = None
    origin: Name | Origins | None = None
    where: Where | None = None
    credit: Credit = DEFAULT_CREDIT


class ReadRequest(_Stream, frozen=True, kw_only=True):
    """Read a range of the sequence."""

    first: Seq
    last: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] | None = None


class FollowRequest(_Stream, frozen=True, kw_only=True, rename={"from_seq": "from"}):
    """Follow the sequence from some point on, without end."""

    from_seq: Seq | None = None
    time: Annotated[int, Meta(ge=0, le=MAX_NUMBER)] | None = None
    consumer: Name | None = None
    ack_seconds: Annotated[float, Meta(gt=0)] | None = None
    max_tries: Number | None = None
    dead_letter: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None


class EntriesRequest(_Request, frozen=True, kw_only=True, rename={"from_op": "from"}):
    """Read the log entries that stand after messages ``first`` to ``last``; without ``last``, follow them.

    ``from_op`` resumes a stream at the position that its last event named.
    """

    first: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)]
    last: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] | None = None
    topic: Pattern | None = None
    credit: Credit = DEFAULT_CREDIT
    from_op: Op | None = None


class ReplicateRequest(_Request, frozen=True, kw_only=True, rename={"from_op": "from", "last_op": "last"}):
    """Copy the log, messages and entries, from an operation on; without ``last_op``, without end. For hubs."""

    from_op: Op
    last_op: Op | None = None
    credit: Credit = DEFAULT_CREDIT


class MoreRequest(_Request, frozen=True, kw_only=True):
    """Grant a stream more bytes."""

    bytes: Credit


class CancelRequest(_Request, frozen=True, kw_only=True):
    """End a stream."""


class PublishRequest(_Request, frozen=True, kw_only=True):
    """Append rows, once.

    ``retry``, of a resend, is an operation before which it was never sent. A hub that relays it says whose it is:
    ``client``.
    """

    publisher: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    number: Number | None = None
    follows: bool = False
    origin: Name = "tube"
    epoch: Op | None = None
    retry: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] | None = None
    client: Annotated[str, Meta(max_length=MAX_NAME)] = ""


class PassRequest(_Request, frozen=True, kw_only=True):
    """Append messages and entries that another hub took in, once."""

    frontend: Name
    number: Number
    rows: Annotated[int, Meta(ge=1, le=MAX_PASSED)]
    retry: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] | None = None


class PublisherRequest(_Request, frozen=True, kw_only=True):
    """Ask for a publisher's newest number; with ``open``, open its name as the holder of this word.

    A hub that relays an opening says whose it is: ``client``, and ``by`` for people.
    """

    publisher: Name
    open: Name | None = None
    client: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    by: Annotated[str, Meta(max_length=MAX_NAME)] = ""


class StageRequest(_Request, frozen=True, kw_only=True):
    """Stage rows of a query's batch, which nobody sees before the commit."""

    query: Name
    batch: Number
    part: Number = 0
    stage: Name | None = None
    """The stage that the rows belong to; without it, they become a stage of their own."""
    number: Annotated[int, Meta(ge=0, le=MAX_PIECE)] = 0
    """Their place in the stage: a piece with the same number replaces the one before."""


class CommitRequest(_Request, frozen=True, kw_only=True):
    """Append what was staged, all or none, once per query and batch."""

    query: Name
    batch: Number
    stages: Annotated[list[Name], Meta(max_length=MAX_STAGES)]
    origin: Name = "spark"
    services: bool = False
    token: Annotated[int, Meta(ge=0, le=MAX_NUMBER)] | None = None
    """By which a hub that relays a commit says which it was; otherwise the stages' names tell it."""
    client: Annotated[str, Meta(max_length=MAX_NAME)] = ""


class AbortRequest(_Request, frozen=True, kw_only=True):
    """Forget what was staged."""

    stages: Annotated[list[Name], Meta(max_length=MAX_STAGES)]


class HoldsRequest(_Request, frozen=True, kw_only=True):
    """List holds, set one, or release it."""

    name: Name | None = None
    seq: Seq | None = None
    release: bool = False


class SnapshotRequest(_Request, frozen=True, kw_only=True):
    """Ask for the hub's state, in the form of a snapshot file."""

    credit: Credit = DEFAULT_CREDIT


class ChainRequest(_Request, frozen=True, kw_only=True):
    """Ask for the digests of all messages, or of blocks from ``first`` on, in the form of the log's file of them."""

    first: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] = 0
    credit: Credit = DEFAULT_CREDIT


class ServicesRequest(_Request, frozen=True, kw_only=True):
    """List services, show one with its value, create one, or remove it."""

    service: str | None = None
    after: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] = 0
    action: Literal["list", "create", "remove"] = "list"
    kind: Literal["json", "last"] = "json"


class SubscriptionsRequest(_Request, frozen=True, kw_only=True):
    """Ask for the matcher's table."""

    credit: Credit = DEFAULT_CREDIT


class ConsumersRequest(_Request, frozen=True, kw_only=True):
    """List durable consumers, show, move or remove one."""

    consumer: Name | None = None
    action: Literal["list", "show", "reset", "remove"] = "list"
    to: Seq | None = None
    after: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] = 0


class AckRequest(_Request, frozen=True, kw_only=True):
    """Acknowledge rows of a durable consumer, or ask for them again."""

    consumer: Name
    seqs: list[tuple[Seq, Seq]]
    nack: bool = False


class ReportRequest(_Request, frozen=True, kw_only=True):
    """Report what a program beside the hub is doing, for the hub's status."""

    name: Name
    facts: dict[str, Any]


class ReloadRequest(_Request, frozen=True, kw_only=True):
    """Have the hub load its settings again."""


class LostRequest(_Request, frozen=True, kw_only=True):
    """List the ranges that readers found missing and skipped, or report one."""

    reader: Name | None = None
    first: Seq | None = None
    last: Seq | None = None


class AsideRequest(_Request, frozen=True, kw_only=True):
    """List what a frontend's upstream hub refused of what was kept here; publish one request again, or drop it."""

    action: Literal["list", "retry", "drop"] = "list"
    request: Name | None = None


Request: TypeAlias = (
    HelloRequest | HeadRequest | StatusRequest | ReadRequest | FollowRequest | EntriesRequest
    | ReplicateRequest | MoreRequest | CancelRequest | PublishRequest | PassRequest | PublisherRequest
    | StageRequest | CommitRequest | AbortRequest | HoldsRequest | SnapshotRequest | ChainRequest | ServicesRequest
    | SubscriptionsRequest | ConsumersRequest | AckRequest | ReportRequest | ReloadRequest | LostRequest
    | AsideRequest
)  # fmt: skip

OPERATIONS: Final[dict[str, type[Request]]] = {_operation(kind.__name__): kind for kind in get_args(Request)}


class Asked(NamedTuple):
    """A request as it came."""

    id: int
    request: Request | WireError
    """The request; or what is wrong with it, to be answered."""
    body: memoryview
    rows: tuple[str, Run] | None = None
    """The topic and payloads of a publish, if those are all that its body has."""


def parse_asked(message: Buffer) -> Asked:
    """Parse a message that a client sent; raise if it has no id, so that it cannot be answered."""
    if len(message) > MAX_MESSAGE:
        raise LimitError("link", "message", len(message), MAX_MESSAGE)
    head, body = parse(message)
    request_id = head.get("id")
    if type(request_id) is not int or not 0 <= request_id <= MAX_ID:
        raise MalformedError("link", "id", request_id, f"a whole number from 0 to {MAX_ID}")
    try:
        request = parse_request(head)
    except WireError as error:
        return Asked(request_id, error, body)
    rows = parse_published(body) if type(request) is PublishRequest else None
    return Asked(request_id, request, body, rows)


def parse_request(head: Mapping[str, Any]) -> Request:
    """Parse a head as its request.

    >>> parse_request({"op": "read", "id": 7, "first": 1, "last": 100})
    ReadRequest(id=7, topic=None, origin=None, where=None, credit=4194304, first=1, last=100)
    """
    op = head.get("op")
    kind = OPERATIONS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise UnexpectedError("link", "op", op, f"one of {', '.join(OPERATIONS)}")
    try:
        request: Request = msgspec.convert(head, kind)
    except msgspec.ValidationError as error:
        # "Expected `int` - at `$.first`": the path ends with the member.
        what, _, path = str(error).partition(" - at `$")
        name = path.strip("`.") or _missing(what)
        raise MalformedError("link", name, head.get(name), what) from None
    return request


def serialize_request(request: Request) -> dict[str, Any]:
    """Serialize a request as its head.

    >>> serialize_request(FollowRequest(id=3, from_seq=8, topic="a/*"))
    {'op': 'follow', 'id': 3, 'topic': 'a/*', 'from': 8}
    """
    head: dict[str, Any] = msgspec.to_builtins(request)
    return head


def parse_where(where: Mapping[str, Any]) -> dict[str, Predicate]:
    """Parse the predicates of a ``where``, by attribute; each is an SDK field as a map."""
    predicates = {}
    for name, field in where.items():
        try:
            text = msgspec.json.encode(field)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise MalformedError("link", f"where.{name}", field, "an attribute field as a map") from None
        try:
            predicates[name] = parse_field(text)
        except (MalformedError, LimitError) as error:
            raise MalformedError(
                "link", f"where.{name}", error.value, f"{error.field}: {error.limit}"
            ) from None
        if isinstance(predicates[name], Fence):
            rule = "no fence: a filter judges each message by itself; subscribe at the sdk door"
            raise MalformedError("link", f"where.{name}", "fence", rule)
    return predicates


def _missing(what: str) -> str:
    """The missing member, from ``Object missing required field `first```."""
    return what.split("`")[1] if "required field" in what else "head"
