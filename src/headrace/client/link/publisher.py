"""Publishing over the link: many requests under way, each answered, none doubled.

A publisher has a name and numbers its rows. When a tube is lost, unacknowledged rows are sent again over the next one
under the same numbers, in the same order; the hub knows which of them it has. So a row is in the log once, in the order
it was published, however often the connection breaks.

Rows published within one turn of the event loop share a request: no message waits for a batch to fill. While some
requests are under way, rows gather until one is answered or there are enough for another. Unacknowledged bytes are
bounded by the window; past it :meth:`LinkPublisher.send` waits.

A name that is given may be used elsewhere too, by a second process or an earlier run that still lives. So it is opened
when it is first published under: its epoch goes with every request, over all tubes, and whoever opens the name next
fences this publisher. A name that is made up is nobody else's and needs none of this; if somebody has read it in the
log and uses it all the same, what comes next goes under another.

A request that is refused leaves a gap in the numbers, and the hub refuses what was under way after it too. Later rows
wait until all of that is answered, and start after the gap. If they went earlier and the tube were lost, the refused
rows would be sent again below a number that the hub has, and be taken for a repeat.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple, cast
from uuid import uuid4

import pyarrow as pa

from headrace.client.base import Attributes
from headrace.client.link.connection import LinkConnection
from headrace.client.link.requests import LinkSession, LostTubeError, check
from headrace.client.link.rows import Publishable, check_text, published_rows
from headrace.errors import ClosedError, HeadraceError, LimitError, RefusedError, UsageError
from headrace.wire.link.message import MAX_HEAD, MAX_MESSAGE, Buffer, LinkMessage, body_of
from headrace.wire.link.plain_rows import published_body
from headrace.wire.link.requests import PublisherRequest as AskPublisher
from headrace.wire.link.requests import PublishRequest

WINDOW: Final = 8 << 20
_MAX_REQUESTS: Final = 256
"""Fewer than the requests that a hub allows open on one tube."""

_REQUEST_BYTES: Final = 256 << 10
"""Bytes of rows in one request, about."""

_EAGER_BYTES: Final = 192 << 10
"""Bytes that are sent before the end of the turn: the hub can already work on them."""

_UNDER_WAY: Final = 4
"""Requests that keep the connection busy both ways: with as many unanswered, further rows gather."""

_ROW_COST: Final = 32
"""Bytes of a row beside its payload, about."""


class Acknowledged(NamedTuple):
    """The sequence numbers of the first and the last row; ``None`` if a repeat came so late that they are forgotten.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     link.publish([b"hello", b"world"])
    Acknowledged(first=1, last=2)
    """

    first: int | None
    last: int | None

    @property
    def kept(self) -> bool:
        """Whether a frontend keeps the messages, which have no numbers yet: see :class:`Kept`."""
        return False


class Kept(Acknowledged):
    """The acknowledgement of a frontend that has lost its upstream hub and stores what it is sent.

    The messages are safe on the frontend's disk and will be in the log once, in order, under numbers that nobody knows
    yet. A publisher that has to know that a message is in the log waits until it reads it there.

    >>> Kept(None, None).kept
    True
    """

    __slots__ = ()

    @property
    def kept(self) -> bool:
        """Whether a frontend keeps the messages: it does."""
        return True


Ack = asyncio.Future[Acknowledged]


class _Group:
    """Rows that go out in one request, and the futures of their acknowledgements."""

    __slots__ = ("acks", "payloads", "rows", "size", "topic")

    def __init__(self, topic: str | None) -> None:
        self.topic = topic
        """The topic that all payloads share; ``None`` if :attr:`rows` have their own."""
        self.payloads: list[bytes] = []
        self.rows: list[pa.RecordBatch] = []
        self.acks: list[tuple[int, Ack]] = []
        """For each publish in it, how many rows it has, and its future."""
        self.size = 0

    def body(self) -> Buffer:
        if self.topic is not None:
            return published_body(self.payloads, self.topic)
        return body_of(self.rows[0] if len(self.rows) == 1 else pa.concat_batches(self.rows))


class _Sent:
    """A request that is not acknowledged yet."""

    __slots__ = ("acks", "body", "count", "number", "since", "size")

    def __init__(self, number: int, group: _Group) -> None:
        self.number = number
        self.since: int | None = None
        """Once it was sent: a position that the log had reached before."""
        self.acks = group.acks
        self.count = sum(count for count, _ in group.acks)
        self.size = group.size
        self.body = group.body()
        if len(self.body) > MAX_MESSAGE - MAX_HEAD:
            raise LimitError("link", "rows of one publish", len(self.body), MAX_MESSAGE - MAX_HEAD)

    def settle(self, message: LinkMessage) -> None:
        first, last = message.head.get("first"), message.head.get("last")
        if message.head.get("kept") is True:
            for _, ack in self.acks:
                if not ack.done():
                    ack.set_result(Kept(None, None))
            return
        if first is None or last is None or last - first + 1 != self.count:
            # Some rows were in the log already, elsewhere: only for a single publish are its places known.
            place = Acknowledged(first, last) if len(self.acks) == 1 else Acknowledged(None, None)
            for _, ack in self.acks:
                if not ack.done():
                    ack.set_result(place)
            return
        for count, ack in self.acks:
            if not ack.done():
                ack.set_result(Acknowledged(first, first + count - 1))
            first += count

    def fail(self, error: Exception) -> None:
        for _, ack in self.acks:
            _fail(ack, error)


class LinkPublisher:
    """A publisher of one client; :meth:`headrace.LinkClient.publisher` makes one.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     publisher = link.publisher("orders")
    ...     acks = [publisher.send(b"%d" % number) for number in range(3)]
    ...     publisher.publish(b"last"), [ack.result().first for ack in acks]
    (Acknowledged(first=4, last=4), [1, 2, 3])
    """

    def __init__(self, connection: LinkConnection, name: str | None, window: int, origin: str) -> None:
        if window < 1:
            raise UsageError(f"window {window}: expected 1 or more bytes")
        check_text("a publisher's name", name or "")
        check_text("an origin", origin)
        self.name = name or uuid4().hex
        self._connection = connection
        self._window = window
        self._origin = origin
        # A made-up name is new; for a given one, the hub knows the last number, and gives an epoch.
        self._epoch: int | None = None
        self._holder = uuid4().hex
        self._reopen = False
        self._made_up = not name
        self._rename = False
        self._position = 0
        """A position that the hub's log has reached."""
        self._number: int | None = None if name else 0
        self._numbering = asyncio.Lock()
        self._waiting: list[_Group] = []
        self._unacknowledged: deque[_Sent] = deque()
        self._size = 0
        self._gathered = 0
        self._session: LinkSession | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._flush_due = False
        self._refused = False
        self._moved = asyncio.Event()

    @property
    def unacknowledged(self) -> int:
        """Bytes that are published and not acknowledged yet, about."""
        return self._size

    async def publish(
        self,
        payload: Publishable,
        *,
        topic: str = "",
        attributes: Attributes | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> Acknowledged:
        """Publish one or many messages; returns their sequence numbers once they are committed."""
        return await (await self.send(payload, topic=topic, attributes=attributes, numbers=numbers))

    async def send(
        self,
        payload: Publishable,
        *,
        topic: str = "",
        attributes: Attributes | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> Ack:
        """Publish ahead of the acknowledgement: returns a future of it, once the messages are on their way.

        Waits while the window is full. Cancelled while it waits, it has published nothing.
        """
        rows = payload
        self._connection.check()
        check_text("a topic", topic)
        batch: pa.RecordBatch | None = None
        if type(rows) is bytes and not attributes and not numbers:
            count, size = 1, len(rows) + _ROW_COST
        elif type(rows) is list and not attributes and not numbers and set(map(type, rows)) == {bytes}:
            count = len(rows)
            size = sum(map(len, rows)) + count * _ROW_COST
        else:
            batch = published_rows(rows, topic, attributes, numbers)
            count, size = batch.num_rows, batch.nbytes
            if not count:
                raise UsageError("there is nothing to publish")
        while self._size >= self._window or len(self._unacknowledged) >= _MAX_REQUESTS:
            self._moved.clear()
            await self._moved.wait()
            self._connection.check()
        if self._number is None or self._reopen:
            await self._open()
        ack: Ack = asyncio.get_running_loop().create_future()
        group = self._group(None if batch is not None else topic, size)
        if batch is not None:
            group.rows.append(batch)
        elif isinstance(rows, bytes):
            group.payloads.append(rows)
        else:
            group.payloads += cast("list[bytes]", rows)
        group.acks.append((count, ack))
        group.size += size
        self._size += size
        self._gathered += size
        if self._gathered >= _EAGER_BYTES:
            self._send_waiting()
        elif not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._end_turn)
        return ack

    def _group(self, topic: str | None, size: int) -> _Group:
        """Return the group for more rows: the last one, or a new one if they have another topic or do not fit."""
        if self._waiting:
            last = self._waiting[-1]
            if last.topic == topic and last.size + size <= _REQUEST_BYTES:
                return last
        self._waiting.append(_Group(topic))
        return self._waiting[-1]

    async def flush(self) -> None:
        """Wait until everything published so far is acknowledged, or has failed."""
        while self._size:
            self._moved.clear()
            await self._moved.wait()

    def end(self, error: HeadraceError | None = None) -> None:
        """Stop, and fail all unacknowledged publishes."""
        error = error or ClosedError("the client is closed")
        self._session = None  # Nobody waits for the answers that are still to come.
        if self._renewing is not None:
            self._renewing.cancel()
        for group in self._waiting:
            for _, ack in group.acks:
                _fail(ack, error)
        self._waiting.clear()
        while self._unacknowledged:
            self._unacknowledged.popleft().fail(error)
        self._size = 0
        self._moved.set()

    async def _open(self) -> None:
        async with self._numbering:
            if self._reopen:
                # What is under way is refused like what was refused first; then there is a new beginning.
                await self.flush()
            if self._number is None or self._reopen:
                answer = await self._connection.call(
                    lambda n: AskPublisher(id=n, publisher=self.name, open=self._holder)
                )
                newest = answer.head.get("newest")
                self._epoch = answer.head.get("epoch")
                self._number = 0 if newest is None else newest + 1
                self._reopen = False

    def _end_turn(self) -> None:
        self._flush_due = False
        if len(self._unacknowledged) < _UNDER_WAY:
            self._send_waiting()

    def _send_waiting(self) -> None:
        if self._refused and self._unacknowledged:
            return
        self._refused = False
        if self._rename:
            # Not before all is answered: what is sent again goes under the name that it had.
            self.name, self._number, self._rename = uuid4().hex, 0, False
        self._gathered = 0
        waiting, self._waiting = self._waiting, []
        for group in waiting:
            self._send_rows(group)

    def _send_rows(self, group: _Group) -> None:
        try:
            sent = _Sent(self._number or 0, group)
        except Exception as error:  # noqa: BLE001 -- fails these rows only
            for _, ack in group.acks:
                _fail(ack, error)
            self._release(group.size)
            return
        self._number = sent.number + sent.count
        self._unacknowledged.append(sent)
        if self._renewing is None:
            if self._session is None or self._session.lost:
                self._renew()
            else:
                self._send(self._session, sent, follows=len(self._unacknowledged) > 1)

    def _send(self, session: LinkSession, sent: _Sent, *, follows: bool) -> None:
        retry = sent.since
        if retry is None:
            sent.since = max(self._position, session.position)
        request = PublishRequest(
            id=session.next_id(),
            publisher=self.name,
            number=sent.number,
            follows=follows,
            origin=self._origin,
            epoch=self._epoch,
            retry=retry,
        )
        if not session.ask(request, partial(self._answered, session, sent), sent.body):
            asyncio.get_running_loop().call_soon(self._answered, session, sent, None)

    def _answered(self, session: LinkSession, sent: _Sent, message: LinkMessage | None) -> None:
        if session is not self._session:
            return
        try:
            if message is None:
                raise LostTubeError
            check(message)
        except LostTubeError:
            self._renew()
            return
        except HeadraceError as error:
            self._note_refusal(error)
            sent.fail(error)
        else:
            self._position = message.head.get("op") or self._position
            sent.settle(message)
        self._unacknowledged.remove(sent)
        self._release(sent.size)
        if self._waiting and not self._flush_due:
            self._send_waiting()

    def _note_refusal(self, error: HeadraceError) -> None:
        code = error.code if isinstance(error, RefusedError) else ""
        # Behind another refusal a conflict is only its consequence.
        taken = code in ("conflict", "fenced") and not self._refused
        self._refused = True
        if self._made_up:
            self._rename = self._rename or taken
        elif self._epoch is not None and (code == "unknown" or (taken and code == "conflict")):
            # The hub has forgotten the name, or has other numbers of it. What comes next opens it again.
            self._reopen = True

    def _renew(self) -> None:
        """Send all unacknowledged rows again over the next session."""
        if self._renewing is None:
            self._session = None
            self._renewing = asyncio.ensure_future(self._send_again())

    async def _send_again(self) -> None:
        try:
            session = await self._connection.session()
        except HeadraceError as error:
            self._renewing = None
            self.end(error)
            return
        self._renewing = None
        self._session = session
        for place, sent in enumerate(tuple(self._unacknowledged)):
            self._send(session, sent, follows=place > 0)

    def _release(self, size: int) -> None:
        self._size -= size
        self._moved.set()


def _fail(ack: Ack, error: Exception) -> None:
    if not ack.done():
        ack.set_exception(error)
        # Mark it as retrieved: nobody has to await each of a thousand futures.
        ack.exception()
