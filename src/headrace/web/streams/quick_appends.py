"""The quick way for plain appends: requests that arrive in one piece, without special headers, bypass aiohttp.

In aiohttp, a request costs several times as much as its append, and most appends are alike. So a ``POST`` to a stream
or to ``/v1/publish/`` is taken from the connection's bytes if it is complete, has a plain path, and only has headers of
:data:`_PLAIN`. If this module is not sure of a request, it leaves it to aiohttp untouched, so every refusal and every
special case is handled in one place. An answer has the same headers either way.

Aiohttp uses the connection, too. A request is taken here only while aiohttp waits for the next one and has no part of
it, which is certain if it was given only complete requests so far. While a request is being answered here, later bytes
wait.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from time import time
from typing import Final, NamedTuple

from aiohttp import web

from headrace.errors import StorageError
from headrace.hub.access.accounts import Account
from headrace.hub.access.principal import Action
from headrace.hub.sequencer import is_kept
from headrace.message import Batch, Run
from headrace.net.server.process import Server
from headrace.protocols import HTTP
from headrace.web.access.check import HEADERS, is_own_name, stream_headers
from headrace.web.access.identification import Identification
from headrace.web.answers import commit_seconds, published, too_late
from headrace.web.connections import Connections, HttpProtocol, OpenConnection
from headrace.web.streams.appending import PUBLISH, Appending
from headrace.web.streams.offsets import write_offset
from headrace.web.streams.receiving import not_stored
from headrace.web.streams.requests import MAX_TOPIC, PREFIX

MAX_HEAD: Final = 2048
"""Most bytes of a plain request before its body."""

_PLAIN: Final = frozenset(
    {b"host", b"content-type", b"content-length", b"user-agent", b"accept", b"accept-encoding", b"connection"}
)
"""The headers that a plain request may have, each once."""

_NAME: Final = rb"[A-Za-z0-9_~-][A-Za-z0-9_~.-]*"
_REQUEST: Final = re.compile(rb"POST (/v1/(?:stream|publish)/)(%b(?:/%b)*) HTTP/1\.1" % (_NAME, _NAME))
_HEADER: Final = re.compile(rb"([A-Za-z-]+): ?([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")
_LENGTH: Final = re.compile(rb"0|[1-9][0-9]{0,8}")
_HOST: Final = re.compile(rb"([A-Za-z0-9.-]+)(?::[0-9]{1,5})?")

_HEADS: Final = 512
"""Most parsed heads that are remembered, since a client's requests have the same head again and again."""

_IDLE_SECONDS: Final = 15.0

_APPENDED: Final = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: %b\r\nCache-Control: no-store\r\n%b"
_CLOSED: Final = b"Stream-Closed: true\r\n"
_PUBLISHED: Final = b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Type: application/json\r\n"


class PlainHead(NamedTuple):
    """A plain request without its body."""

    prefix: str
    topic: str
    host: str
    content_type: str | None
    length: int


@lru_cache(_HEADS)
def parse_head(head: bytes) -> PlainHead | None:
    """Parse a request's head without the empty line at its end; return ``None`` if it is not plain.

    >>> parse_head(b"POST /v1/stream/a/b HTTP/1.1\\r\\nHost: localhost:8470\\r\\nContent-Length: 2")
    PlainHead(prefix='/v1/stream/', topic='a/b', host='localhost', content_type=None, length=2)
    >>> parse_head(b"POST /v1/stream/a/b HTTP/1.1\\r\\nHost: localhost\\r\\nTransfer-Encoding: chunked")
    """
    first, *lines = head.split(b"\r\n")
    request = _REQUEST.fullmatch(first)
    if request is None or len(request[2]) > MAX_TOPIC:
        return None
    found: dict[bytes, bytes] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None or (name := header[1].lower()) not in _PLAIN or name in found:
            return None
        found[name] = header[2]
    host, length = _HOST.fullmatch(found.get(b"host", b"")), found.get(b"content-length", b"")
    if host is None or _LENGTH.fullmatch(length) is None:
        return None
    if found.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    kind = found.get(b"content-type")
    content_type = None if kind is None else kind.decode()
    return PlainHead(request[1].decode(), request[2].decode(), host[1].decode(), content_type, int(length))


def is_whole(data: bytes) -> bool:
    """Return whether bytes are one complete request of any kind."""
    end = data.find(b"\r\n\r\n") + 4
    if end < 4:
        return False
    head = data[:end].lower()
    if b"\r\ntransfer-encoding" in head or b"\r\nupgrade" in head or b"\r\nexpect" in head:
        return False
    count = head.count(b"\r\ncontent-length:")
    if not count:
        return len(data) == end
    length = re.search(rb"\r\ncontent-length: ?([0-9]{1,9})\r\n", head)
    return count == 1 and length is not None and len(data) == end + int(length[1])


class QuickAppends:
    """Plain appends at one hub's door."""

    def __init__(
        self, server: Server, connections: Connections, appending: Appending, identification: Identification
    ) -> None:
        self.server = server
        self.connections = connections
        self.appending = appending
        self.identification = identification
        self.stopping = False
        self.under_way: set[_Append] = set()
        self._left = asyncio.Event()
        self._for: tuple[object, int] = (None, 0)
        self._lines = b""

    def on(self, handler: HttpProtocol, transport: asyncio.Transport, peer: str) -> AppendShortcut:
        """Return the shortcut for a new connection."""
        return AppendShortcut(self, handler, transport, peer)

    async def finish(self) -> None:
        """Take no more requests, and wait until all are answered."""
        self.stopping = True
        while self.under_way:
            self._left.clear()
            await self._left.wait()

    def ended(self, append: _Append) -> None:
        """Note that a request was answered, or that its client is gone."""
        self.under_way.discard(append)
        self._left.set()

    def lines(self) -> bytes:
        """Return the headers that all answers have; they change with the settings and every second."""
        origins, now = self.server.settings.auth.origins, int(time())
        if self._for != (origins, now):
            headers = {**HEADERS, **stream_headers(None, origins), "Date": formatdate(now, usegmt=True)}
            self._for, self._lines = (origins, now), _header_lines(headers)
        return self._lines


class AppendShortcut:
    """The plain appends of one connection."""

    def __init__(
        self, quick: QuickAppends, handler: HttpProtocol, transport: asyncio.Transport, peer: str
    ) -> None:
        self.handler = handler
        self.transport = transport
        self._quick = quick
        self._peer = peer
        self._usable = peer not in quick.server.entrance.proxies
        """Whether aiohttp got only complete requests so far, and the peer is not a proxy."""
        self._append: _Append | None = None
        self._waiting = bytearray()
        """Bytes that arrived while a request was being answered."""

    def take(self, data: bytes) -> bool:
        """Take received bytes; return ``False`` to leave them to aiohttp."""
        if self._append is not None:
            self._waiting += data
            self.transport.pause_reading()
            return True
        if not self._usable:
            return False
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
        head = parse_head(data[:end]) if end > 0 else None
        if head is None or len(data) != end + 4 + head.length or not self._begin(head, data[end + 4 :]):
            self._usable = is_whole(data)
            return False
        return True

    def lost(self) -> None:
        """Note that the connection is gone."""
        if self._append is not None:
            self._append.end()

    def answered(self) -> None:
        """Continue with bytes that arrived in the meantime."""
        self._append = None
        if self._waiting:
            data, self._waiting = bytes(self._waiting), bytearray()
            self.transport.resume_reading()
            if not self.take(data):
                self.handler.data_received(data)

    def _begin(self, head: PlainHead, body: bytes) -> bool:
        """Submit an append; return ``False`` if aiohttp has to answer it."""
        quick, server = self._quick, self._quick.server
        if quick.stopping or not self.handler.idle or self.transport.get_write_buffer_size():
            return False
        if not is_own_name(self.transport, head.host) or len(body) > server.settings.limits.message_bytes:
            return False
        principal = quick.identification.by_certificate(self.transport)
        if server.settings.auth.required and not principal.known:
            return False
        if principal.verdict(Action.PUBLISH, head.topic) is not None:
            return False
        now = asyncio.get_running_loop().time()
        account = server.accounts.of(principal, self._peer)
        if account.wait(now) > 0:
            return False
        if head.prefix == PREFIX and not quick.appending.takes_plainly(head.topic, head.content_type, body):
            return False
        connection = quick.connections.begin(self.handler)
        if connection is None:
            return False
        account.receive(len(body), 1, now)
        self.handler.stay(commit_seconds(server) + _IDLE_SECONDS)
        self._append = append = _Append(quick, self, connection, account, head)
        batch = Batch(Run.one(body), origin=HTTP, publisher=self._peer, topic=head.topic)
        server.hub.submit(batch, append.done)
        return True


class _Append:
    """An append that is not answered yet."""

    __slots__ = ("_account", "_connection", "_head", "_late", "_quick", "_shortcut")

    def __init__(
        self,
        quick: QuickAppends,
        shortcut: AppendShortcut,
        connection: OpenConnection,
        account: Account,
        head: PlainHead,
    ) -> None:
        self._quick = quick
        self._shortcut: AppendShortcut | None = shortcut
        self._connection = connection
        self._account = account
        self._head = head
        seconds = commit_seconds(quick.server)
        self._late = asyncio.get_running_loop().call_later(seconds, self._is_late, seconds)
        quick.under_way.add(self)

    def done(self, result: Batch | StorageError) -> None:
        """Answer with the append's outcome."""
        if self._shortcut is None:
            return
        if isinstance(result, StorageError):
            self._answer(*_parts(not_stored(result)))
        elif is_kept(result):
            self._answer(*_parts(published(result)))
        elif self._head.prefix == PUBLISH:
            self._answer(_PUBLISHED, b'{"seq":%d}\n' % result.last)
        else:
            try:
                stream = self._quick.appending.plainly_appended(self._head.topic, result)
            except web.HTTPError as refused:
                self._answer(*_parts(refused))
            else:
                self._answer(
                    _APPENDED % (write_offset(stream.tail).encode(), _CLOSED if stream.closed else b"")
                )

    def _is_late(self, seconds: float) -> None:
        self._answer(*_parts(too_late(seconds)))

    def _answer(self, head: bytes, body: bytes | None = None) -> None:
        """Send an answer: its own headers, the common ones, and the body."""
        shortcut = self.end()
        if shortcut is None:
            return
        common, content = self._quick.lines(), b""
        if body is not None:
            content = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            self._account.send(len(body), asyncio.get_running_loop().time())
        shortcut.transport.write(b"".join((head, common, content or b"\r\n")))
        shortcut.answered()

    def end(self) -> AppendShortcut | None:
        """Stop waiting for the outcome; return the shortcut that waits for the answer, if it still does."""
        shortcut, self._shortcut = self._shortcut, None
        if shortcut is not None:
            self._late.cancel()
            self._quick.connections.end(shortcut.handler, self._connection)
            self._quick.ended(self)
        return shortcut


def _parts(response: web.Response) -> tuple[bytes, bytes]:
    """Return the head of one of aiohttp's answers, and its body."""
    first = f"HTTP/1.1 {response.status} {response.reason}\r\n".encode()
    body = response.body
    return first + _header_lines(response.headers), body if isinstance(body, bytes) else b""


def _header_lines(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
