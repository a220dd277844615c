"""A frontend over the backbone's own protocol: the same numbers, plain payloads, best effort."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.client.hubs import UdpHub
from tests.net.raw import TcpPeer, ack, deliver, forward, keepalive, push, running_hub, until

import headrace
from headrace.client.link.client import LinkClient
from headrace.errors import RefusedError, UnreachableError
from headrace.log.snapshots.snapshot import Snapshot
from headrace.log.snapshots.start_after import begin
from headrace.net.server.process import Server
from headrace.net.upstream import over_fyrehose


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_fyrehose, "_FIRST_SECONDS", 0.5)
    monkeypatch.setattr(over_fyrehose, "START_SECONDS", 0.5)


@pytest.fixture
async def backbone(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_hub(tmp_path / "backbone", "listen.http=off") as server:
        yield server


def client(server: Server, **options: Any) -> LinkClient:
    made: LinkClient = headrace.connect(f"tube://{server.doors['tube_tcp']}", **options)
    return made


def kept(server: Server) -> list[tuple[int, bytes]]:
    log = server.hub.log
    return [(m.seq, m.payload) for batch in log.scan(log.first) for m in batch]


@pytest.mark.parametrize("scheme", ["fyrehose", "fyrehose+udp"])
async def test_numbers_and_payloads_are_the_same(tmp_path: Path, backbone: Server, scheme: str) -> None:
    async with client(backbone) as link:
        await link.publish([b"one", b"two"], topic="lost on the way")
        where = f"node.upstream={scheme}://{backbone.doors['fyrehose']}"
        async with running_hub(tmp_path / "front", "listen.http=off", where) as front:
            await until(lambda: front.hub.log.head == 2)
            peer = await TcpPeer.connect(front)
            await peer.subscribe()
            await peer.send(push(b"three"))
            assert await peer.deliver() == (3, b"three")
            peer.close()
            await link.publish([b"four"])
            await until(lambda: front.hub.log.head == 4)
            assert kept(front) == kept(backbone)
            assert front.hub.log.uuid != backbone.hub.log.uuid
            assert front.status()["mode"] == "FRONTEND"
        await link.publish([b"five"])
        async with running_hub(tmp_path / "front", "listen.http=off", where) as front:
            await until(lambda: front.hub.log.head == 5)
            assert kept(front) == kept(backbone)


async def test_what_needs_more_than_a_push_is_refused(tmp_path: Path, backbone: Server) -> None:
    where = f"node.upstream=fyrehose://{backbone.doors['fyrehose']}"
    async with running_hub(tmp_path / "front", "listen.http=off", where) as front, client(front) as link:
        await until(lambda: front.problem is None)
        for asked in (link.publish(b"x"), link.hold("h", 1), link.publisher("me").publish(b"x")):
            with pytest.raises(RefusedError) as refused:
                await asked
            assert refused.value.code == "unavailable"
        stage = await link.stage("q", 0, [b"row"])
        with pytest.raises(RefusedError, match="no commits"):
            await link.commit("q", 0, [stage])
        assert backbone.hub.log.head_op == 0


async def test_entries_do_not_come_and_leave_no_gap(tmp_path: Path, backbone: Server) -> None:
    async with client(backbone) as link:
        await link.hold("before", 1)
        await link.publish(b"one")
        where = f"node.upstream=fyrehose://{backbone.doors['fyrehose']}"
        async with running_hub(tmp_path / "front", "listen.http=off", where) as front:
            for name in ("two", "three"):
                await link.create_service(name)
                await link.hold(name, 1)
                await link.publish(name.encode())
            await until(lambda: front.hub.log.head == 3)
            assert kept(front) == kept(backbone) == [(1, b"one"), (2, b"two"), (3, b"three")]
            assert front.hub.log.head_op == 3


@pytest.mark.slow
async def test_a_new_copy_begins_with_what_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_fyrehose, "_FIRST_SECONDS", 20.0)
    monkeypatch.setattr(over_fyrehose, "_GIVE_UP_SECONDS", 0.2)
    sets = ("listen.http=off", "log.segment_bytes=1KiB", "log.retain_bytes=8KiB", "log.segment_seconds=60")
    async with running_hub(tmp_path / "backbone", *sets) as backbone, client(backbone) as link:
        for number in range(20):
            await link.publish([b"%d" % number * 500])
        await until(lambda: backbone.hub.log.first > 5)
        assert backbone.hub.log.first < 20
        where = f"node.upstream=fyrehose://{backbone.doors['fyrehose']}"
        async with running_hub(tmp_path / "front", "listen.http=off", where) as front:
            await until(lambda: front.hub.log.head == backbone.hub.log.head)
            assert front.hub.log.first >= 5


async def test_without_a_log_there_must_be_an_upstream_hub(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError):
        async with running_hub(tmp_path / "front", "node.upstream=fyrehose://127.0.0.1:1"):
            pass


async def test_it_follows_a_backbone_of_another_make(tmp_path: Path) -> None:
    """DELIVERs from any hub, a hole that stays, and a FORWARD that the frontend answers (rules 3 and 4)."""
    with UdpHub() as hub, UdpHub() as other:
        host, port = hub.endpoint
        where = f"node.upstream=fyrehose+udp://{host}:{port}"
        begin(tmp_path / "front" / "log", Snapshot(uuid4(), 0, 0, {}), sync=False)
        async with running_hub(tmp_path / "front", "listen.http=off", where) as front:
            frontend_at = await hub.subscribed()
            for seq in (1, 2, 5):
                hub.send(deliver(seq, b"%d" % seq), frontend_at)
            await until(lambda: front.hub.log.head == 2)
            hub.send(deliver(3, b"3") + deliver(4, b"4"), frontend_at)
            await until(lambda: front.hub.log.head == 5)
            assert kept(front) == [(n, b"%d" % n) for n in range(1, 6)]
            hub.send(forward(4, 5, *other.endpoint), frontend_at)
            assert {(await other.receive())[0] for _ in range(2)} == {deliver(4, b"4"), deliver(5, b"5")}


async def test_behind_an_address_translator_it_states_no_address(tmp_path: Path) -> None:
    with UdpHub() as hub:
        host, port = hub.endpoint
        begin(tmp_path / "front" / "log", Snapshot(uuid4(), 0, 0, {}), sync=False)
        where = f"node.upstream=fyrehose+udp://{host}:{port}"
        async with running_hub(
            tmp_path / "front", "listen.http=off", where, "node.upstream_translated=true"
        ) as front:
            datagram, frontend_at = await hub.datagram()
            assert datagram == keepalive()
            hub.send(ack(), frontend_at)
            hub.send(deliver(1, b"1"), frontend_at)
            await until(lambda: front.hub.log.head == 1)


async def test_numbers_that_nobody_has_are_kept_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = over_fyrehose.FyrehoseUpstream._make
    monkeypatch.setattr(
        over_fyrehose.FyrehoseUpstream, "_make", lambda self, seq, _patience=None: make(self, seq, 0.1)
    )
    with UdpHub() as hub:
        host, port = hub.endpoint
        begin(tmp_path / "front" / "log", Snapshot(uuid4(), 0, 0, {}), sync=False)
        where = f"node.upstream=fyrehose+udp://{host}:{port}"
        async with running_hub(tmp_path / "front", "listen.http=off", where) as front:
            frontend_at = await hub.subscribed()
            for seq in (1, 4):
                hub.send(deliver(seq, b"%d" % seq), frontend_at)
            await until(lambda: front.hub.log.head == 4)
            found = [(m.seq, m.payload, m.origin, m.topic) for b in front.hub.log.scan(1) for m in b]
            assert found == [
                (1, b"1", "fyrehose", ""),
                (2, b"", "fyrehose", "lost/"),
                (3, b"", "fyrehose", "lost/"),
                (4, b"4", "fyrehose", ""),
            ]
            assert front.hub.counters.as_dict()["upstream_lost"] == 2
            assert front.hub.log.head_op == 4, "they are messages, which this copy lacks"
