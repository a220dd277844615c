"""Peers that a dispatcher dials."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from tests.net.attribute_peers import BinaryPeer
from tests.net.raw import SECONDS


class Accepting:
    """A stand-in for whoever the dispatcher dials: a connector or another dispatcher."""

    def __init__(self) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.sock.setblocking(False)
        self.address = f"127.0.0.1:{self.sock.getsockname()[1]}"

    async def accept(self) -> BinaryPeer:
        async with asyncio.timeout(SECONDS):
            sock, _ = await asyncio.get_running_loop().sock_accept(self.sock)
        sock.setblocking(False)
        return BinaryPeer(sock)


@pytest.fixture
def accepting(stack: AsyncExitStack) -> Callable[[], Accepting]:
    def make() -> Accepting:
        made = Accepting()
        stack.callback(made.sock.close)
        return made

    return make
