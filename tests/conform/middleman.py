"""Servers that break a protocol on purpose: a middleman before a real hub, who changes what passes, and a stranger who
never answers.

A middleman is honest on its first ``honest`` connections. Then it changes the bytes in either direction, or leaves
connections open that the hub has closed, or closes them at the client's first bytes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

Change = Callable[[bytes], bytes]


def unchanged(data: bytes) -> bytes:
    return data


@dataclass(frozen=True)
class Breach:
    """What a middleman does wrong."""

    request: Change = unchanged
    """Made of what the client sends."""
    answer: Change = unchanged
    """Made of what the hub sends."""
    closes: bool = False
    """Closes the connection once the client has sent something."""
    never_closes: bool = False
    """Leaves the connection open when the hub has closed it."""


CLOSES = Breach(closes=True)
NEVER_CLOSES = Breach(never_closes=True)
ALTERS = Breach(answer=lambda data: bytes(byte ^ 0x20 for byte in data))
SWALLOWS = Breach(request=lambda data: b"")


class Middleman:
    """A server before another."""

    def __init__(self, upstream: tuple[str, int], breach: Breach, *, honest: int = 0) -> None:
        self._upstream = upstream
        self._breach = breach
        self._honest = honest
        self._deciding = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nobody comes in any more before those who are in are sent away.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(10)
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                hub = socket.create_connection(self._upstream)
                self._sockets += [client, hub]
                found = [] if self._honest > 0 else [self._breach]
                self._start(self._to_hub, client, hub, found)
                self._start(self._to_client, client, hub, found)

    def _decide(self) -> Breach:
        """Return what a connection suffers that now speaks: the runner first looks whether anybody listens."""
        with self._deciding:
            self._honest -= 1
            return Breach() if self._honest >= 0 else self._breach

    def _to_hub(self, client: socket.socket, hub: socket.socket, found: list[Breach]) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if not found:
                    found.append(self._decide())
                if found[0].closes:
                    client.shutdown(socket.SHUT_RDWR)
                    break
                hub.sendall(found[0].request(data))
            hub.shutdown(socket.SHUT_WR)

    def _to_client(self, client: socket.socket, hub: socket.socket, found: list[Breach]) -> None:
        with contextlib.suppress(OSError):
            while data := hub.recv(1 << 16):
                client.sendall(found[0].answer(data) if found else data)
            if not (found and found[0].never_closes):
                client.shutdown(socket.SHUT_WR)


class SilentStranger:
    """Takes connections and datagrams on one port, and never answers."""

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagrams.bind(("127.0.0.1", self.port))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self._datagrams.close()
