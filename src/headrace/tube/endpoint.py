"""The tube as its user has it: send whole messages, receive whole messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from headrace.config import Address
from headrace.errors import HeadraceError, UsageError
from headrace.tube.message_parts import gather
from headrace.tube.options import TubeCounts, TubeOptions
from headrace.tube.receiver import Received, ReceiveQueue, Receiver
from headrace.tube.session import Phase, TubeSession
from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.connection import Side, Transport


class Tube:
    """One end of an open tube; :func:`connect` and :func:`serve` make them.

    The easy way is awaited: :meth:`send`, ``async for message in tube``, :meth:`close`. The fast way is called:
    :meth:`write` and :attr:`paused`, and a :class:`Receiver` given to :meth:`attach`. The two can be mixed.

    A tube belongs to its event loop; any task of that loop may send, one at a time may receive.

    >>> from headrace import tube
    >>> async def add(end):
    ...     total = 0
    ...     while number := await end.receive():
    ...         total += int(number)
    ...     await end.send(str(total).encode())
    >>> async def sum_up():
    ...     async with tube.serve(add, port=0) as server:
    ...         async with tube.connect(f"tube://{server.addresses[0]}") as client:
    ...             for number in (b"5", b"7", b""):
    ...                 await client.send(number)
    ...             return bytes(await client.receive()), client.side
    >>> asyncio.run(sum_up())
    (b'12', <Side.CLIENT: 'client'>)
    """

    def __init__(self, session: TubeSession) -> None:
        self._session = session
        self._queue = ReceiveQueue(session.options.receive_buffer, session.pause_reading, self._regulate)
        self._paused_by_owner = False
        session.receiver = self._queue

    def __repr__(self) -> str:
        session = self._session
        return (
            f"<Tube {session.transport.value} {session.side.value}, {session.phase.value}, peer {self.peer}>"
        )

    # Properties

    @property
    def peer(self) -> Address:
        """The peer's address."""
        return self._session.peer

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The certificate that the peer has shown under TLS, as the ssl module gives it; empty if none."""
        return self._session.certificate

    @property
    def first_bytes(self) -> bytes:
        """The first two bytes that the peer sent: of one that took this for another protocol, they tell which."""
        return self._session.first_bytes

    @property
    def local(self) -> Address:
        """Our own end's address."""
        return self._session.local

    @property
    def side(self) -> Side:
        """Whether this end connected (the client) or was connected to."""
        return self._session.side

    @property
    def transport(self) -> Transport:
        """The transport that carries the tube."""
        return self._session.transport

    @property
    def options(self) -> TubeOptions:
        """The options it was made with."""
        return self._session.options

    @property
    def fragment_size(self) -> int:
        """The longest fragment the peer takes."""
        return self._session.fragment_size

    @property
    def counts(self) -> TubeCounts:
        """What was counted so far."""
        return self._session.counts

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._session.phase is not Phase.OPEN

    @property
    def error(self) -> HeadraceError | None:
        """The error that broke the tube, or kept something from going out before it was closed."""
        return self._session.error

    # Sending

    async def send(self, message: Buffer) -> None:
        """Send a message as soon as there is room.

        If cancelled while it waits, it has sent nothing; once it returns, the message is on its way. Messages arrive
        in the order they were sent. Writable memory (a ``bytearray``) is copied, so that you may reuse it at once;
        ``memoryview(…).toreadonly()`` saves the copy, and must then not change until :attr:`unsent` is 0.
        """
        if self._session.paused:
            await self._session.drain()
        self._session.write(message)

    async def send_parts(self, parts: Iterable[Buffer]) -> None:
        """Send several buffers as one message, like :meth:`send` and without copying them together."""
        if self._session.paused:
            await self._session.drain()
        self._session.write_parts(gather(parts))

    def write(self, message: Buffer) -> None:
        """Send a message now, without waiting for room: it may wait in memory. See :attr:`paused`."""
        self._session.write(message)

    def write_parts(self, parts: Iterable[Buffer]) -> None:
        """Send several buffers as one message now."""
        self._session.write_parts(gather(parts))

    @property
    def paused(self) -> bool:
        """Whether a user of :meth:`write` should wait, for :meth:`drain` or for ``on_room``."""
        return self._session.paused

    @property
    def unsent(self) -> int:
        """Bytes waiting in memory for the network."""
        return self._session.unsent

    async def drain(self) -> None:
        """Wait until there is room to send."""
        await self._session.drain()

    # Receiving

    async def receive(self) -> Received:
        """Return the next message; after the last, raise the error that ended the tube.

        Cancelling this loses no message.
        """
        message = await self._queue.get()
        if message is None:
            raise self._session.reason()
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        message = await self._queue.get()
        if message is not None:
            return message
        if self._session.broken:
            raise self._session.reason()
        raise StopAsyncIteration

    def attach(self, receiver: Receiver) -> None:
        """Call a receiver for each message from now on, beginning with those that wait."""
        if self._session.receiver is not self._queue:
            raise UsageError("the tube has a receiver already")
        self._queue.hand_over(receiver)
        self._session.receiver = receiver
        if self._session.ended:
            receiver.on_end(self._session.error)

    def pause_reading(self) -> None:
        """Receive no more for now; the peer notices once the network's buffers are full."""
        self._paused_by_owner = True
        self._session.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        self._paused_by_owner = False
        self._regulate()

    # Ending

    def trust(self) -> None:
        """Accept messages up to ``options.max_message`` from now on: the client has shown who it is."""
        self._session.trust()

    async def close(self) -> None:
        """Close once everything sent has gone out, and wait for that; may be called again.

        What the peer still sends is discarded. A peer that makes no progress is cut off, see
        :attr:`TubeOptions.close_seconds`.
        """
        self.start_closing()
        await self._session.wait_gone()

    def start_closing(self) -> None:
        """Close, without waiting for it."""
        self._session.close()
        self._queue.discard()

    def abort(self) -> None:
        """Close at once; what has not gone out is lost."""
        self._session.abort()
        self._queue.discard()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone, whoever closed it."""
        await self._session.wait_gone()

    def when_closed(self, callback: Callable[[Tube], None]) -> None:
        """Call a function once, when the connection is gone."""
        if self._session.phase is Phase.GONE:
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._session.on_gone.append(lambda: callback(self))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _regulate(self) -> None:
        """Read again unless the owner has paused or the queue is full."""
        if not (self._paused_by_owner or self._queue.full):
            self._session.resume_reading()
