"""What an operator looks at and changes: durable consumers, topics, connections and settings.

``docs/dashboard.md`` describes each request. All of them need the right ``admin`` (:mod:`headrace.web.access.rights`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from aiohttp import web

from headrace.errors import LimitError, StorageError
from headrace.hub.access.principal import Action
from headrace.hub.consumers import cursors
from headrace.hub.consumers.cursors import Consumer
from headrace.hub.consumers.dead_letters import ADDED, is_dead_letter
from headrace.hub.filters import Filter
from headrace.hub.topic_test import TopicTest
from headrace.log import Log
from headrace.message import Batch, merge
from headrace.net.server.process import Server
from headrace.web.access.rights import DOOR, check, principal_of
from headrace.web.answers import as_json, body_as, failed, published
from headrace.web.log_reading import in_thread
from headrace.web.publishing import committed, message_batch
from headrace.web.refusals import refusal

_CONSUMERS: Final = 500
_TOPICS: Final = 500
_CONNECTIONS: Final = 500
_READERS: Final = 8
"""Consumers that are named as readers of one topic."""

_LOOK_BACK: Final = 50_000
"""The newest messages from which topics are counted."""

_Position = int | str


class Move(msgspec.Struct, forbid_unknown_fields=True):
    """A consumer to change, and where it continues: a number, ``earliest`` or ``now``."""

    consumer: str
    to: _Position = "now"


class Redelivery(msgspec.Struct, forbid_unknown_fields=True):
    """A dead letter whose original is to be published again."""

    consumer: str
    seq: int


class Closing(msgspec.Struct, forbid_unknown_fields=True):
    """A connection to close, by the number that the list gives it."""

    connection: int


class Operations:
    """The handlers of one hub."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the handlers."""
        return [
            web.get("/api/consumers", self._list_consumers),
            web.post("/api/consumers/reset", self._reset),
            web.post("/api/consumers/remove", self._remove),
            web.post("/api/consumers/redeliver", self._redeliver),
            web.get("/api/topics", self._topics),
            web.get("/api/connections", self._connections),
            web.post("/api/connections/close", self._close),
            web.get("/api/settings", self._settings),
        ]

    # Consumers

    async def _list_consumers(self, request: web.Request) -> web.Response:
        contains, me = request.query.get("contains", ""), principal_of(request)
        mine = [each for each in self._server.consumers if me.may(Action.CONSUME, each.name)]
        found = islice((each for each in mine if contains in each.name), _CONSUMERS)
        return as_json({"consumers": [self._described(each) for each in found], "total": len(mine)})

    def _described(self, consumer: Consumer) -> dict[str, Any]:
        known, log = self._server.consumers, self._server.hub.log
        return {
            "consumer": consumer.name,
            "floor": consumer.floor,
            **cursors.lag_facts(known.lag(consumer, log.head)),
            "members": known.members(consumer.name),
            "dead": consumer.dead,
            "lost": consumer.lost,
            "terms": {**msgspec.structs.asdict(consumer.terms), "dead_letter": consumer.dead_letter},
        }

    async def _reset(self, request: web.Request) -> web.Response:
        asked = await body_as(request, Move, "not what is expected here")
        self._check_use(request, asked.consumer, "reset consumer")
        consumer, log = self._consumer(asked.consumer), self._server.hub.log
        match asked.to:
            case "earliest":
                seq = log.first
            case "now" | "latest":
                seq = log.head + 1
            case int(seq):
                pass
            case _:
                raise refusal(web.HTTPBadRequest, f"to={asked.to}: expected a number, earliest or now")
        if not log.first <= seq <= log.head + 1:
            raise refusal(web.HTTPConflict, f"to={seq}: messages {log.first} to {log.head} are kept")
        return await self._changed(cursors.reset(consumer.name, seq), consumer.name)

    async def _remove(self, request: web.Request) -> web.Response:
        asked = await body_as(request, Move, "not what is expected here")
        self._check_use(request, asked.consumer, "remove consumer")
        consumer = self._consumer(asked.consumer)
        return await self._changed(cursors.remove(consumer.name), consumer.name)

    async def _changed(self, entry: Batch, name: str) -> web.Response:
        result = await committed(self._server, entry)
        if isinstance(result, StorageError):
            return failed(result)
        left = self._server.consumers.get(name)
        return as_json({"consumer": None if left is None else self._described(left)})

    async def _redeliver(self, request: web.Request) -> web.Response:
        """Publish a dead letter's original once more, under its own topic: every reader of that gets it."""
        asked = await body_as(request, Redelivery, "not what is expected here")
        consumer, log = self._consumer(asked.consumer), self._server.hub.log
        if not log.first <= asked.seq <= log.head:
            raise refusal(web.HTTPNotFound, f"there is no message {asked.seq}")
        letter = next(
            (
                message
                for batch in await in_thread(self._server, log.read, asked.seq, asked.seq, at=asked.seq)
                for message in batch
            ),
            None,
        )
        if letter is None or not is_dead_letter(letter, consumer):
            raise refusal(web.HTTPConflict, f"message {asked.seq} is no dead letter of {consumer.name}")
        attributes = {name: value for name, value in letter.attributes.items() if name not in ADDED}
        topic = letter.attributes.get("dead.topic", "")
        check(self._server.access, request, Action.PUBLISH, topic)
        again = message_batch(request, topic, letter.payload, attributes, letter.numbers)
        return published(await committed(self._server, again))

    def _check_use(self, request: web.Request, name: str, action: str) -> None:
        """Refuse who may not use a consumer; note who changes it."""
        access = self._server.access
        check(access, request, Action.CONSUME, name)
        access.changed(principal_of(request), DOOR, str(request.remote), action, name)

    def _consumer(self, name: str) -> Consumer:
        consumer = self._server.consumers.get(name)
        if consumer is None:
            raise refusal(web.HTTPNotFound, f"there is no consumer {name!r}")
        return consumer

    # Topics

    async def _topics(self, request: web.Request) -> web.Response:
        log = self._server.hub.log
        first = max(log.first, log.head - _LOOK_BACK + 1)
        try:
            wanted = Filter(request.query.get("topic") or None)
        except LimitError as error:
            raise refusal(web.HTTPBadRequest, str(error)) from None
        found = await in_thread(self._server, topics_of, log, wanted, first, log.head, at=first)
        for topic in found["topics"]:
            readers = (each for each in self._server.consumers if _reads(each, topic["topic"]))
            topic["readers"] = [each.name for each in islice(readers, _READERS)]
        return as_json(found)

    # Connections

    async def _connections(self, request: web.Request) -> web.Response:
        contains = request.query.get("contains", "")
        now = asyncio.get_running_loop().time()
        every = [
            each
            for each in self._server.access.connections(now)
            if any(contains in text for text in (each.peer, each.door, each.principal))
        ]
        every.sort(key=lambda each: (-each.queued, each.connection))
        shown = [each._asdict() for each in every[:_CONNECTIONS]]
        return as_json({"connections": shown, "total": len(every)})

    async def _close(self, request: web.Request) -> web.Response:
        asked = await body_as(request, Closing, "not what is expected here")
        if not self._server.access.disconnect(asked.connection):
            raise refusal(web.HTTPNotFound, f"there is no connection {asked.connection}: it has ended")
        return as_json({"closed": asked.connection})

    # Settings

    async def _settings(self, _: web.Request) -> web.Response:
        settings = self._server.settings
        values = [
            {"setting": key, "value": value, "source": settings.source(key), "doc": settings.doc(key)}
            for key, value in settings.as_dict().items()
        ]
        return as_json({"settings": values})


def topics_of(log: Log, wanted: Filter, first: int, last: int) -> dict[str, Any]:
    """Count the topics of some messages, the most frequent first; for a thread."""
    counts: dict[str, list[int]] = {}
    began = ended = 0
    for rows in _rows(log, wanted, first, last):
        times = rows.column("time").cast(pa.int64())
        began, ended = began or times[0].as_py(), times[-1].as_py()
        table = pa.table(
            {
                "topic": rows.column("topic").cast(pa.string()),
                "size": pc.binary_length(rows.column("payload")),
                "seq": rows.column("seq"),
                "time": times,
            }
        )
        grouped = table.group_by("topic").aggregate(
            [("size", "count"), ("size", "sum"), ("seq", "max"), ("time", "max")]
        )
        for row in grouped.to_pylist():
            entry = counts.setdefault(row["topic"], [0, 0, 0, 0])
            entry[0] += row["size_count"]
            entry[1] += row["size_sum"]
            entry[2:] = row["seq_max"], row["time_max"]
    seconds = max((ended - began) / 1e6, 1.0)
    most = sorted(counts.items(), key=lambda item: -item[1][0])
    return {
        "topics": [
            {
                "topic": topic,
                "messages": count,
                "bytes": size,
                "rate": count / seconds,
                "newest": seq,
                "time": time,
            }
            for topic, (count, size, seq, time) in most[:_TOPICS]
        ],
        "total": len(counts),
        "first": first,
        "last": last,
        "seconds": seconds,
    }


def _rows(log: Log, wanted: Filter, first: int, last: int) -> Iterator[pa.RecordBatch]:
    gathered: list[Batch] = []
    for batch in log.scan(first, last) if first <= last else ():
        gathered.append(batch)
        if sum(map(len, gathered)) >= 4096:
            rows = wanted.apply(merge(gathered))
            gathered.clear()
            if rows.num_rows:
                yield rows
    if gathered and (rows := wanted.apply(merge(gathered))).num_rows:
        yield rows


def _reads(consumer: Consumer, topic: str) -> bool:
    """Return whether a consumer's terms choose a topic."""
    return topic != consumer.dead_letter and TopicTest(consumer.terms.topic).allows(topic)
