"""Three nodes in one process, over real sockets: founding, passing on, keys, certificates, beginning anew."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.certificates import HERE, Authority
from tests.net.conftest import Start
from tests.net.raw import LOOPBACK
from tests.ports import lasting_port

import headrace
from headrace.client.link.client import LinkClient
from headrace.cluster.durable_state import MAX_NODES
from headrace.cluster.membership import SILENCE_SECONDS
from headrace.config import DOORS, load
from headrace.errors import (
    ConfigError,
    HeadraceError,
    RefusedError,
    StorageError,
    UnreachableError,
    UsageError,
)
from headrace.message import Message, messages, node_id
from headrace.net.server.process import Server, StartHttp
from headrace.wire.link.plain_rows import published_body
from headrace.wire.link.requests import PublishRequest
from headrace.wire.parcel.body import Mode

SECONDS = 40.0


async def until(what: str, holds: Callable[[], object]) -> None:
    """Wait for something to become true."""
    try:
        async with asyncio.timeout(SECONDS):
            while not holds():  # noqa: ASYNC110 -- the hubs have no event for each of their facts
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"waited in vain: {what}")


class Nodes:
    """Nodes of one cluster in this process."""

    def __init__(self, directory: Path, *sets: str, http: StartHttp | None = None) -> None:
        self._directory = directory
        self._sets = sets
        self._http = http
        self._addresses = [_free_address() for _ in range(3)]
        self.servers: dict[int, Server] = {}

    async def start(self, number: int, *sets: str) -> Server:
        """Start one."""
        free = [f"listen.{door}={LOOPBACK}:0" for door in DOORS]
        settings = load(
            environ={},
            sets=[
                *free,
                f"node.data={self.data(number)}",
                f"node.name=node{number}",
                f"listen.parcel={self._addresses[number]}",
                f"cluster.peers={','.join(self._addresses)}",
                *self._sets,
                *sets,
            ],
        )
        server = self.servers[number] = Server(settings, http=self._http)
        await server.start()
        return server

    async def stop(self, number: int) -> None:
        """Stop one in good order."""
        await self.servers.pop(number).drain()

    def data(self, number: int) -> Path:
        """A node's data directory."""
        return self._directory / f"node{number}"

    async def work(self) -> Server:
        """Wait until all that were started work, and agree; return the primary."""

        def working() -> bool:
            facts = [server.status() for server in self.servers.values()]
            primaries = {fact["cluster"]["primary"] for fact in facts}  # type: ignore[index]
            heads = {server.hub.log.head_op for server in self.servers.values()}
            same = len(heads) == 1 and heads != {0} and len(primaries) == 1
            return same and primaries != {None} and all(fact["mode"] == "WRK" for fact in facts)

        await until("all nodes work", working)
        name = next(iter(self.servers.values())).status()["cluster"]["primary"]  # type: ignore[index]
        return next(each for each in self.servers.values() if each.settings.node.name == name)


def _free_address() -> str:
    return f"{LOOPBACK}:{lasting_port()}"


Make = Callable[..., Awaitable[Nodes]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Start three nodes; they are drained when the test is over."""
    async with AsyncExitStack() as stack:

        async def begin(*sets: str) -> Nodes:
            nodes = Nodes(tmp_path, "limits.drain_seconds=2", *sets)

            async def end() -> None:
                await asyncio.gather(*(server.drain() for server in nodes.servers.values()))

            stack.push_async_callback(end)
            for number in range(3):
                await nodes.start(number)
            return nodes

        yield begin


def link_of(server: Server) -> LinkClient:
    link: LinkClient = headrace.connect(f"tube://{server.doors['tube_tcp']}")
    return link


async def kept(server: Server) -> list[Message]:
    """The messages that a node has, as a client reads them."""
    async with link_of(server) as link:
        return [each async for batch in link.read(server.hub.log.first) for each in messages(batch)]


def operations(server: Server) -> list[tuple[int, Message]]:
    """Everything that a node has, entries included, and where it stands."""
    log = server.hub.log
    return [(each.op + place, row) for each in log.scan_ops(log.first_op) for place, row in enumerate(each)]


@pytest.mark.parametrize("fsync", ["interval", "always"])
async def test_any_node_takes_publishes_and_a_repeat_is_there_once(make: Make, fsync: str) -> None:
    nodes = await make(f"log.fsync={fsync}")
    await nodes.work()
    places = set()
    for server in nodes.servers.values():
        async with link_of(server) as link:
            publisher = link.publisher("one")
            publisher._number = 0  # as if it had not heard of the acknowledgement
            acknowledged = await publisher.publish([b"a", b"b"])
            places.add(acknowledged)
            await link.publish(server.settings.node.name.encode())
    await nodes.work()
    assert len(places) == 1
    logs = [operations(server) for server in nodes.servers.values()]
    assert logs[0] == logs[1] == logs[2]
    assert [op for op, _ in logs[0]] == list(range(1, len(logs[0]) + 1))
    for server in nodes.servers.values():
        got = await kept(server)
        assert sorted(message.payload for message in got) == [b"a", b"b", b"node0", b"node1", b"node2"]
        assert [message.seq for message in got] == [1, 2, 3, 4, 5]
        assert server.status()["head"] == 5
    assert len({str(server.hub.log.uuid) for server in nodes.servers.values()}) == 1


@pytest.mark.slow
async def test_an_epoch_holds_at_every_node_and_under_the_next_primary(make: Make) -> None:
    nodes = await make()
    primary = await nodes.work()
    one, two = [server for server in nodes.servers.values() if server is not primary]
    async with link_of(one) as first, link_of(two) as second:
        old, new = first.publisher("orders"), second.publisher("orders")
        assert await old.publish(b"a") == (1, 1)
        assert await new.publish(b"b") == (2, 2)
        with pytest.raises(RefusedError, match="opened anew") as refused:
            await old.publish(b"c")
        assert refused.value.code == "fenced"
        await nodes.stop(next(number for number, server in nodes.servers.items() if server is primary))
        with pytest.raises(RefusedError, match="opened anew"):
            await old.publish(b"d")
        assert await new.publish(b"e") == (3, 3)
        for number, code in ((10**15, "fenced"), (0, "fenced")):
            with pytest.raises(RefusedError) as jumped:
                await first.ask(
                    lambda n, number=number: PublishRequest(id=n, publisher="orders", number=number),
                    published_body([b"x"], ""),
                )
            assert jumped.value.code == code
        await first.ask(lambda n: PublishRequest(id=n, publisher="p", number=0), published_body([b"x"], ""))
        with pytest.raises(RefusedError) as other:
            await second.ask(
                lambda n: PublishRequest(id=n, publisher="p", number=0), published_body([b"y"], "")
            )
        assert other.value.code == "conflict"
    await nodes.work()
    for server in nodes.servers.values():
        assert [row.payload for row in await kept(server)] == [b"a", b"b", b"e", b"x"]


async def test_a_backup_takes_entries_and_messages_in_turn(make: Make) -> None:
    nodes = await make()
    primary = await nodes.work()
    backup = next(server for server in nodes.servers.values() if server is not primary)
    async with link_of(backup) as link:
        publisher = link.publisher("one")
        for count in range(1, 6):
            assert await publisher.publish(b"numbered by its publisher") == (2 * count - 1, 2 * count - 1)
            # What doors submit has numbers of the node's own, which do not count the requests of publishers.
            await link.hold("held", 2 * count - 1)
            assert await link.publish(b"after it") == (2 * count, 2 * count)
    await nodes.work()
    for server in nodes.servers.values():
        assert [message.seq for message in await kept(server)] == list(range(1, 11))
        assert server.hub.state.holds == {"held": 9}
        assert operations(server) == operations(primary)
    assert "refused" not in backup.hub.counters.as_dict()


async def test_a_commit_of_stages_is_there_once_whichever_node_is_asked(make: Make) -> None:
    nodes = await make()
    await nodes.work()
    spans = set()
    for server in nodes.servers.values():
        async with link_of(server) as link:
            stages = [await link.stage("query", 1, [b"x", b"y"]), await link.stage("query", 1, [b"z"])]
            spans.add(tuple(await link.commit("query", 1, stages)))
            spans.add(tuple(await link.commit("query", 1, stages)))
            # Other rows, or a batch before the first that is known: neither is called done.
            for batch in (1, 0):
                other = await link.stage("query", batch, [b"x", b"y", b"other"])
                with pytest.raises(RefusedError) as refused:
                    await link.commit("query", batch, [other])
                assert refused.value.code == "conflict"
    await nodes.work()
    assert len(spans) == 1
    for server in nodes.servers.values():
        assert [(message.seq, message.payload) for message in await kept(server)] == [
            (1, b"x"),
            (2, b"y"),
            (3, b"z"),
        ]


async def test_a_primary_whose_tubes_are_off_knows_repeats_all_the_same(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "limits.drain_seconds=2", "listen.tube_ws=off")
    # View 1, in which a cluster begins to work, has the second of the ids in order as its primary.
    ids = sorted(range(3), key=lambda number: node_id(f"node{number}"))
    for number in range(3):
        await nodes.start(number, *(() if number == ids[0] else ("listen.tube_tcp=off",)))
    try:
        await nodes.work()
        places, spans = set(), set()
        async with link_of(nodes.servers[ids[0]]) as link:
            for _ in range(2):
                publisher = link.publisher("one")
                publisher._number = 0  # as if it had not heard of the acknowledgement
                places.add(await publisher.publish([b"a"]))
                stage = await link.stage("query", 1, [b"x"])
                spans.add(tuple(await link.commit("query", 1, [stage])))
        assert (len(places), len(spans)) == (1, 1)
        assert "tube" not in nodes.servers[ids[1]].subscribers
    finally:
        await asyncio.gather(*(server.drain() for server in nodes.servers.values()))


async def test_what_a_reader_lost_is_known_to_every_node_and_counted_by_one(make: Make) -> None:
    nodes = await make()
    primary = await nodes.work()
    told = next(server for server in nodes.servers.values() if server is not primary)
    each = {"a": {"messages": 9, "ranges": [[1, 9]]}}
    async with link_of(told) as link:
        await link.report_lost("a", 1, 9)
        assert await link.lost() == each
    for server in nodes.servers.values():
        await until("it is known", lambda server=server: server.status()["lost"] == each)  # type: ignore[misc]
    counted = [server.hub.counters.get("reader_lost") for server in nodes.servers.values()]
    assert sorted(counted) == [0, 0, 9]
    assert told.hub.counters.get("reader_lost") == 9


@pytest.mark.slow
async def test_with_a_key_and_certificates(make: Make, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    shared = authority.sign("node0", ["node1", "node2", *HERE])
    nodes = await make(
        "cluster.key=secret",
        f"cluster.tls_cert={shared.cert}",
        f"cluster.tls_key={shared.key}",
        f"cluster.tls_ca={authority.ca}",
    )
    primary = await nodes.work()
    async with link_of(primary) as link:
        await link.publish(b"hidden")
    await nodes.work()
    number = next(number for number, server in nodes.servers.items() if server is not primary)
    await nodes.stop(number)
    # Without the certificate it is not even heard; with it and another key it is refused.
    intruder = await nodes.start(number, "cluster.key=other")
    await until("it is refused", lambda: "refused" in str(intruder.hub.counters.as_dict()))
    await until("it sees no majority", lambda: intruder.status()["mode"] == "ERR")
    # A certificate is bound to its node's name: with another's, it is refused, too.
    await nodes.stop(number)
    other = authority.sign("elsewhere")
    before = primary.hub.counters.get("refused", door="parcel", reason="unexpected")
    await nodes.start(number, f"cluster.tls_cert={other.cert}", f"cluster.tls_key={other.key}")
    await until(
        "it is refused by name",
        lambda: primary.hub.counters.get("refused", door="parcel", reason="unexpected") > before,
    )
    assert [message.payload for message in await kept(primary)][-1] == b"hidden"


@pytest.mark.parametrize("other", ["cluster.name=another", "cluster.key=secret", "node.name=node0"])
async def test_who_is_kept_out(make: Make, other: str) -> None:
    nodes = await make()
    primary = await nodes.work()
    outcast = 1 if primary is not nodes.servers[1] else 2
    await nodes.stop(outcast)
    intruder = await nodes.start(outcast, other, "cluster.publish_seconds=0.5")
    await until("it is refused", lambda: "refused" in str(intruder.hub.counters.as_dict()))
    with pytest.raises(HeadraceError, match=r"no majority|no primary"):
        async with link_of(intruder) as link:
            await link.publish(b"no")
    assert intruder.status()["mode"] != "WRK"
    assert intruder.problem is not None
    async with link_of(primary) as link:
        await link.publish(b"yes")


async def test_a_node_begins_anew_behind_a_snapshot(make: Make) -> None:
    nodes = await make("log.segment_bytes=4KiB", "log.retain_bytes=8KiB", "log.segment_seconds=0.1")
    primary = await nodes.work()
    lost = next(number for number, server in nodes.servers.items() if server is not primary)
    await nodes.stop(lost)
    shutil.rmtree(nodes.data(lost))
    async with link_of(primary) as link:
        publisher = link.publisher("one")
        for count in range(40):
            await publisher.publish([b"%d" % count + bytes(500)] * 4)
        await until(
            "all others have trimmed", lambda: all(each.hub.log.first > 1 for each in nodes.servers.values())
        )
        server = await nodes.start(lost)
        again = server.beginning_anew
        assert again is not None
        async with asyncio.timeout(SECONDS):
            await again.wait()
        await server.drain()
        server = nodes.servers[lost] = server.successor()
        await server.start()
        await nodes.work()
        assert server.hub.log.first > 1
        assert server.hub.log.first_op > server.hub.log.first
        assert server.parts.publishers.newest("one") == 159
        await publisher.publish(b"after")
    await nodes.work()
    assert (await kept(server))[-1].payload == b"after"


async def test_a_nodes_log_is_not_for_a_lone_hub(make: Make) -> None:
    nodes = await make()
    await nodes.work()
    await nodes.stop(0)
    free = [f"listen.{door}={LOOPBACK}:0" for door in DOORS]
    with pytest.raises(UsageError, match="--peers"):
        await Server(load(environ={}, sets=[*free, f"node.data={nodes.data(0)}"])).start()
    with pytest.raises(ConfigError, match="3 nodes"):
        await nodes.start(0, f"cluster.peers={nodes._addresses[1]}")
    del nodes.servers[0]


@pytest.mark.parametrize("listen", [LOOPBACK, "0.0.0.0"])
async def test_a_node_finds_itself_in_the_list_whatever_it_is_called_there(start: Start, listen: str) -> None:
    port = lasting_port()
    server = await start(
        "node.name=a",
        f"listen.parcel={listen}:{port}",
        "cluster.key=secret",
        f"cluster.peers=localhost:{port},{LOOPBACK}:1",
    )
    facts = server.status()["cluster"]
    assert [(node["name"], node["host"]) for node in facts["nodes"]] == [  # type: ignore[index]
        ("a", f"localhost:{port}"),
        (f"{LOOPBACK}:1", f"{LOOPBACK}:1"),
    ]
    # It has nothing to serve yet, and says why.
    with pytest.raises(UnreachableError, match=f"without {LOOPBACK}:1"):
        await link_of(server).open()


async def test_a_cluster_has_a_most_of_nodes(start: Start) -> None:
    peers = ",".join(f"{LOOPBACK}:{port}" for port in range(1, MAX_NODES + 1))
    with pytest.raises(ConfigError, match=f"at most {MAX_NODES} nodes"):
        await start(f"cluster.peers={peers}")


@pytest.mark.slow
async def test_a_node_that_is_gone_keeps_its_name_and_one_whose_disk_fails_does_not_work(make: Make) -> None:
    nodes = await make()
    primary = await nodes.work()
    lost, other = (number for number, server in nodes.servers.items() if server is not primary)
    cluster = nodes.servers[other]._cluster
    assert cluster is not None
    cluster._replication._break_off(StorageError("no space"))
    assert cluster.mode is not Mode.WRK
    assert "no space" in str(cluster.problem)
    await until("it is back", lambda: cluster.mode is Mode.WRK)
    await nodes.stop(lost)

    def gone() -> bool:
        facts = primary.status()["cluster"]["nodes"]  # type: ignore[index]
        [fact] = [fact for fact in facts if fact["name"] == f"node{lost}"]
        return fact["mode"] == "ERR" and fact["age"] >= SILENCE_SECONDS

    await until("it has fallen silent", gone)


@pytest.mark.parametrize("which", ["primary", "backup"])
@pytest.mark.slow
async def test_a_node_that_failed_to_sync_takes_no_part_any_more(
    make: Make, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    nodes = await make("log.fsync=interval", "log.fsync_interval=0.01")
    primary = await nodes.work()
    others = [server for server in nodes.servers.values() if server is not primary]
    failing, asked = (primary, others[0]) if which == "primary" else (others[0], primary)
    log = failing.hub.log

    def fail() -> int:
        if log.head < 1:
            return 0  # The first message is to be committed; until then the log stays dirty, and sync is called again.
        log.failure = "the disk failed"
        raise StorageError(log.failure)

    monkeypatch.setattr(log, "sync", fail)
    async with link_of(asked) as link:
        await link.publish(b"one", topic="a")
        await until("it gave up", lambda: failing.hub.failed is not None)
        assert failing.mode == "ERR"
        tail = log.tail
        rest = [server for server in nodes.servers.values() if server is not failing]

        def agreed() -> bool:
            return all(
                server.mode == "WRK" and server.cluster is not None and server.cluster["primary"] is not None
                for server in rest
            ) and any(server.hub.sequencer is None for server in rest)

        await until("the others go on", agreed)
        await link.publish(b"two", topic="a")
    await until("the others have it", lambda: all(server.hub.log.head == 2 for server in rest))
    assert log.tail == tail
    number = next(number for number, server in nodes.servers.items() if server is failing)
    with pytest.raises(StorageError, match="the disk failed"):
        await nodes.stop(number)


async def test_a_node_tells_the_primary_which_consumers_have_members(make: Make) -> None:
    """Whoever is connected to another node than the primary uses its consumer all the same."""
    nodes = await make()
    primary = await nodes.work()
    backup = next(server for server in nodes.servers.values() if server is not primary)
    async with link_of(backup) as link:
        await link.publish(b"old")
        async with link.consumer("c", from_seq=1) as consumer:
            assert (await anext(aiter(consumer))).payload == b"old"
            for server in nodes.servers.values():
                days_later = server._clock.now() + 200 * 86_400_000_000
                server.maintenance._clock = SimpleNamespace(now=lambda late=days_later: late)  # type: ignore[assignment]
            known = primary.consumers.get("c")
            assert known is not None
            await primary.maintenance.tidy()
            assert known.uses == 0
            await backup.maintenance.tidy()
            await until("the primary has heard of it", lambda: known.uses == 1)
            assert known.floor == 0
