"""What one peer does costs only itself: tubes that send dust, and tubes that send half of everything."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from time import perf_counter

import pytest
from tests.hubprocess import HubProcess
from tests.system.observing import FREED_AT_ONCE, counter, eventually, memory

from headrace.wire.link.message import serialize
from headrace.wire.tube.frames import FragmentSize, Header, stream_pieces
from headrace.wire.tube.frames import serialize as frame
from headrace.wire.tube.varint import serialize_varint

MIB = 1 << 20
OPENING = frame(FragmentSize(1 << 18))
HELLO = b"".join(map(bytes, stream_pieces(serialize({"op": "hello", "id": 0, "version": 2}), 1 << 18)))

HELD_UP_SECONDS = 0.5
"""What a good client may wait beside an attack that stopped everybody for more than a second."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with HubProcess.start(tmp_path_factory.mktemp("hub"), environ=FREED_AT_ONCE) as running:
        yield running
        running.terminate()


def tube(hub: HubProcess) -> socket.socket:
    sock = socket.create_connection(hub.address("tube_tcp"), timeout=20)
    sock.sendall(OPENING)
    return sock


def median_answer(hub: HubProcess, count: int = 40) -> float:
    """How long a good client waits for an answer, half of the time."""
    host, port = hub.address("http")
    times = []
    with closing(http.client.HTTPConnection(host, port, timeout=30)) as good:
        for _ in range(count):
            began = perf_counter()
            good.request("GET", "/healthz")
            assert good.getresponse().read()
            times.append(perf_counter() - began)
    return sorted(times)[count // 2]


DUST = {
    "one byte each": frame(Header(0, 4000)) + b"\x02a" * 200_000,
    "empty": frame(Header(0, 4000)) + b"\x00" * 400_000,
    "small messages of dust": (frame(Header(0, 500)) + b"\x02a" * 500) * 400,
    "pings": b"\x80" * 400_000,
}


@pytest.mark.parametrize("greeted", [False, True], ids=["before hello", "after hello"])
@pytest.mark.parametrize("dust", DUST.values(), ids=DUST)
def test_dust_is_refused(hub: HubProcess, dust: bytes, greeted: bool) -> None:
    over = threading.Event()

    def throw() -> None:
        while not over.is_set():
            with closing(tube(hub)) as sock, suppress(OSError):
                if greeted:
                    sock.sendall(HELLO)
                    sock.recv(100)
                sock.sendall(dust)
                while sock.recv(1 << 16):
                    pass

    before = counter(hub, "refused")
    throwers = [threading.Thread(target=throw) for _ in range(8)]
    for thrower in throwers:
        thrower.start()
    try:
        waited = median_answer(hub)
    finally:
        over.set()
        for thrower in throwers:
            thrower.join(30)
    print(f"a good client waited {waited * 1000:.1f} ms, half of the time")
    assert waited < HELD_UP_SECONDS
    assert counter(hub, "refused") > before


@pytest.mark.parametrize("greeted", [False, True], ids=["before hello", "after hello"])
def test_half_messages_take_bounded_memory(hub: HubProcess, greeted: bool) -> None:
    half = frame(Header(0, 29)) + (serialize_varint(1 << 18) + bytes(1 << 18)) * 28
    before = memory(hub)
    with ExitStack() as stack:
        for _ in range(100):
            sock = stack.enter_context(closing(tube(hub)))
            with suppress(OSError):
                if greeted:
                    sock.sendall(HELLO)
                    sock.recv(100)
                # The hub does not read from it while others fill the room.
                sock.settimeout(0.01)
                sock.sendall(half)
        eventually("what was sent is read", lambda: median_answer(hub, 3) < HELD_UP_SECONDS)
        grown = (memory(hub) - before) / MIB
        print(f"{grown:.0f} MiB for 100 halves of messages")
        assert grown < (95 if greeted else 50)
    eventually("memory is given back", lambda: memory(hub) - before < 60 * MIB)


def test_nothing_else_was_harmed(hub: HubProcess, tmp_path: Path) -> None:
    assert "Traceback" not in hub.stderr
