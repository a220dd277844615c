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
every direction; the peer is pinged when it is silent. Nothing here knows what is in a message, or the hub.

How it is built, from the outside in: :mod:`~headrace.tube.client` and :mod:`~headrace.tube.server` make a
:class:`Tube` (what users hold), its :mod:`session <headrace.tube.session>` (all that is decided) and its
:mod:`line <headrace.tube.transport>` (the socket: TCP or WebSocket). The session converses in
:mod:`headrace.wire.tube.connection`, sends through :mod:`~headrace.tube.outgoing`, hands what it receives to a
:mod:`receiver <headrace.tube.receiver>`, and asks :mod:`~headrace.tube.liveness` about deadlines.
"""

from headrace.tube.client import TCP_PORT, WEBSOCKET_PORT, connect
from headrace.tube.endpoint import Tube
from headrace.tube.options import Options, Policy
from headrace.tube.receiver import Received, Receiver
from headrace.tube.server import Handler, Server, serve
from headrace.tube.statistics import Counts
from headrace.wire.tube.connection import Side, Transport

__all__ = [
    "TCP_PORT",
    "WEBSOCKET_PORT",
    "Counts",
    "Handler",
    "Options",
    "Policy",
    "Received",
    "Receiver",
    "Server",
    "Side",
    "Transport",
    "Tube",
    "connect",
    "serve",
]
