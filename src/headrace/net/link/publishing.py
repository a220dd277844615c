"""Publishing over the link: a client's own rows, what a frontend relays, and the rows of stages.

Rows come in a request's body and are checked against their bounds. The answer comes once they are committed; until then
they count against what the connection may have under way. A repeat is answered like the first try
(:mod:`headrace.hub.publishing.idempotent`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError, LimitError, RefusedError
from headrace.hub.publishing.idempotent import IdempotentPublishing, published
from headrace.hub.publishing.passed import column_texts, number_range, unpack_passed
from headrace.hub.sequencer import Claim, Opened, Opening, Published, WhenPublished
from headrace.hub.services.objects import POLICY
from headrace.log import Log
from headrace.message import Batch
from headrace.net.link.connection import LinkConnection
from headrace.net.link.rights import LinkRights
from headrace.protocols import ORIGINS, PUBLISHED_ORIGINS
from headrace.wire.link import requests as ask
from headrace.wire.link.message import PUBLISHED, rows_of
from headrace.wire.link.plain_rows import parse_published

MAX_TOPIC: Final = 0xFFFF
"""Most bytes of a topic: the log's limit for one that a whole batch shares."""


MAX_ENTRY_TOPIC: Final = 2048
"""Most bytes of the topic of a log entry: the name of a part of the state, and the longest name in any of them."""


class LinkPublishing:
    """The publish requests of one hub's link."""

    def __init__(self, publishing: IdempotentPublishing, bodies: RequestBodies, rights: LinkRights) -> None:
        self._publishing = publishing
        self._bodies = bodies
        self._rights = rights

    def publish(self, connection: LinkConnection, request: ask.PublishRequest, body: memoryview) -> None:
        """Publish rows."""
        check_origin(request.origin)
        batch = self._bodies.published(
            body, origin=request.origin, publisher=request.publisher or connection.peer, number=request.number
        )
        self._rights.check_topics(connection, [batch])
        if request.number is not None and not request.publisher:
            raise RefusedError("malformed", "a number is a publisher's: say whose it is")
        connection.account.receive(0, len(batch), asyncio.get_running_loop().time())
        reply = _when_published(connection, request.id, len(body), int)
        claim = Claim(request.epoch, request.client or connection.owner, request.retry)
        self._publishing.publish(batch, reply, follows=request.follows, claim=claim)

    def pass_on(self, connection: LinkConnection, request: ask.PassRequest, body: memoryview) -> None:
        """Publish what a frontend relays, and its mark after that."""
        batches = self._bodies.passed(body, request.rows)
        reply = _when_published(connection, request.id, len(body), bool)
        self._publishing.pass_on(request.frontend, request.number, batches, reply, retry=request.retry)

    def newest(self, connection: LinkConnection, request: ask.PublisherRequest, _body: memoryview) -> None:
        """Answer a publisher's newest number; or open its name, and answer its epoch too."""
        if request.open is not None:
            self._open(connection, request, request.open)
            return

        def reply(newest: int | HeadraceError | None) -> None:
            if isinstance(newest, HeadraceError):
                connection.fail(request.id, newest)
            else:
                connection.answer(request.id, newest=newest)

        self._publishing.newest(request.publisher, reply)

    def _open(self, connection: LinkConnection, request: ask.PublisherRequest, holder: str) -> None:
        def reply(opened: Opened | HeadraceError) -> None:
            if isinstance(opened, HeadraceError):
                connection.fail(request.id, opened)
            else:
                connection.answer(request.id, epoch=opened.epoch, newest=opened.newest)

        client = request.client or connection.owner
        wanted = Opening(holder, client, request.by or connection.describe())
        self._publishing.open(request.publisher, wanted, reply)


def _when_published(
    connection: LinkConnection, request_id: int, size: int, count: Callable[[int], int]
) -> WhenPublished:
    """Count rows as under way; the result is called with their place, and answers the request."""
    connection.uncommitted(size)

    def reply(result: Published | HeadraceError) -> None:
        connection.uncommitted(-size)
        if isinstance(result, HeadraceError):
            connection.fail(request_id, result)
        else:
            first, last, repeated, op = result
            connection.answer(request_id, first=first, last=last, repeated=count(repeated), op=op)

    return reply


class RequestBodies:
    """Reads the rows in request bodies, and checks their limits."""

    def __init__(self, log: Log, message_bytes: int, attributes: int) -> None:
        self._log = log
        self._message_bytes = message_bytes
        self._attributes = attributes

    def published(
        self, body: memoryview, *, origin: str = "", publisher: str = "", number: int | None = None
    ) -> Batch:
        """Read rows to publish or stage."""
        plain = parse_published(body)
        if plain is None:
            rows = _some_rows(body, PUBLISHED)
            _check_topic(pc.max(pc.binary_length(rows.column("topic"))).as_py())
            self._check_payload(pc.max(pc.binary_length(rows.column("payload"))).as_py())
            self._check_attributes(rows)
            return published(rows, origin=origin, publisher=publisher, number=number)
        topic, run = plain
        _check_topic(len(topic.encode()))
        batch = Batch(run, origin=origin, publisher=publisher, number=number, topic=topic)
        # If all payloads together are within the limit, each is.
        if batch.run.size > self._message_bytes:
            self._check_payload(int(batch.run.lengths.max()))
        return batch

    def passed(self, body: memoryview, rows: int) -> list[Batch]:
        """Read messages and log entries that a frontend relays, within the bounds of what is published.

        Only log entries may have longer payloads than messages: they describe state.
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
                raise RefusedError("malformed", f"origin {origin[:64]!r}: no door of a frontend's")
        topics = column_texts(batch, "topic")
        longest = max(len(topic.encode()) for topic in topics)
        _check_topic(longest)
        if batch.is_entries and longest > MAX_ENTRY_TOPIC:
            raise LimitError("link", "name of an entry", longest, MAX_ENTRY_TOPIC)
        if batch.is_entries and POLICY in topics:
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
        """Refuse a message with too many attributes, or too long ones."""
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
        raise RefusedError(
            "malformed", f"origin {origin!r}: expected one of {', '.join(sorted(PUBLISHED_ORIGINS))}"
        )


def _some_rows(body: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    rows = rows_of(body, schema)
    if not rows.num_rows:
        raise RefusedError("malformed", "there are no rows in the body")
    return rows


def _check_topic(longest: int) -> None:
    if longest > MAX_TOPIC:
        raise LimitError("link", "topic", longest, MAX_TOPIC)
