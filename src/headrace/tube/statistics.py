"""What has happened on a tube, for whoever watches over it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Counted since the tube was made.

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
    """Messages received in a compression we lack: thrown away and answered."""
    refused: int = 0
    """Times the peer turned out to lack a compression we used."""
    ignored: int = 0
    """Answers to what was never asked."""
