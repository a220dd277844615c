"""What tests of the backbone over TCP look at in a hub, and do to it."""

from __future__ import annotations

import socket
from functools import partial

from tests.net.conftest import Dial
from tests.net.raw import (
    backbone_of,
    push,
    until,
)

from headrace.net.fyrehose.tcp import FyrehoseTcpDoor
from headrace.net.server.process import Server


def refused(server: Server, reason: str) -> int:
    """How often the fyrehose door has refused for a reason."""
    return server.hub.counters.get("refused", door="fyrehose", reason=reason)


def counted(server: Server, name: str) -> int:
    """A count of its TCP half."""
    return server.hub.counters.get(name, door="fyrehose", transport="tcp")


def door(server: Server) -> FyrehoseTcpDoor:
    """Its TCP half."""
    return backbone_of(server)


def logged(server: Server) -> list[bytes]:
    """All payloads of a hub's log."""
    return [payload for batch in server.hub.log.scan(1) for payload in batch.run]


def narrow(server: Server) -> None:
    """Let the system take little for each connection, so that a peer that does not read is felt soon."""
    backbone_of(server)._listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 10)


def committed(server: Server, seq: int) -> bool:
    """Whether the log has come so far."""
    return server.hub.log.head >= seq


async def filled(server: Server, dial: Dial, count: int) -> None:
    """Messages ``b"1"`` to ``b"<count>"``."""
    publisher = await dial(server)
    await publisher.send(b"".join(push(b"%d" % seq) for seq in range(1, count + 1)))
    await until(partial(committed, server, count))
