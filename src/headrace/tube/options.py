"""The options a tube is made with, and the counts it keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import UsageError
from headrace.wire.tube.reassembly import DEFAULT_FRAGMENT_SIZE, MAX_MESSAGE, TubeLimits

Policy = Callable[[memoryview], bool]
"""Called with a message (or its longest part); returns whether compressing it is worth a try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TubeOptions:
    """How a tube behaves. Sizes are bytes; a duration of ``math.inf`` means never.

    >>> TubeOptions(max_message=100_000_000, compress=False).fragment_size
    262144
    """

    fragment_size: int = DEFAULT_FRAGMENT_SIZE
    """The longest fragment we accept; the peer is told."""

    max_message: int = MAX_MESSAGE
    """The longest message we accept, as it travels; also the longest we send, unless ``max_sent`` is given."""

    max_stranger: int | None = None
    """The longest message we accept of a client that is not trusted yet (:meth:`Tube.trust`); all are, without it."""

    max_sent: int | None = None
    """The longest message we send."""

    max_inflated: int = MAX_MESSAGE
    """The longest that a compressed message may become."""

    compress: bool | Policy = True
    """Compress messages where that pays, never, or where your own policy agrees too."""

    idle_seconds: float = 20.0
    """Silence after which the peer is pinged."""

    pong_seconds: float = 20.0
    """How long a pinged peer may neither send nor take anything before it is given up."""

    message_seconds: float = 300.0
    """How long a message may take from its first byte to its last."""

    handshake_seconds: float = 10.0
    """How long the exchange of fragment sizes (on WebSocket, its handshake too) may take."""

    close_seconds: float = 5.0
    """How long the peer of a closing tube may take nothing, or not close as well, before it is cut off."""

    receive_buffer: int = 4 << 20
    """Bytes received and not yet consumed: past this, reading stops until half of them are gone."""

    write_buffer: int = 1 << 20
    """Bytes handed to the transport and not yet taken by the network: past this, :meth:`Tube.send` waits."""

    def __post_init__(self) -> None:
        _ = self.limits  # checks its own three
        for name in ("receive_buffer", "write_buffer", "max_sent", "max_stranger"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise UsageError(f"{name} is {size}: expected 1 or more bytes")
        for name in ("idle", "pong", "message", "handshake", "close"):
            seconds = getattr(self, f"{name}_seconds")
            if math.isnan(seconds) or seconds <= 0:
                raise UsageError(f"{name}_seconds is {seconds}: expected more than 0")

    @property
    def longest_sent(self) -> int:
        """The longest message that we send."""
        return self.max_message if self.max_sent is None else self.max_sent

    @property
    def limits(self) -> TubeLimits:
        """The limits that the codec keeps."""
        return TubeLimits(self.fragment_size, self.max_message, self.max_inflated)

    @property
    def stranger_limits(self) -> TubeLimits:
        """The limits that the codec keeps until a client is trusted."""
        if self.max_stranger is None:
            return self.limits
        shortest = min(self.max_stranger, self.max_message)
        return TubeLimits(self.fragment_size, shortest, min(self.max_stranger, self.max_inflated))


DEFAULT_OPTIONS = TubeOptions()


@dataclass(slots=True)
class TubeCounts:
    """Numbers counted since the tube was made.

    >>> import asyncio
    >>> from headrace import tube
    >>> async def echo(tube):
    ...     async for message in tube:
    ...         await tube.send(message)
    >>> async def twice():
    ...     async with (
    ...         tube.serve(echo, port=0) as server,
    ...         tube.connect(f"tube://{server.addresses[0]}") as client,
    ...     ):
    ...         for _ in range(2):
    ...             await client.send(b"hello")
    ...             await client.receive()
    ...         return client.counts
    >>> asyncio.run(twice()).messages_received
    2
    """

    messages_received: int = 0
    messages_sent: int = 0
    compressed_sent: int = 0
    discarded: int = 0
    """Messages received in a compression we lack: discarded, and the peer told."""
    refused: int = 0
    """Times the peer lacked a compression we used."""
    ignored: int = 0
    """Answers to no question of ours."""
