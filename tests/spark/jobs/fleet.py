"""What tests of the matcher fleet need: SDK clients, messages, and something before the dispatcher that breaks."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

from tests.hubprocess import HubProcess
from tests.net.attribute_peers import HEARTBEAT, auth, sub, subn
from tests.spark.hubs import SECONDS

import headrace

Named = tuple[int, str, tuple[str, ...]]

COLOURS = ("red", "green", "blue")


def linked(hub: HubProcess) -> Any:
    return headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}")


def status(hub: HubProcess) -> Mapping[str, Any]:
    with linked(hub) as link:
        facts: Mapping[str, Any] = link.status()
        return facts


def publish(hub: HubProcess, first: int, last: int) -> int:
    """Messages ``first`` to ``last``, with the attributes x and colour; returns the last one's sequence number."""
    rows = [
        {"payload": b"%d" % n, "numbers": {"x": n % 100}, "attributes": {"colour": COLOURS[n % 3]}}
        for n in range(first, last + 1)
    ]
    with linked(hub) as link:
        seq: int = link.publish(rows)[1]
        return seq


class Client:
    """An SDK client that reads in a thread; it has what it got in the order it came."""

    def __init__(self, hub: HubProcess, number: int, *, after: int | None = None, **wanted: Any) -> None:
        self.id = number.to_bytes(12)
        self.got: list[tuple[int, str]] = []
        self.subs: list[tuple[str, ...]] = []
        self._answered = threading.Event()
        self._socket = socket.create_connection(hub.address("sdk"))
        self._socket.sendall(auth(self.id, after) + (sub(**wanted) if wanted else b""))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def subscribe(self, **wanted: Any) -> None:
        self._socket.sendall(sub(**wanted))

    def subscribe_as(self, name: str, *alternatives: Mapping[str, Any]) -> None:
        self._socket.sendall(subn(name, *alternatives))

    def named(self) -> list[Named]:
        """What it got, each with the names of the subscriptions that it satisfies."""
        return [(*got, subs) for got, subs in zip(self.got, self.subs, strict=True)]

    def ping(self) -> None:
        """Wait for an answer: all that was sent before it has been read."""
        self._answered.clear()
        self._socket.sendall(HEARTBEAT)
        assert self._answered.wait(SECONDS), "no answer"

    def close(self) -> None:
        _shut(self._socket)
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        with self._socket.makefile("rb") as file:
            while line := file.readline():
                if line.startswith(b"#"):
                    content = json.loads(file.read(int(line[1:])))
                    self.subs.append(tuple(content.get("subs", ())))
                    self.got.append((content["seq"], content["payload"]))
                elif line == b"+h\r\n":
                    self._answered.set()


class Relay:
    """What stands before a dispatcher door: it passes all on until it is told to break."""

    def __init__(self, to: tuple[str, int]) -> None:
        self.cut_after: int | None = None
        """Connections that were not there yet are cut when so many bytes came by one."""
        self.cuts = 0
        self.stalled = threading.Event()
        """Set by whoever would wait for a connection to have been held up; see ``hold``."""
        self.hold: threading.Event | None = None
        """New connections pass nothing on until this is set."""
        self._to = to
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listening.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut_all()

    def cut_all(self) -> None:
        """Break every connection there is."""
        for each in tuple(self._open):
            _shut(each)

    def _accept(self) -> None:
        while True:
            try:
                came, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(came, self.cut_after, self.hold), daemon=True).start()

    def _relay(self, came: socket.socket, left: int | None, hold: threading.Event | None) -> None:
        with came, socket.create_connection(self._to) as out:
            self._open |= {came, out}
            back = threading.Thread(target=_copy, args=(out, came), daemon=True)
            back.start()
            try:
                while data := came.recv(4096 if left is None else min(left, 4096)):
                    if hold is not None:
                        self.stalled.set()
                        hold.wait()
                    out.sendall(data)
                    if left is not None:
                        left -= len(data)
                        if not left:
                            self.cuts += 1
                            break
            except OSError:
                pass
            self._open -= {came, out}
            _shut(out)
            _shut(came)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(4096):
            target.sendall(data)
    except OSError:
        pass
    _shut(target)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
