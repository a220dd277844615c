"""The rows that a request of the link brings in its body: within their bounds, or refused."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import LimitError, RefusedError
from headrace.hub.publishing import published
from headrace.message import Batch
from headrace.wire import link_requests as ask
from headrace.wire.link import PASSED, PUBLISHED, rows_of
from headrace.wire.plain_rows import parse_published

MAX_TOPIC: Final = 0xFFFF
"""Bytes of a topic: what the log keeps of one that a whole batch shares."""

ORIGINS: Final = frozenset({"tube", "spark", "fyrehose", "spp", "attribute", "replay"})
"""What a publisher may say its rows come from; a frontend passes on what came in by its own doors."""


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

    def _checked(self, body: memoryview) -> pa.RecordBatch:
        rows = _some_rows(body, PUBLISHED)
        _check_topic(pc.max(pc.binary_length(rows.column("topic"))).as_py())
        self._check_payload(pc.max(pc.binary_length(rows.column("payload"))).as_py())
        return rows

    def _check_payload(self, longest: int) -> None:
        if longest > self._message_bytes:
            raise LimitError("link", "payload", longest, self._message_bytes)


def passed(body: memoryview) -> Batch:
    """Rows that a frontend passes on; how long a message may be, it has judged."""
    rows = _some_rows(body, PASSED)
    for name, most in (("topic", MAX_TOPIC), ("publisher", MAX_TOPIC), ("origin", ask.MAX_NAME)):
        lengths = pc.min_max(pc.binary_length(rows.column(name))).as_py()
        if lengths["max"] > most:
            raise LimitError("link", name, lengths["max"], most)
        if name == "origin" and not lengths["min"]:
            raise RefusedError("malformed", "a row has no origin")
    return Batch.from_arrow(rows)


def check_origin(origin: str) -> None:
    """Refuse an origin that no publisher may name."""
    if origin not in ORIGINS:
        raise RefusedError("malformed", f"origin {origin!r}: expected one of {', '.join(sorted(ORIGINS))}")


def _some_rows(body: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    rows = rows_of(body, schema)
    if not rows.num_rows:
        raise RefusedError("malformed", "there are no rows in the body")
    return rows


def _check_topic(longest: int) -> None:
    if longest > MAX_TOPIC:
        raise LimitError("link", "topic", longest, MAX_TOPIC)
