"""A TCP connection to a hub's services.

Closing unsubscribes first, so that the hub has nothing more to send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.client.identity import Identity
from headrace.client.tcp import TcpConnection
from headrace.config import Address
from headrace.errors import RefusedError, WireError
from headrace.wire.sdk.auth import Auth as Claim
from headrace.wire.sdk.auth import serialize_auth
from headrace.wire.spp import Auth, Authenticated, ClientDecoder, ClientFrame, Ignored, ServerFrame, serialize

if TYPE_CHECKING:
    from headrace.client.spp.services import KnownServices


class SppConnection(TcpConnection, asyncio.Protocol):
    """One connection, from :meth:`open` on."""

    def __init__(self, address: Address, services: KnownServices) -> None:
        super().__init__(address, services.lost)
        self.farewell: Sequence[ClientFrame] = ()
        """The bytes to send last."""
        self._services = services
        self._decoder = ClientDecoder()
        self._answer: asyncio.Future[Authenticated] | None = None

    def send(self, *frames: ClientFrame) -> None:
        """Send at once, or never."""
        if frames:
            self.write(b"".join(map(serialize, frames)))

    def say_farewell(self) -> None:
        """Send the last bytes."""
        self.send(*self.farewell)

    async def authenticate(self, identity: Identity) -> None:
        """Prove who this is; :class:`~headrace.errors.RefusedError` if the hub does not accept it."""
        answer = await self._claim(identity.request())
        if answer.challenge:
            answer = await self._claim(identity.answer(answer.challenge.decode(errors="replace")))
        if not answer.accepted:
            client = identity.client_id.hex()
            reason = f"{self.address} does not accept client {client}: check its id, its key and this clock"
            raise RefusedError("auth", reason)

    async def _claim(self, claim: Claim) -> Authenticated:
        self._answer = self._loop.create_future()
        self.send(Auth(serialize_auth(claim)))
        return await self._answer

    def lose(self, reason: str) -> None:
        """Give the connection up, and report it."""
        super().lose(reason)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(reason))

    def data_received(self, data: bytes) -> None:
        """Decode received bytes and hand them over."""
        if not self.heard:
            return
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
        except WireError as error:
            self.lose(str(error))

    def _take(self, frame: ServerFrame | Ignored) -> None:
        if isinstance(frame, Authenticated):
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(frame)
        # Taking a packet may close the connection over it.
        elif self.heard and not isinstance(frame, Ignored):
            self._services.received(self, frame)
