"""A dispatcher for tests of the matcher fleet: it keeps what it is sent, and can be made to fail."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from headrace.config import Address
from headrace.spark.jobs.match.dispatcher_connection import DispatcherDoor
from headrace.spark.jobs.match.lifeline import NODE
from headrace.wire.attribute.messages import (
    DispatcherDecoder,
    Heartbeat,
    MatcherPush,
    parse_msg_id,
    serialize,
)


class Dispatcher:
    """Takes messages and answers heartbeats, unless it is told not to."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, int]] = []
        """Which connection brought which mark, connections counted from 1."""
        self.pushes: list[MatcherPush] = []
        self.answers = True
        self.silent = False
        """Whether it takes heartbeats as the original does, without a word."""
        self._count = 0
        self._connections: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.door = DispatcherDoor(Address(*self._listening.getsockname()))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close every connection."""
        for each in self._connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                came, _ = self._listening.accept()
                self._connections.append(came)
                self._count += 1
                threading.Thread(target=self._serve, args=(came, self._count), daemon=True).start()

    def _serve(self, came: socket.socket, number: int) -> None:
        decoder = DispatcherDecoder()
        with came, suppress(OSError):
            while data := came.recv(4096):
                for frame in decoder.feed(data):
                    if isinstance(frame, Heartbeat):
                        if not self.answers:
                            return
                        if not self.silent:
                            came.sendall(serialize(Heartbeat(1)))
                    elif isinstance(frame, MatcherPush) and not frame.clients:
                        seq, node = parse_msg_id(frame.msg_id)
                        assert node == NODE
                        self.marks.append((number, seq))
                    else:
                        assert isinstance(frame, MatcherPush)
                        self.pushes.append(frame)
