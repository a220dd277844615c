"""A TCP connection to a connector: commands and their answers, heartbeats, pushes.

A connector answers commands in order, and ``sub`` not at all. So a heartbeat follows each ``sub``: its answer shows
that the ``sub`` was accepted, and a command error in its place that it was not.

Heartbeats go out at intervals as long as the connection lives. A connector that sends nothing for an interval and the
time it has to answer is lost. While nothing is read, because there is no room for pushes, its silence is our doing and
proves nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace.client.tcp import TcpConnection
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
    serialize,
)
from headrace.wire.sdk.predicate import Alternatives
from headrace.wire.sdk.subscribe import Subscribe

_MOST_UNANSWERED: Final = 256
"""Heartbeats that may wait for an answer; more are not sent. They wait only while nothing is read."""

_WITHDRAW_SECONDS: Final = 2.0
"""Seconds that closing waits for the hub to take a withdrawal: without it the subscription lasts a little longer."""

_CLOSED: Final = "the client closed the connection"


def subscribe_command(name: str, wanted: Alternatives) -> Subscribe:
    """The command that makes this one subscription; without alternatives, that withdraws it."""
    return Subscribe(wanted[0], name, wanted[1:]) if wanted else Subscribe({}, name)


@dataclass(frozen=True, slots=True)
class Pulse:
    """Seconds between heartbeats, and how many the connector has to answer one."""

    interval: float
    timeout: float


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """A command that is not answered yet, and the future that waits for the answer."""

    command: Literal["auth", "sub", "hb"]
    answer: asyncio.Future[None] | None = None


class SdkConnection(TcpConnection, asyncio.Protocol):
    """One connection, from :meth:`open` on."""

    def __init__(
        self,
        address: Address,
        pulse: Pulse,
        *,
        on_push: Callable[[SdkConnection, Push], None],
        on_refusal: Callable[[RefusedError], None],
        on_lost: Callable[[SdkConnection, str], None],
        withdraws: bool = False,
    ) -> None:
        """``on_refusal`` is called with a refusal that nobody waits for any more."""
        super().__init__(address, on_lost)
        self.subscribed: dict[str, Alternatives] = {}
        """The subscriptions made on this connection, by name."""
        self._withdraws = withdraws
        self._on_push = on_push
        self._on_refusal = on_refusal
        self._pulse = pulse
        self._decoder = ClientDecoder()
        self._unanswered: deque[_Unanswered] = deque()
        self._last_heard = self._loop.time()
        self._beat: asyncio.TimerHandle | None = None

    async def authenticate(self, auth: Auth) -> None:
        """Say who this is; :class:`~headrace.errors.RefusedError` if that is not accepted."""
        self._client = client_id_text(auth.client_id)
        await self._ask("auth", auth)
        # Not before: a connector's first command must be ``auth``, however short the interval.
        self._last_heard = self._loop.time()
        self._beat = self._loop.call_later(self._pulse.interval, self._keep_alive)

    async def subscribe(self, wanted: Mapping[str, Alternatives]) -> None:
        """Subscribe by name; return once that is accepted, or at once if reading is paused and no answer can come.

        :class:`~headrace.errors.UnreachableError` if the connection was lost first.
        """
        self.subscribed.update(wanted)
        await self._ask("sub", *map(subscribe_command, wanted, wanted.values()), Heartbeat())

    def read(self, wanted: bool, /) -> None:
        """Resume reading, or pause and leave the rest with the hub."""
        if wanted == self._reads:
            return
        super().read(wanted)
        if wanted:
            self._last_heard = self._loop.time()
            return
        for waiting in self._unanswered:
            # The consumer of the messages may be the one who waits here.
            if waiting.command == "sub" and waiting.answer is not None and not waiting.answer.done():
                waiting.answer.set_result(None)

    async def close(self, deadline: float) -> None:
        """Close at once, or once the hub has heard that the subscription is withdrawn, if it is."""
        self._end(_CLOSED)
        if self._withdraws and any(self.subscribed.values()):
            await super().close(min(deadline, self._loop.time() + _WITHDRAW_SECONDS))
        else:
            self.abort()

    def say_farewell(self) -> None:
        """Withdraw the subscriptions."""
        self._send(*(Subscribe({}, name) for name, wanted in self.subscribed.items() if wanted))

    def abort(self) -> None:
        """Close at once."""
        self._end(_CLOSED)
        super().abort()

    def lose(self, reason: str) -> None:
        """Give the connection up, and report it."""
        self._end(reason)
        super().lose(reason)

    def data_received(self, data: bytes) -> None:
        """Decode received bytes and hand them over."""
        self._last_heard = self._loop.time()
        try:
            for frame in self._decoder.feed(data):
                if not self.heard:
                    return
                self._take(frame)
        except WireError as error:
            self.lose(str(error))

    def _take(self, frame: ConnectorFrame) -> None:
        match frame:
            case Push():
                self._on_push(self, frame)
            case HeartbeatReply():
                self._answered("hb", "sub")
            case AuthSuccess():
                self._answered("auth")
            case CommandError():
                self._refused()

    def _answered(self, *expected: str) -> None:
        if not self._unanswered or self._unanswered[0].command not in expected:
            self.lose("the hub answered without being asked")
            return
        answer = self._unanswered.popleft().answer
        if answer is not None and not answer.done():
            answer.set_result(None)

    def _refused(self) -> None:
        refused = self._unanswered.popleft() if self._unanswered else _Unanswered("hb")
        match refused.command:
            case "auth":
                why = f"does not accept client {self._client}: check its id, its key and this clock"
            case "sub":
                why = "does not take this subscription: it may be over the hub's limits, see the hub's log"
            case "hb":
                self.lose("the hub answered with a command error")
                return
        error = RefusedError(refused.command, f"{self.address} {why}")
        if refused.answer is None or refused.answer.done():
            self._on_refusal(error)
        else:
            refused.answer.set_exception(error)
        self.lose(f"the hub refused {refused.command}")

    async def _ask(self, command: Literal["auth", "sub"], *commands: Command) -> None:
        if self.ended is not None:
            raise UnreachableError(str(self.address), self.ended)
        answer = self._loop.create_future()
        self._unanswered.append(_Unanswered(command, answer))
        if command == "sub" and not self._reads:
            answer.set_result(None)
        self._send(*commands)
        await answer

    def _keep_alive(self) -> None:
        silence = self._loop.time() - self._last_heard
        if self._reads and silence > self._pulse.interval + self._pulse.timeout:
            self.lose(f"not heard for {silence:.0f} s")
            return
        self._beat = self._loop.call_later(self._pulse.interval, self._keep_alive)
        if len(self._unanswered) < _MOST_UNANSWERED:
            self._unanswered.append(_Unanswered("hb"))
            self._send(Heartbeat())

    def _send(self, *commands: Command) -> None:
        self.write(b"".join(map(serialize, commands)))

    def _end(self, reason: str) -> None:
        """Stop the heartbeat, and fail those who wait for answers."""
        if self.ended is None:
            self.ended = reason
        if self._beat is not None:
            self._beat.cancel()
        for waiting in self._unanswered:
            if waiting.answer is not None and not waiting.answer.done():
                waiting.answer.set_exception(UnreachableError(str(self.address), self.ended))
        self._unanswered.clear()
