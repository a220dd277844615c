"""The rows that a request of the link brings in its body: within their bounds, or refused."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import LimitError, RefusedError
from headrace.hub.publishing.idempotent import published
from headrace.hub.services.objects import POLICY
from headrace.message import NOT_A_MESSAGE, Batch
from headrace.protocols import ORIGINS, PUBLISHED_ORIGINS
from headrace.wire.link import requests as ask
from headrace.wire.link.message import PASSED, PUBLISHED, rows_of
from headrace.wire.link.plain_rows import parse_published

MAX_TOPIC: Final = 0xFFFF
"""Bytes of a topic: what the log keeps of one that a whole batch shares."""


class Bodies:
    """Reads bodies for a hub whose messages have at most so many bytes."""

    def __init__(self, message_bytes: int) -> None:
        self._message_bytes = message_bytes

    def published(
        self, body: memoryview, *, origin: str = "", publisher: str = "", number: int | None = None
    ) -> Batch:
        """Rows to be published, or staged."""
        plain = parse_published(body)
        if plain is None:
            return published(self._checked(body), origin=origin, publisher=publisher, number=number)
        topic, run = plain
        _check_topic(len(topic.encode()))
        batch = Batch(run, origin=origin, publisher=publisher, number=number, topic=topic)
        # Where all together are not too long, none is.
        if batch.run.size > self._message_bytes:
            self._check_payload(int(batch.run.lengths.max()))
        return batch

    def passed(self, body: memoryview) -> Batch:
        """Rows that a frontend passes on, within the bounds of what is published.

        Only payloads of entries may be longer than a message: they are as long as what they say of the hub's state.
        """
        rows = _some_rows(body, PASSED)
        origins = rows.column("origin")
        for origin in origins.unique().to_pylist():
            if origin not in ORIGINS:
                raise RefusedError("malformed", f"origin {origin[:64]!r}: no door of a frontend's")
        topics = rows.column("topic")
        _check_topic(pc.max(pc.binary_length(topics)).as_py())
        if pc.any(pc.and_(pc.equal(topics, POLICY), pc.equal(origins, NOT_A_MESSAGE))).as_py():
            raise RefusedError("malformed", "which services there may be is the word of the hub that numbers")
        longest = pc.max(pc.utf8_length(rows.column("publisher"))).as_py()
        if longest > ask.MAX_NAME:
            raise LimitError("link", "publisher", longest, ask.MAX_NAME)
        numbers = pc.min_max(rows.column("number")).as_py()
        if numbers["min"] is not None and not 0 <= numbers["min"] <= numbers["max"] <= ask.MAX_NUMBER:
            wrong = numbers["min"] if numbers["min"] < 0 else numbers["max"]
            raise LimitError("link", "number", wrong, ask.MAX_NUMBER)
        lengths = pc.binary_length(rows.column("payload"))
        self._check_payload(pc.max(lengths.filter(pc.not_equal(origins, NOT_A_MESSAGE))).as_py() or 0)
        return Batch.from_arrow(rows)

    def _checked(self, body: memoryview) -> pa.RecordBatch:
        rows = _some_rows(body, PUBLISHED)
        _check_topic(pc.max(pc.binary_length(rows.column("topic"))).as_py())
        self._check_payload(pc.max(pc.binary_length(rows.column("payload"))).as_py())
        return rows

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
