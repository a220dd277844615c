"""A TCP connection to a connector: commands and their answers, heartbeats, pushes.

A connector answers commands in order, and ``sub`` not at all. So a heartbeat goes out behind each ``sub``: its answer
says that the ``sub`` was taken, and a command error in its place that it was not.

Heartbeats go out at intervals as long as the stream lives. A connector of which nothing has come for an interval and
the time it has to answer is lost. While nothing is read, because there is no room for pushes, its silence is our doing
and says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, cast

from headrace.client.reconnect import reason_of
from headrace.config import Address
from headrace.errors import RefusedError, UnreachableError, WireError
from headrace.wire.sdk.auth import Auth, client_id_text
from headrace.wire.sdk.commands import (
    AuthSuccess,
    ClientDecoder,
    Command,
    CommandError,
    ConnectorFrame,
    Heartbeat,
    HeartbeatReply,
    Push,
    Subscribe,
    serialize,
)
from headrace.wire.sdk.predicate import Predicate

_MOST_UNANSWERED: Final = 256
"""Heartbeats that may wait for an answer; more are not sent. They wait only while nothing is read."""

_WITHDRAW_SECONDS: Final = 2.0
"""How long closing waits for the hub to take a withdrawal: without it the subscription lasts a little longer there."""

Predicates = Mapping[str, Predicate]


class Sink(Protocol):
    """Who takes what a stream brings."""

    def pushed(self, stream: SdkStream, push: Push) -> None:
        """A message has come."""

    def refused(self, stream: SdkStream, error: RefusedError) -> None:
        """The connector does not take a command for whose answer nobody waits any more."""

    def lost(self, stream: SdkStream, reason: str) -> None:
        """The connection has ended, and not by our :meth:`SdkStream.close` or :meth:`SdkStream.abort`."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """How often the connector hears of us, and how long its answer may take, in seconds."""

    interval: float
    patience: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """A command that is not answered yet, and who waits for the answer."""

    what: Literal["auth", "sub", "hb"]
    answer: asyncio.Future[None] | None = None


class SdkStream(asyncio.Protocol):
    """One connection, from :meth:`open` on."""

    def __init__(self, address: Address, sink: Sink, pulse: Pulse, *, withdraws: bool = False) -> None:
        self.withdraws = withdraws
        """Whether closing withdraws the subscription."""
        self.subscribed: Predicates | None = None
        """What was last subscribed here."""
        self.ended: str | None = None
        self._address = address
        self._sink: Sink | None = sink
        self._pulse = pulse
        self._loop = asyncio.get_running_loop()
        self._decoder = ClientDecoder()
        self._asked: deque[_Asked] = deque()
        self._reads = True
        self._heard = self._loop.time()
        self._beat: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    async def open(self) -> None:
        """Connect; ``OSError`` if nobody listens there."""
        await self._loop.create_connection(lambda: self, self._address.host, self._address.port)

    async def authenticate(self, auth: Auth) -> None:
        """Say who this is; :class:`~headrace.errors.RefusedError` if that is not accepted."""
        self._client = client_id_text(auth.client_id)
        await self._ask("auth", auth)

    async def subscribe(self, predicates: Predicates) -> None:
        """Subscribe; return when that is accepted, or when nothing is read and so nobody can know.

        :class:`~headrace.errors.UnreachableError` if the connection was lost first.
        """
        self.subscribed = predicates
        await self._ask("sub", Subscribe(predicates), Heartbeat())

    def read(self, wanted: bool, /) -> None:
        """Go on reading, or leave the rest with the hub."""
        if wanted == self._reads or self._transport is None or self._transport.is_closing():
            return
        self._reads = wanted
        if wanted:
            self._heard = self._loop.time()
            self._transport.resume_reading()
            return
        self._transport.pause_reading()
        for asked in self._asked:
            # Whoever takes the messages may be the one who waits here.
            if asked.what == "sub" and asked.answer is not None and not asked.answer.done():
                asked.answer.set_result(None)

    async def close(self, deadline: float) -> None:
        """Close at once, or once the hub has heard that the subscription is withdrawn, if it is."""
        self._sink = None
        self._end("the client closed the connection")
        transport = self._transport
        try:
            if self.withdraws and self.subscribed and transport is not None and not transport.is_closing():
                # A socket that closes with pushes unread resets its connection, and what was sent may be lost by that.
                self.read(True)
                self._send(Subscribe({}))
                with contextlib.suppress(OSError):  # It is reset already, and the loop has not come to tell.
                    transport.write_eof()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(min(deadline, self._loop.time() + _WITHDRAW_SECONDS)):
                        await self._gone.wait()
        finally:
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._sink = None
        self._end("the client closed the connection")
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._heard = self._loop.time()
        self._beat = self._loop.call_later(self._pulse.interval, self._keep_alive)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whom it concerns."""
        self._gone.set()
        self._lose(reason_of(error))

    def data_received(self, data: bytes) -> None:
        """Take what was received."""
        self._heard = self._loop.time()
        try:
            for frame in self._decoder.feed(data):
                if self._sink is None:
                    return
                self._take(frame, self._sink)
        except WireError as error:
            self._lose(str(error))

    def _take(self, frame: ConnectorFrame, sink: Sink) -> None:
        match frame:
            case Push():
                sink.pushed(self, frame)
            case HeartbeatReply():
                self._answered("hb", "sub")
            case AuthSuccess():
                self._answered("auth")
            case CommandError():
                self._refused(sink)

    def _answered(self, *expected: str) -> None:
        if not self._asked or self._asked[0].what not in expected:
            self._lose("the hub answered what was not asked")
            return
        answer = self._asked.popleft().answer
        if answer is not None and not answer.done():
            answer.set_result(None)

    def _refused(self, sink: Sink) -> None:
        asked = self._asked.popleft() if self._asked else _Asked("hb")
        match asked.what:
            case "auth":
                why = f"does not accept client {self._client}: check its id, its key and this clock"
            case "sub":
                why = "does not take this subscription: it may be over the hub's limits, see the hub's log"
            case "hb":
                self._lose("the hub answered with a command error")
                return
        error = RefusedError(asked.what, f"{self._address} {why}")
        if asked.answer is None or asked.answer.done():
            sink.refused(self, error)
        else:
            asked.answer.set_exception(error)
        self._lose(f"the hub refused {asked.what}")

    async def _ask(self, what: Literal["auth", "sub"], *commands: Command) -> None:
        if self.ended is not None:
            raise UnreachableError(str(self._address), self.ended)
        answer = self._loop.create_future()
        self._asked.append(_Asked(what, answer))
        if what == "sub" and not self._reads:
            answer.set_result(None)
        self._send(*commands)
        await answer

    def _keep_alive(self) -> None:
        silence = self._loop.time() - self._heard
        if self._reads and silence > self._pulse.interval + self._pulse.patience:
            self._lose(f"not heard for {silence:.0f} s")
            return
        self._beat = self._loop.call_later(self._pulse.interval, self._keep_alive)
        if len(self._asked) < _MOST_UNANSWERED:
            self._asked.append(_Asked("hb"))
            self._send(Heartbeat())

    def _send(self, *commands: Command) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(map(serialize, commands)))

    def _lose(self, reason: str) -> None:
        sink, self._sink = self._sink, None
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()
        if sink is not None:
            sink.lost(self, reason)

    def _end(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
        if self._beat is not None:
            self._beat.cancel()
        for asked in self._asked:
            if asked.answer is not None and not asked.answer.done():
                asked.answer.set_exception(UnreachableError(str(self._address), self.ended))
        self._asked.clear()
