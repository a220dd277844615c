"""A client that means well, beside attacks: every message of its own must come, in order and as soon as without them.

It publishes one message at the ``fyrehose`` door and waits until that is delivered to it, again and again, in a thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from time import perf_counter, thread_time
from types import TracebackType
from typing import NamedTuple, Self

from tests.attacks.turns import Turns
from tests.conftest import SOAK
from tests.hubprocess import HubProcess
from tests.system.observing import eventually, memory

import headrace
from headrace.errors import HeadraceError

GENEROUS = 20.0
"""Times as long as alone that it may wait beside an attack. Many attacks held it up a thousand times as long."""

SLACK_SECONDS = 0.5
"""And so much more: on a busy machine a wait of a millisecond may be anything."""

LONGEST_TURN_SECONDS = 0.04 if SOAK else 0.2
"""What a turn of the event loop may compute at most, on a machine whose :func:`slowness` is 1.

Nobody else is served meanwhile, and a publish takes two turns. On quiet machines turns stay below the smaller bound;
`make test` looks for those that became many times as long, wherever it runs.
"""

_WORK = 80_000
_WORK_SECONDS = 0.00125
"""Steps of plain Python, and the seconds that they take where the bound was found."""

_KEEPALIVE = b"\x10" + bytes(6)
_PAUSE_SECONDS = 0.004


class AttackedHub(HubProcess):
    """A hub whose event loop's turns are measured."""

    turns: Turns


class Waits(NamedTuple):
    """How long a client waited for its messages: half of the time at most, nine times of ten at most, ever."""

    half: float
    most: float
    longest: float

    @classmethod
    def of(cls, times: list[float]) -> Self:
        """Sum up waits."""
        ordered = sorted(times)
        return cls(ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10], ordered[-1])

    def __str__(self) -> str:
        half, most, longest = (seconds * 1e3 for seconds in self)
        return f"{half:.1f} ms half of the time, {most:.1f} ms at p90, {longest:.0f} ms ever"


class GoodClient:
    """Publishes and receives until it is left."""

    def __init__(self, hub: HubProcess, seconds: float = 60.0) -> None:
        self._hub, self._seconds = hub, seconds
        self._sock: socket.socket
        self._data = bytearray()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: Exception | None = None
        self._name = b"good %d " % id(self)
        self._seq = 0
        self.times: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def waits(self, count: int) -> Waits:
        """Sum up the next ``count`` waits."""
        begun = len(self.times)
        eventually("a good client goes on", lambda: self._failure or len(self.times) >= begun + count)
        if self._failure is not None:
            raise self._failure
        return Waits.of(self.times[begun:])

    def _run(self) -> None:
        try:
            self._work()
        except (OSError, AssertionError, HeadraceError) as error:
            self._failure = error

    def _work(self) -> None:
        with closing(
            socket.create_connection(self._hub.address("fyrehose"), timeout=self._seconds)
        ) as self._sock:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock.sendall(_KEEPALIVE)
            number = 0
            while not self._over.wait(_PAUSE_SECONDS):
                payload = self._name + b"%d" % number
                begun = perf_counter()
                self._sock.sendall(b"\x02" + len(payload).to_bytes(2) + payload)
                self._await(payload)
                self.times.append(perf_counter() - begun)
                number += 1

    def _await(self, payload: bytes) -> None:
        """Receive until a message of our own comes, which must be this one; all numbers must be in order."""
        while True:
            for seq, data in self._delivered():
                assert seq == self._seq + 1 or not self._seq, f"message {seq} came after {self._seq}"
                self._seq = seq
                if data.startswith(self._name):
                    assert data == payload
                    return
            got = self._sock.recv(1 << 16)
            assert got, "the hub has closed the connection of a good client"
            self._data += got

    def _delivered(self) -> Iterator[tuple[int, bytes]]:
        data = self._data
        while data:
            if data[0] == 0x20:
                size = 7
                if len(data) < size:
                    return
                del data[:size]
                continue
            assert data[0] == 0x01, bytes(data[:16]).hex(" ")
            size = 9 + int.from_bytes(data[1:3]) if len(data) >= 9 else 9
            if len(data) < size:
                return
            message = int.from_bytes(data[3:9]), bytes(data[9:size])
            del data[:size]
            yield message


class GoodPublisher(GoodClient):
    """Publishes on the link, and waits for the acknowledgement: millions of messages of others do not come its way."""

    def _work(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        newest = 0
        async with headrace.connect("tube://", "{}:{}".format(*self._hub.address("tube_tcp"))) as link:
            while not self._over.is_set():
                begun = perf_counter()
                seq = (await link.publish(self._name, topic="good")).first
                self.times.append(perf_counter() - begun)
                assert newest < seq
                newest = seq
                await asyncio.sleep(_PAUSE_SECONDS)


def slowness() -> float:
    """Return how many times as long as a quick machine this one computes now, at worst; 1 at least."""
    slowest = 0.0
    for _ in range(20):
        begun = thread_time()
        for _step in range(_WORK):
            pass
        slowest = max(slowest, thread_time() - begun)
    return max(1.0, slowest / _WORK_SECONDS)


@contextmanager
def unharmed(
    hub: AttackedHub,
    what: str,
    most_bytes: int = 64 << 20,
    count: int = 40,
    kind: type[GoodClient] = GoodClient,
) -> Iterator[GoodClient]:
    """Compare a good client's waits alone with those during an attack; bound what the attack costs the hub.

    The hub's time is bounded by what a turn of its event loop computes, compared with how fast this machine computes.
    """
    with kind(hub) as good:
        alone = good.waits(count)
        slow = slowness()
        before, begun = memory(hub), len(good.times)
        hub.turns.forget()
        yield good
        good.waits(count)
        during, grown = Waits.of(good.times[begun:]), memory(hub) - before
        longest, of_all = hub.turns.longest, hub.turns.longest_of_all
    figure = (
        f"{what}: alone {alone}; attacked {during}; the longest turn computed {longest * 1e3:.0f} ms, all"
        f" threads together {of_all * 1e3:.0f} ms;"
        f" the hub grew by {grown / 1e6:.0f} MB"
    )
    print(figure)
    slow = max(slow, slowness())
    assert 0 < longest < LONGEST_TURN_SECONDS * slow, f"{figure}; the machine is {slow:.1f} times as slow"
    assert during.most < GENEROUS * alone.most + SLACK_SECONDS, figure
    assert grown < most_bytes, figure
    told, traceback, failure = hub.stderr.partition("Traceback")
    assert not traceback, told[-300:] + traceback + failure[:3000]
