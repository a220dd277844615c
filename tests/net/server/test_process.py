"""One hub process: start, where its doors are, what it says of itself, stop."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.hubprocess import HubProcess
from tests.net.conftest import Dial, Start
from tests.net.raw import (
    LOOPBACK,
    TcpPeer,
    UdpPeer,
    address_of,
    backbone_of,
    deliver,
    delivers,
    keepalive,
    push,
    request,
    running_hub,
    until,
)
from tests.ports import lasting_port

from headrace import web
from headrace.config import DOORS, load
from headrace.errors import ConfigError, LockedError
from headrace.hub.sequence import TURN_BYTES
from headrace.log import Log
from headrace.message import Batch, Run, node_id
from headrace.net.server.accepting.tcp_door import ConnectionGroup
from headrace.net.server.process import Server


@pytest.fixture
def taken() -> Iterator[int]:
    """A TCP port that somebody listens on."""
    with socket.create_server((LOOPBACK, 0)) as sock:
        yield sock.getsockname()[1]


def settings(data: Path, *sets: str) -> object:
    closed = [f"listen.{door}=off" for door in DOORS]
    return load(environ={}, sets=[*closed, f"node.data={data}", *sets])


def making(directory: Path) -> list[Path]:
    """What is written and not yet there."""
    return list(directory.glob("*.making"))


async def starting(data: Path, *sets: str) -> str:
    """Why a hub does not start; whatever it opened is closed again."""
    server = Server(settings(data, *sets), http=web.start)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        await server.start()
    assert not server.ready
    # Had it kept its log open, another could not take it.
    Log.open(data / "log").close()
    return str(caught.value)


class TestStart:
    async def test_both_transports_have_one_port_number(self, server: Server) -> None:
        host, port = address_of(server)
        assert host == LOOPBACK
        assert port > 0
        with UdpPeer(server) as udp:
            await udp.subscribe()
        with await TcpPeer.connect(server) as tcp:
            await tcp.subscribe()

    async def test_the_ready_file(self, server: Server, tmp_path: Path) -> None:
        path = tmp_path / "ready.json"
        path.write_text("what a killed hub left behind, and longer than what follows" * 10)
        server.write_ready_file(path)
        assert json.loads(path.read_bytes()) == {"pid": os.getpid(), **server.doors}
        assert server.doors["fyrehose"] == "{}:{}".format(*address_of(server))
        assert not making(tmp_path)

    async def test_a_port_that_is_taken_by_tcp(self, tmp_path: Path, taken: int) -> None:
        said = await starting(tmp_path, f"listen.fyrehose={LOOPBACK}:{taken}")
        assert said == (
            f"listen.fyrehose = '127.0.0.1:{taken}' (from --set): expected a free address: something listens"
            " there already; try --set listen.fyrehose=127.0.0.1:0"
        )

    async def test_a_port_that_is_taken_by_udp(self, tmp_path: Path) -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.bind((LOOPBACK, 0))
            port = sock.getsockname()[1]
            said = await starting(tmp_path, f"listen.fyrehose={LOOPBACK}:{port}")
            assert f"listen.fyrehose = '127.0.0.1:{port}'" in said
            # The TCP half was given back: nothing of this process has it.
            ours = [each.laddr for each in psutil.Process().net_connections("tcp") if each.laddr]
            assert (LOOPBACK, port) not in ours

    async def test_the_doors_that_were_open_are_closed_when_a_later_one_cannot_be(
        self, tmp_path: Path, taken: int
    ) -> None:
        port = lasting_port()
        said = await starting(
            tmp_path, f"listen.fyrehose={LOOPBACK}:{port}", f"listen.http={LOOPBACK}:{taken}"
        )
        assert said.startswith(f"listen.http = '127.0.0.1:{taken}'")
        socket.create_server((LOOPBACK, port)).close()
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.bind((LOOPBACK, port))

    async def test_an_address_of_another_machine(self, tmp_path: Path) -> None:
        said = await starting(tmp_path, "listen.fyrehose=203.0.113.9:0")
        assert "expected an address of this machine (cannot assign requested address)" in said

    async def test_free_ports_are_taken_where_that_may_be(self, tmp_path: Path, taken: int) -> None:
        wanted = f"{LOOPBACK}:{taken}"
        async with running_hub(tmp_path, f"listen.fyrehose={wanted}", take_free_ports=True) as server:
            assert server.doors["fyrehose"] != wanted
            assert server.moved["fyrehose"] == (wanted, server.doors["fyrehose"])

    async def test_another_hubs_log(self, server: Server, tmp_path: Path) -> None:
        other = Server(settings(tmp_path, "listen.fyrehose=off"))  # type: ignore[arg-type]
        with pytest.raises(LockedError):
            await other.start()

    async def test_doors_that_are_off(self, tmp_path: Path) -> None:
        server = Server(settings(tmp_path))  # type: ignore[arg-type]
        await server.start()
        assert server.doors == {}
        assert server.status()["head"] == 0
        await server.drain()

    async def test_a_torn_tail_is_cut_and_counted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with running_hub(tmp_path) as server:
            with await TcpPeer.connect(server) as peer:
                await peer.send(push(b"whole"))
                await until(lambda: server.hub.log.head == 1)
            (tail,) = (tmp_path / "log").glob("*.open")
        with tail.open("ab") as file:
            file.write(b"half a frame")
        async with running_hub(tmp_path) as server:
            assert server.hub.log.head == 1
            assert server.hub.counters.get("torn_tails") == 1
        assert "cut 12 bytes of an unfinished write off" in caplog.text

    async def test_a_damaged_snapshot_is_passed_over_and_counted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with running_hub(tmp_path) as server:
            with await TcpPeer.connect(server) as peer:
                await peer.send(push(b"a"))
                await until(lambda: server.hub.log.head == 1)
        (snapshot,) = (tmp_path / "log").glob("*.snapshot")
        snapshot.write_bytes(b"not a snapshot, but long enough to have a header")
        async with running_hub(tmp_path) as server:
            assert server.hub.log.head == 1
            assert server.hub.counters.get("damaged_snapshots") == 1
        assert "passed over a damaged snapshot" in caplog.text

    async def test_foreign_files_in_the_data_directory(self, tmp_path: Path) -> None:
        (tmp_path / "log").mkdir()
        for path in (tmp_path / "notes.txt", tmp_path / "log" / "README", tmp_path / "log" / "x.arrow"):
            path.write_text("somebody else's")
        async with running_hub(tmp_path) as server:
            assert server.ready
        assert (tmp_path / "log" / "x.arrow").read_text() == "somebody else's"


class TestTurn:
    async def test_what_sockets_brought_together_is_one_append(
        self, server: Server, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        peers = [await dial(server) for _ in range(10)]
        appends: list[int] = []
        plainly = server.hub.log.append

        def append(batches: list[object]) -> None:
            appends.append(len(batches))
            plainly(batches)  # type: ignore[arg-type]

        monkeypatch.setattr(server.hub.log, "append", append)
        # Blocking sends, so that the loop finds all of them at once.
        for peer in peers:
            peer.sock.send(push(b"x"))
        await until(lambda: server.hub.log.head == 10)
        assert appends == [10]

    async def test_but_not_more_than_keeps_everyone_busy(self, server: Server, dial: Dial) -> None:
        # A socket may be read many times before anyone else is called: what it brings is not one huge turn.
        subscriber, publisher = await dial(server), await dial(server)
        await subscriber.subscribe()
        await publisher.send(push(bytes(1000)) * 4000)
        await subscriber.delivers(1, 4000)
        sizes = [batch.run.size for batch in server.hub.log.scan(1)]
        assert max(sizes) <= 2 * TURN_BYTES


class TestStatus:
    async def test_what_a_hub_says_of_itself(self, start: Start, dial: Dial) -> None:
        server = await start("node.name=mill", "log.fsync=never")
        peer = await dial(server)
        await peer.subscribe()
        await peer.send(push(b"a"))
        assert await peer.deliver() == (1, b"a")
        status = server.status()
        assert status["log"] == str(server.hub.log.uuid)
        assert (status["first"], status["head"], status["tail"]) == (1, 1, 1)
        assert status["node"] == {"name": "mill", "id": node_id("mill")}
        assert status["mode"] == "WRK"
        assert status["doors"] == server.doors
        assert status["fsync"] == "never"
        assert status["connections"] == 1
        assert status["holds"] == {}
        counters = status["counters"]
        assert isinstance(counters, dict)
        assert counters["received"] == {"fyrehose": 1}
        assert counters["delivered"]["fyrehose/tcp"] == 1
        json.dumps(status)

    async def test_the_log_is_the_same_after_a_restart(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path) as server:
            uuid = server.status()["log"]
        async with running_hub(tmp_path) as server:
            assert server.status()["log"] == uuid


class TestBackground:
    async def test_a_loop_that_fails_is_seen(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def fails(_self: Server) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(Server, "_tick", fails)
        async with running_hub(tmp_path) as server:
            await until(lambda: server.hub.counters.get("background_failures") == 1)
            assert not server.ready
        assert "restart the hub" in caplog.text

    async def test_one_that_is_told_to_stop_is_no_failure(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path) as server:
            counters = server.hub.counters
        assert counters.get("background_failures") == 0


class TestDrain:
    async def test_a_disk_that_never_answers_is_not_waited_for_longer_than_the_setting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        hub = running_hub(tmp_path, "limits.drain_seconds=0.5", "log.fsync=always")
        server = await hub.__aenter__()
        answers = threading.Event()
        monkeypatch.setattr(server.hub.log, "sync", lambda: answers.wait(60) and 0)
        server.hub.submit(Batch(Run.of([b"waits"])))
        async with asyncio.timeout(30):
            await hub.__aexit__(None, None, None)
        assert "the disk is slow" in caplog.text
        assert "too slow to wait for" in caplog.text
        answers.set()

    async def test_what_was_taken_is_kept_and_sent(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path) as server:
            subscriber, publisher = await TcpPeer.connect(server), await TcpPeer.connect(server)
            await subscriber.subscribe()
            await publisher.send(b"".join(push(b"%d" % seq) for seq in range(1, 5001)))
            await until(lambda: server.hub.log.head == 5000)
            address = address_of(server)
        seen = delivers(await subscriber.rest())
        assert seen == [(seq, b"%d" % seq) for seq in range(1, 5001)]
        assert await publisher.rest() == b""
        assert not server.ready
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        for peer in (subscriber, publisher):
            peer.close()
        log = Log.open(tmp_path / "log", read_only=True)
        assert log.head == 5000
        assert log.snapshot is not None
        assert log.snapshot.seq == 5000
        log.close()

    async def test_what_waits_for_its_sync_is_committed_and_sent(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path, "log.fsync=always") as server:
            peer = await TcpPeer.connect(server)
            await peer.subscribe()
            plainly, may_end = server.hub.log.sync, threading.Event()

            def sync() -> int:
                may_end.wait(5)
                return plainly()

            server.hub.log.sync = sync  # type: ignore[method-assign]
            await peer.send(push(b"late"))
            await until(lambda: server.hub.log.tail == 1)
            assert server.hub.log.head == 0
            asyncio.get_running_loop().call_later(0.05, may_end.set)
        assert await peer.rest() == deliver(1, b"late")
        peer.close()

    async def test_under_a_flood(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path, "log.fsync=always", "limits.drain_seconds=5") as server:
            peer = await TcpPeer.connect(server)
            flood = asyncio.ensure_future(peer.send(push(bytes(1000)) * 400_000))
            await until(lambda: server.hub.log.head > 100)
            loop = asyncio.get_running_loop()
            began = loop.time()
        assert loop.time() - began < 2
        with pytest.raises(ConnectionError):
            await flood
        peer.close()
        log = Log.open(tmp_path / "log", read_only=True)
        assert log.snapshot is not None
        assert log.snapshot.seq > 100
        log.close()

    async def test_who_takes_nothing_is_not_waited_for_longer_than_the_setting(self, tmp_path: Path) -> None:
        loop = asyncio.get_running_loop()
        async with running_hub(tmp_path, "limits.drain_seconds=0.5", "limits.queue_bytes=64KiB") as server:
            backbone_of(server)._listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            peer = await TcpPeer.connect(server, receive_buffer=8192)
            await peer.send(push(bytes(60_000)) * 100)
            await until(lambda: server.hub.log.head == 100)
            await peer.send(request(1, 100))
            (stream,) = backbone_of(server).connections
            await until(lambda: stream._full)
            began = loop.time()
        assert 0.2 < loop.time() - began < 3
        assert server.connections == 0
        peer.close()

    async def test_a_connection_that_comes_meanwhile_is_refused(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        # All but the listening socket: somebody may be in its backlog.
        ConnectionGroup.stop(backbone_of(server))
        late = await dial(server)
        assert await late.rest() == b""
        assert server.hub.counters.get("refused", door="fyrehose", reason="connections") == 1
        # Nothing more is read either, not even when a congested hub has room again.
        backbone_of(server).relieved()
        await peer.send(keepalive() + push(b"unread"))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert server.hub.log.tail == 0

    def test_sigterm_under_load(self, tmp_path: Path) -> None:
        with HubProcess.start(tmp_path) as hub:
            subscriber = socket.create_connection(hub.address("fyrehose"))
            publisher = socket.create_connection(hub.address("fyrehose"))
            subscriber.sendall(keepalive())
            assert len(subscriber.recv(7)) == 7
            seen = bytearray()

            def publish() -> None:
                number = 0
                try:
                    while True:
                        publisher.sendall(b"".join(push(b"%08d" % (number + each)) for each in range(100)))
                        number += 100
                except OSError:
                    pass

            def subscribe() -> None:
                try:
                    while data := subscriber.recv(1 << 20):
                        seen.extend(data)
                except OSError:
                    pass

            threads = [threading.Thread(target=each) for each in (publish, subscribe)]
            for thread in threads:
                thread.start()
            while len(seen) < 1 << 20:
                threads[1].join(0.01)
                assert threads[1].is_alive()
            hub.terminate()
            for thread in threads:
                thread.join()
            subscriber.close()
            publisher.close()
        count = len(seen) // 17
        assert delivers(bytes(seen[: count * 17])) == [
            (seq, b"%08d" % (seq - 1)) for seq in range(1, count + 1)
        ]
        log = Log.open(hub.data / "log", read_only=True)
        assert log.head >= count
        log.close()
