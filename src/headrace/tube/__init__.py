"""Tubes as a library of their own: whole messages of any bytes, both ways, over TCP or WebSocket.

::

    async with connect("tube://127.0.0.1:8081") as tube:      # or ws://127.0.0.1:8080
        await tube.send(b"hello")
        async for message in tube:
            ...

    async def echo(tube):
        async for message in tube:
            await tube.send(message)

    async with serve(echo, "127.0.0.1", 8081):
        ...

Messages are cut into fragments no longer than their receiver asked for, compressed where that pays, and bounded in
every direction; a silent peer is pinged. Nothing here knows what is in a message, or the hub.

From the outside in: :mod:`~headrace.tube.client` and :mod:`~headrace.tube.server` make a :class:`Tube` (which users
hold), its :mod:`session <headrace.tube.session>` (which decides) and its :mod:`transport <headrace.tube.transport>`
(the socket: TCP or WebSocket). The session speaks :mod:`headrace.wire.tube.connection`, sends through
:mod:`~headrace.tube.outgoing`, hands messages to a :mod:`receiver <headrace.tube.receiver>`, and asks
:mod:`~headrace.tube.liveness` about deadlines.
"""

from headrace.tube.client import TCP_PORT, WEBSOCKET_PORT, connect
from headrace.tube.endpoint import Tube
from headrace.tube.options import Policy, TubeCounts, TubeOptions
from headrace.tube.receiver import Received, Receiver
from headrace.tube.server import Handler, TubeServer, serve
from headrace.wire.tube.connection import Side, Transport

__all__ = [
    "TCP_PORT",
    "WEBSOCKET_PORT",
    "Handler",
    "Policy",
    "Received",
    "Receiver",
    "Side",
    "Transport",
    "Tube",
    "TubeCounts",
    "TubeOptions",
    "TubeServer",
    "connect",
    "serve",
]
