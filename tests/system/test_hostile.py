"""Promise 3, for those who mean harm: whatever they send, the others notice nothing and each refusal is counted.

Each test lets strangers loose on a hub while a publisher and a subscriber are at work (:func:`bystanders`). In the
end every message of theirs must have come, whole, once and in order; the hub's memory must not have grown by more
than the strangers may cost; and the hub must have counted them under the right reason.
"""

from __future__ import annotations

import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tests.hubprocess import HubProcess
from tests.system.history import Source, stamps
from tests.system.observing import FREED_AT_ONCE, counter, eventually, head, memory, status
from tests.system.rawclient import KEEPALIVE, Publisher, Subscriber

from headrace.net.server.accepting.entrance import TLS_HELLO
from headrace.wire.fyrehose.stream import Deliver, Forward, Keepalive, KeepaliveAck, Push, Request, serialize

CONNECTIONS = 50
"""What the hub under attack allows one address."""

SPARE_BYTES = 24 << 20
"""What all strangers of one test may cost the hub together."""

HELD_UP_SECONDS = 5.0
"""In which 50 messages of the bystanders must come; unhindered it takes an eighth of a second."""

LAST = (1 << 48) - 1
VICTIM = "127.0.0.2"
"""An address of this machine that no attack comes from."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub that all attacks are made on, one after the other."""
    settings = (
        f"limits.connections_per_address={CONNECTIONS}",
        "limits.queue_bytes=64KiB",
        "limits.slow_seconds=1",
    )
    with HubProcess.start(tmp_path_factory.mktemp("hub"), *settings, environ=FREED_AT_ONCE) as running:
        with Publisher(running.address("fyrehose")) as publisher:
            # Something worth asking for, and a hub that has warmed up.
            publisher.push([bytes(60_000)] * 300)
            publisher.finish()
        eventually("they are committed", lambda: head(running) == 300)
        with bystanders(running, Random(0)):
            pass
        yield running
        running.terminate()


def steady(hub: HubProcess) -> bool:
    """Whether the hub's memory stands still for a while."""
    before = memory(hub)
    time.sleep(0.4)
    return abs(memory(hub) - before) < 1 << 20


@contextmanager
def bystanders(hub: HubProcess, random: Random) -> Iterator[Callable[[], None]]:
    """A publisher and a subscriber at work before, during and after what is done meanwhile.

    Gives what to call to see that they are not held up.
    """
    address = hub.address("fyrehose")
    source = Source(7, random, longest=200)
    stop = threading.Event()
    with Subscriber(address) as subscriber, Publisher(address) as publisher:

        def publish() -> None:
            while not stop.wait(0.005):
                publisher.push(source.take(2))

        def progress() -> None:
            wanted = subscriber.received + 50
            eventually("bystanders go on", lambda: subscriber.received >= wanted, HELD_UP_SECONDS)

        assert subscriber.subscribed.wait(10)
        thread = threading.Thread(target=publish)
        thread.start()
        try:
            progress()
            # The first batch has compiled code loaded, in a thread.
            eventually("the hub has its kernels", lambda: steady(hub))
            before = memory(hub)
            yield progress
            progress()
        finally:
            stop.set()
            thread.join()
        publisher.finish()
        eventually("every message comes", lambda: subscriber.received >= source.count)
        grown = memory(hub) - before
    assert subscriber.breaks == []
    counts = np.concatenate([stamps(run.run.data, run.run.offsets)["count"] for run in subscriber.runs])
    assert np.array_equal(counts, np.arange(1, source.count + 1))
    assert grown < SPARE_BYTES, f"the hub grew by {grown >> 20} MiB"


@contextmanager
def refusals(hub: HubProcess, **expected: int) -> Iterator[None]:
    """Wait for so many more refusals at the fyrehose door, by reason (``_`` for ``-``), and accept no more of them."""
    reasons = {
        name.replace("_", "-") if name != "cut_short" else name: count for name, count in expected.items()
    }
    before = {reason: counter(hub, "refused", f"fyrehose/{reason}") for reason in reasons}

    def counted() -> dict[str, int]:
        return {
            reason: counter(hub, "refused", f"fyrehose/{reason}") - count for reason, count in before.items()
        }

    yield
    with suppress(pytest.fail.Exception):
        eventually("", lambda: all(count >= reasons[reason] for reason, count in counted().items()), 10)
    assert counted() == reasons


def connect(hub: HubProcess, receive_buffer: int | None = None) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(10)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect(hub.address("fyrehose"))
    return sock


def datagram_socket(hub: HubProcess) -> socket.socket:
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.connect(hub.address("fyrehose"))
    sock.settimeout(10)
    return sock


def closed_by_peer(sock: socket.socket) -> bool:
    with suppress(ConnectionError):
        return sock.recv(1) == b""
    return True


def test_garbage_over_tcp(hub: HubProcess, random: Random) -> None:
    known = (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80)
    # One that begins a TLS hello is refused for another reason if the hello's second byte comes next.
    unknown = [kind for kind in range(256) if kind not in (*known, TLS_HELLO[0])]
    with bystanders(hub, random), refusals(hub, malformed=60, unexpected=30, limit=30):
        starts = [bytes([random.choice(unknown)]) for _ in range(60)]
        ours = (Deliver(1, b"forged"), Forward("127.0.0.1", 9, 1, 2), KeepaliveAck("127.0.0.1", 9))
        starts += [serialize(frame) for frame in ours] * 10
        starts += [b"\x02\xff\xff"] * 30
        random.shuffle(starts)
        for start in starts:
            with closing(connect(hub)) as sock:
                with suppress(ConnectionError):
                    sock.sendall(start + random.randbytes(random.randrange(100_000)))
                assert closed_by_peer(sock)


def test_connections_that_end_inside_a_packet(hub: HubProcess, random: Random) -> None:
    halves = [
        b"\x02",
        b"\x02\x00",
        b"\x02\x00\x09hello",
        b"\x02\xff\xf6" + bytes(60_000),
        KEEPALIVE[:3],
        b"\x04\x7f",
    ]
    with bystanders(hub, random), refusals(hub, cut_short=10 * len(halves)):
        for half in halves * 10:
            with closing(connect(hub)) as sock:
                sock.sendall(half)
                sock.shutdown(socket.SHUT_WR)
                assert closed_by_peer(sock)


def test_packets_that_come_byte_by_byte_and_never_end(hub: HubProcess, random: Random) -> None:
    count = CONNECTIONS - 20
    with bystanders(hub, random) as progress, refusals(hub, cut_short=count), ExitStack() as stack:
        socks = [stack.enter_context(closing(connect(hub))) for _ in range(count)]
        for sock in socks:
            # The longest packet there is, all but a little of it.
            sock.sendall(b"\x02\xff\xf6" + bytes(65_000))
        for _ in range(20):
            for sock in socks:
                sock.send(b"\x00")
        eventually("all are accepted", lambda: status(hub)["connections"] >= count)
        progress()


def test_more_connections_than_an_address_may_have(hub: HubProcess, random: Random) -> None:
    with bystanders(hub, random):
        before = counter(hub, "refused", "fyrehose/connections")
        with ExitStack() as stack:
            answers = []
            for _ in range(CONNECTIONS + 100):
                sock = stack.enter_context(closing(connect(hub)))
                with suppress(ConnectionError):
                    sock.sendall(KEEPALIVE)
                answers.append(closed_by_peer(sock))
            # The bystanders have their places already.
            assert 0 < answers.count(False) <= CONNECTIONS - 2
            assert counter(hub, "refused", "fyrehose/connections") - before == answers.count(True)
        eventually("places are free again", lambda: status(hub)["connections"] < CONNECTIONS)
        with Subscriber(hub.address("fyrehose")) as late:
            assert late.subscribed.wait(10)


@pytest.mark.parametrize(
    ("frame", "count"),
    # So small are the answers to KEEPALIVEs that it takes many to fill what the kernel holds for one connection.
    [(Request("0.0.0.0", 0, 1, LAST), 3), (Keepalive("0.0.0.0", 0), 1)],
    ids=["requests", "keepalives"],
)
def test_a_flood_of_questions_whose_answers_nobody_reads(
    hub: HubProcess, random: Random, frame: Request | Keepalive, count: int
) -> None:
    packets = serialize(frame) * 10_000

    def flood(socks: list[socket.socket]) -> None:
        while socks:
            # A connection that the hub does not read from waits here, until it is cut off.
            _, ready, _ = select.select([], socks, [], 30)
            assert ready
            for sock in ready:
                try:
                    sock.send(packets, socket.MSG_DONTWAIT)
                except ConnectionError:
                    socks.remove(sock)

    with bystanders(hub, random) as progress, ExitStack() as stack, refusals(hub, slow=count):
        socks = [stack.enter_context(closing(connect(hub, receive_buffer=4096))) for _ in range(count)]
        thread = threading.Thread(target=flood, args=(socks,))
        thread.start()
        while thread.is_alive():
            progress()


def test_a_flood_of_keepalives_whose_answers_are_read(hub: HubProcess, random: Random) -> None:
    stop = threading.Event()

    def flood(sock: socket.socket) -> None:
        while not stop.is_set():
            readable, writable, _ = select.select([sock], [sock], [], 1)
            if readable:
                sock.recv(1 << 20)
            if writable:
                with suppress(BlockingIOError):
                    sock.send(KEEPALIVE * 10_000, socket.MSG_DONTWAIT)

    with bystanders(hub, random) as progress, closing(connect(hub)) as sock:
        thread = threading.Thread(target=flood, args=(sock,))
        thread.start()
        try:
            for _ in range(5):
                progress()
        finally:
            stop.set()
            thread.join()


def test_small_packets_by_the_thousand_are_taken_in_order(hub: HubProcess) -> None:
    payloads = [b"%d" % number for number in range(3000)]
    packets = b"".join(KEEPALIVE + serialize(Push(payload)) for payload in payloads)
    with Subscriber(hub.address("fyrehose")) as subscriber, Publisher(hub.address("fyrehose")) as publisher:
        assert subscriber.subscribed.wait(10)
        publisher.sock.sendall(packets)
        eventually("all come", lambda: subscriber.received == len(payloads))
    assert subscriber.breaks == []
    assert [payload for run in subscriber.runs for payload in run.run] == payloads


def test_requests_for_one_message_by_the_thousand(hub: HubProcess, random: Random) -> None:
    with bystanders(hub, random), Subscriber(hub.address("fyrehose")) as greedy:
        # More at once than the hub queues for a connection: it reads on when it has served some.
        greedy.sock.sendall(
            b"".join(serialize(Request("0.0.0.0", 0, seq, seq)) for seq in [1, 2, 3, 4] * 500)
        )
        eventually("all are served", lambda: sum((run.seqs <= 4).sum() for run in list(greedy.runs)) == 2000)


def test_garbage_over_udp(hub: HubProcess, random: Random) -> None:
    with bystanders(hub, random), closing(datagram_socket(hub)) as sock:
        rounds = 50
        own_door = serialize(Keepalive(*hub.address("fyrehose")))
        with refusals(hub, malformed=4 * rounds, unexpected=2 * rounds):
            for _ in range(rounds):
                sock.send(b"")
                sock.send(b"\x41" + random.randbytes(random.randrange(1400)))
                sock.send(b"\x02\x00\x09hello")
                sock.send(serialize(Keepalive("0.0.0.0", 0)) + b"\x00")
                sock.send(serialize(Deliver(1, b"forged")))
                sock.send(serialize(KeepaliveAck("127.0.0.1", 9)))
                # The answer shows that the hub has read so far: none may be lost to a full socket.
                sock.send(own_door)
                sock.recv(100)


def test_keepalives_and_requests_in_the_name_of_others(hub: HubProcess, random: Random) -> None:
    with (
        bystanders(hub, random),
        closing(socket.socket(type=socket.SOCK_DGRAM)) as victim,
        closing(datagram_socket(hub)) as sock,
    ):
        victim.bind((VICTIM, 0))
        port = victim.getsockname()[1]
        rounds = 50
        with refusals(hub, foreign_address=2 * rounds, own_door=rounds, not_subscribed=rounds):
            for _ in range(rounds):
                sock.send(serialize(Request(VICTIM, port, 1, LAST)))
                sock.send(serialize(Request("127.0.0.1", 9, 1, LAST)))
                sock.send(serialize(Keepalive(VICTIM, port)))
                assert sock.recv(100) == serialize(KeepaliveAck(VICTIM, port))
                sock.send(serialize(Keepalive(*hub.address("fyrehose"))))
                assert sock.recv(100) == serialize(KeepaliveAck(*hub.address("fyrehose")))
        victim.setblocking(False)
        with pytest.raises(BlockingIOError):
            victim.recv(1)


def test_more_udp_subscribers_than_an_address_may_have(hub: HubProcess, random: Random) -> None:
    with bystanders(hub, random), closing(datagram_socket(hub)) as sock:
        taken = status(hub)["subscribers"]["fyrehose_udp"]
        with refusals(hub, table_full=taken + 50):
            for port in range(20_000, 20_000 + CONNECTIONS + 50):
                sock.send(serialize(Keepalive("127.0.0.1", port)))
                assert sock.recv(100) == serialize(KeepaliveAck("127.0.0.1", port))


@pytest.mark.parametrize(
    "datagram",
    [b"\x41nonsense", b"\x80guessing", serialize(Keepalive(VICTIM, 9))],
    ids=["garbage", "proofs", "keepalives"],
)
def test_a_flood_of_datagrams(hub: HubProcess, random: Random, datagram: bytes) -> None:
    with bystanders(hub, random) as progress, closing(datagram_socket(hub)) as sock:
        sock.setblocking(False)
        before, wanted = counter(hub, "refused"), 20_000
        while counter(hub, "refused") < before + wanted:
            for _ in range(5_000):
                with suppress(BlockingIOError):
                    sock.send(datagram)
            progress()


def test_more_connections_than_open_files(tmp_path: Path, random: Random) -> None:
    # Segments this small make the log open a file many times a second.
    settings = ("log.segment_bytes=1KiB", "log.segment_seconds=0.05", "limits.connections=400")
    with ExitStack() as stack:
        few = {resource.RLIMIT_NOFILE: 128}
        hub = stack.enter_context(HubProcess.start(tmp_path, *settings, soft_limits=few))
        with bystanders(hub, random) as progress:
            socks = [stack.enter_context(closing(connect(hub))) for _ in range(500)]
            eventually("the hub has as many as it takes", lambda: status(hub)["connections"] == 400)
            progress()
            assert sum(closed_by_peer(sock) for sock in socks[-102:]) == 102
        assert counter(hub, "refused_messages") == 0
        assert counter(hub, "upkeep_failures") == 0
        hub.terminate()
