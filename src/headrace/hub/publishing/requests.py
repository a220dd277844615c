"""The link's publish requests: a client's own rows, what a frontend relays, and the rows of stages.

Rows come in a request's body and are checked against their limits. The request is answered once they are committed. A
repeat is answered like the first try (:mod:`headrace.hub.publishing.idempotent`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError, LimitError, RefusedError
from headrace.hub.publishing.idempotent import IdempotentPublishing, published
from headrace.hub.publishing.relaying.passed import column_texts, number_range, unpack_passed
from headrace.hub.sequencer import Claim, Opened, Opening, WhenPublished
from headrace.log import Log
from headrace.message import Batch, Run
from headrace.protocols import HUBS_OWN_NAMES, ORIGINS, PUBLISHED_ORIGINS
from headrace.wire.link import requests as ask
from headrace.wire.link.message import PUBLISHED, rows_of

MAX_TOPIC: Final = 0xFFFF
"""Most bytes of a topic: the log's limit for a topic that a whole batch shares."""


MAX_ENTRY_TOPIC: Final = 2048
"""Most bytes of a log entry's topic: the name of a part of the state, and the longest name in any part."""


class PublishRights(Protocol):
    """What the rules for publishing need to know of a client."""

    @property
    def owner(self) -> str:
        """The client that its publishers' names belong to; empty where clients are not known."""

    @property
    def publishes_everything(self) -> bool:
        """Whether every topic is allowed."""


class MessageCount(Protocol):
    """The account that is charged for messages."""

    received_messages: int


class PublishAsker(Protocol):
    """The connection that a request came on."""

    @property
    def peer(self) -> str:
        """The client's address."""

    @property
    def principal(self) -> PublishRights:
        """Who the client is."""

    @property
    def account(self) -> MessageCount:
        """What the client has."""

    def check_topics(self, batches: Sequence[Batch], /) -> None:
        """Raise an error unless the client may publish to every topic of some messages."""

    def describe(self) -> str:
        """Name the client for people."""

    def answer(self, request_id: int, /, **members: Any) -> None:
        """Answer a request that is done."""

    def fail(self, request_id: int, error: HeadraceError, /) -> None:
        """Answer a request that is refused."""


class PublishRequests:
    """The publish requests of one hub's link."""

    def __init__(self, publishing: IdempotentPublishing, bodies: RequestBodies) -> None:
        self._publishing = publishing
        self._bodies = bodies

    def publish(
        self,
        asker: PublishAsker,
        request: ask.PublishRequest,
        body: memoryview,
        rows: tuple[str, Run] | None,
        reply: WhenPublished,
    ) -> None:
        """Publish rows; ``rows`` are those of the body if they were read without Arrow."""
        publisher, number, who = request.publisher, request.number, asker.principal
        if request.origin not in PUBLISHED_ORIGINS:
            raise _unknown_origin(request.origin)
        if number is not None and not publisher:
            raise RefusedError("malformed", "a number belongs to a publisher: name the publisher, too")
        _check_name(publisher)
        batch = self._bodies.published(
            body, rows, origin=request.origin, publisher=publisher or asker.peer, number=number
        )
        if not who.publishes_everything:
            asker.check_topics([batch])
        asker.account.received_messages += batch.run.count
        claim = Claim(request.epoch, request.client or who.owner, request.retry)
        self._publishing.publish(batch, reply, follows=request.follows, claim=claim)

    def pass_on(self, request: ask.PassRequest, body: memoryview, reply: WhenPublished) -> None:
        """Publish what a frontend relays, followed by its mark."""
        batches = self._bodies.passed(body, request.rows)
        self._publishing.pass_on(request.frontend, request.number, batches, reply, retry=request.retry)

    def newest(self, asker: PublishAsker, request: ask.PublisherRequest, _body: memoryview) -> None:
        """Answer with a publisher's newest number; if it opens its name, also with the epoch."""
        if request.open is not None:
            self._open(asker, request, request.open)
            return

        def reply(newest: int | HeadraceError | None) -> None:
            if isinstance(newest, HeadraceError):
                asker.fail(request.id, newest)
            else:
                asker.answer(request.id, newest=newest)

        self._publishing.newest(request.publisher, reply)

    def _open(self, asker: PublishAsker, request: ask.PublisherRequest, holder: str) -> None:
        def reply(opened: Opened | HeadraceError) -> None:
            if isinstance(opened, HeadraceError):
                asker.fail(request.id, opened)
            else:
                asker.answer(request.id, epoch=opened.epoch, newest=opened.newest)

        _check_name(request.publisher)
        client = request.client or asker.principal.owner
        wanted = Opening(holder, client, request.by or asker.describe())
        self._publishing.open(request.publisher, wanted, reply)


class RequestBodies:
    """Reads the rows in request bodies and checks their limits; entries of ``reserved`` topics may not be relayed."""

    def __init__(self, log: Log, message_bytes: int, attributes: int, reserved: Collection[str] = ()) -> None:
        self._log = log
        self._reserved = frozenset(reserved)
        self._message_bytes = message_bytes
        self._attributes = attributes

    def published(
        self,
        body: memoryview,
        plain: tuple[str, Run] | None,
        *,
        origin: str = "",
        publisher: str = "",
        number: int | None = None,
    ) -> Batch:
        """Read rows to publish or stage; ``plain`` are the body's topic and payloads, if it has nothing else."""
        if plain is None:
            rows = _some_rows(body, PUBLISHED)
            _check_topic(pc.max(pc.binary_length(rows.column("topic"))).as_py())
            self._check_payload(pc.max(pc.binary_length(rows.column("payload"))).as_py())
            self._check_attributes(rows)
            return published(rows, origin=origin, publisher=publisher, number=number)
        topic, run = plain
        if len(topic) > MAX_TOPIC // 4:  # a character has up to four bytes
            _check_topic(len(topic.encode()))
        # If all payloads together are within the limit, each is.
        if run.size > self._message_bytes:
            self._check_payload(int(run.lengths.max()))
        return Batch(run, origin=origin, publisher=publisher, number=number, topic=topic)

    def passed(self, body: memoryview, rows: int) -> list[Batch]:
        """Read messages and log entries that a frontend relays, and check the limits of what is published.

        Only log entries, which describe state, may have longer payloads than messages.
        """
        uuid, batches = unpack_passed(body, rows)
        if uuid != self._log.uuid:
            raise RefusedError("conflict", f"passed on to log {uuid}: this hub has log {self._log.uuid}")
        for batch in batches:
            self._check_passed(batch)
        return batches

    def _check_passed(self, batch: Batch) -> None:
        for origin in column_texts(batch, "origin"):
            if origin not in ORIGINS:
                raise RefusedError("malformed", f"origin {origin[:64]!r}: a frontend has no such door")
        topics = column_texts(batch, "topic")
        longest = max(len(topic.encode()) for topic in topics)
        _check_topic(longest)
        if batch.is_entries and longest > MAX_ENTRY_TOPIC:
            raise LimitError("link", "name of an entry", longest, MAX_ENTRY_TOPIC)
        if batch.is_entries and not self._reserved.isdisjoint(topics):
            raise RefusedError("malformed", "only the hub that numbers messages sets the policy for services")
        longest = max(map(len, column_texts(batch, "publisher")))
        if longest > ask.MAX_NAME:
            raise LimitError("link", "publisher", longest, ask.MAX_NAME)
        numbers = number_range(batch)
        if numbers is not None and not 0 <= numbers[0] <= numbers[1] <= ask.MAX_NUMBER:
            raise LimitError("link", "number", numbers[0] if numbers[0] < 0 else numbers[1], ask.MAX_NUMBER)
        # If all payloads together are within the limit, each is.
        if not batch.is_entries and batch.run.size > self._message_bytes:
            self._check_payload(int(batch.run.lengths.max()))

    def _check_attributes(self, rows: pa.RecordBatch) -> None:
        count = np.zeros(rows.num_rows, np.int64)
        size = np.zeros(rows.num_rows, np.int64)
        for name in ("attributes", "numbers"):
            if name in rows.schema.names and len((column := rows.column(name)).keys):
                offsets = column.offsets.to_numpy()
                count += np.diff(offsets)
                if name == "attributes":
                    lengths = pc.add(pc.binary_length(column.keys), pc.binary_length(column.items))
                else:
                    lengths = pc.binary_length(column.keys)
                # The keys of a slice begin where its first row does.
                ends = np.concatenate(([0], np.cumsum(pc.fill_null(lengths, 0).to_numpy(), dtype=np.int64)))
                size += np.diff(ends[offsets - (offsets[0] if len(column.keys) < offsets[-1] else 0)])
        if (most := int(count.max())) > self._attributes:
            raise LimitError("link", "attributes", most, self._attributes)
        if (longest := int(size.max())) > self._message_bytes:
            raise LimitError("link", "bytes of attributes", longest, self._message_bytes)

    def _check_payload(self, longest: int) -> None:
        if longest > self._message_bytes:
            raise LimitError("link", "payload", longest, self._message_bytes)


def check_origin(origin: str) -> None:
    """Refuse an origin that no publisher may name."""
    if origin not in PUBLISHED_ORIGINS:
        raise _unknown_origin(origin)


def _unknown_origin(origin: str) -> RefusedError:
    return RefusedError(
        "malformed", f"origin {origin!r}: expected one of {', '.join(sorted(PUBLISHED_ORIGINS))}"
    )


def _some_rows(body: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    rows = rows_of(body, schema)
    if not rows.num_rows:
        raise RefusedError("malformed", "there are no rows in the body")
    return rows


def _check_name(publisher: str) -> None:
    if publisher.startswith(HUBS_OWN_NAMES):
        raise RefusedError(
            "malformed", f"publisher {publisher[:64]!r}: names with {HUBS_OWN_NAMES}… are reserved for hubs"
        )


def _check_topic(longest: int) -> None:
    if longest > MAX_TOPIC:
        raise LimitError("link", "topic", longest, MAX_TOPIC)
