"""The link's client against a real hub: all that it does, in short."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.client.links import break_tubes, client, read_all, some
from tests.net.raw import running_hub
from tests.ports import lasting_port

import headrace
from headrace.client.link.client import LinkClient
from headrace.errors import ClosedError, RefusedError, TrimmedError, UsageError
from headrace.log.snapshots import snapshot
from headrace.net.server.process import Server
from headrace.wire.sdk.predicate import Equals


def test_what_its_methods_take_and_return_is_public() -> None:
    assert {
        "BatchStream",
        "Consumer",
        "EntryStream",
        "Extent",
        "MessageStream",
        "Acknowledged",
        "Row",
    } <= set(headrace.__all__)


async def test_read_and_head(server: Server, link: LinkClient) -> None:
    await link.publish([b"%d" % n for n in range(1000)], topic="a")
    await server.maintenance.seal()
    await link.publish([b"x"], topic="b", attributes={"c": "d"})
    await link.hold("job", 5)
    extent = await link.head()
    assert (extent.log, extent.first, extent.head) == (link.log, 1, 1001)
    assert await read_all(link) == list(range(1, 1002))
    assert await read_all(link, 10, 20) == list(range(10, 21))
    assert await read_all(link, topic="b") == [1001]
    assert await read_all(link, where={"c": Equals("d")}) == [1001]
    assert await read_all(link, where={"c": {"use": 1, "strval": "d"}}) == [1001]
    assert await read_all(link, where={"c": "d"}) == await read_all(link, where={"c": ["d", 5]}) == [1001]
    assert await read_all(link, origin="log") == []
    assert [rows.column("topic").to_pylist() async for rows in link.entries(1001, 1001)] == [["hold/job"]]
    assert await link.holds() == {"job": 5}
    await link.release("job")
    assert await link.holds() == {}
    assert (await link.status())["head"] == 1001
    assert snapshot.parse(await link.snapshot()).seq == 1001
    assert await link.services() == []


async def test_refusals_can_be_branched_on(server: Server, link: LinkClient) -> None:
    with pytest.raises(RefusedError) as refused:
        await link.release("nothing")
    assert refused.value.code == "missing"
    await link.publish([b"x"] * 10)
    await server.maintenance.seal()
    await link.publish(b"y")
    await server.maintenance.snapshot()
    server.hub.log.retain(0, retain_bytes=0, retain_us=None, holds={})
    with pytest.raises(TrimmedError) as trimmed:
        await read_all(link, 3, 5)
    assert (trimmed.value.first, trimmed.value.last, trimmed.value.oldest) == (3, 5, 11)


async def test_everything_goes_on_behind_a_restart(tmp_path: Path) -> None:
    door = f"listen.tube_tcp=127.0.0.1:{lasting_port()}"
    async with running_hub(tmp_path, "listen.http=off", door) as server:
        link = client(server)
        await link.open()
        follow = link.follow()
        assert await follow.begun() == 1
        assert await link.publish(b"before") == (1, 1)
    async with running_hub(tmp_path, "listen.http=off", door):
        assert await link.publish(b"after") == (2, 2)
        assert [m.payload async for m in some(follow, 2)] == [b"before", b"after"]
        await link.close()


async def test_after_close_nothing_works(server: Server) -> None:
    link = client(server)
    with pytest.raises(UsageError):
        await link.head()
    await link.open()
    await link.close()
    await link.close()
    with pytest.raises(ClosedError):
        await link.head()
    with pytest.raises(ClosedError):
        await link.publish(b"x")


async def test_auth(tmp_path: Path) -> None:
    who = "0011223344556677889900aa"
    sets = ("listen.http=off", "auth.required=true", f"auth.clients.{who}=secret")
    async with running_hub(tmp_path, *sets) as server:
        async with client(server, client_id=who, key="secret") as link:
            await link.publish(b"x")
            break_tubes(server)
            assert (await link.head()).head == 1
        with pytest.raises(RefusedError) as refused:
            await client(server).open()
        assert refused.value.code == "auth"


async def test_stages(link: LinkClient) -> None:
    stages = [await link.stage("q", 3, [b"a", b"b"]), await link.stage("q", 3, [b"c"], part=1)]
    assert (await link.head()).head == 0
    assert await link.commit("q", 3, stages) == (1, 3)
    assert await link.commit("q", 3, stages) == (1, 3)
    gone = await link.stage("q", 4, [b"d"])
    await link.abort([gone])
    with pytest.raises(RefusedError):
        await link.commit("q", 4, [gone])


def test_without_an_event_loop(tmp_path: Path) -> None:
    from tests.hubprocess import HubProcess

    with HubProcess.start(tmp_path) as hub, headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        assert link.publish([b"a", b"b"]) == (1, 2)
        assert sum(rows.num_rows for rows in link.read()) == 2
