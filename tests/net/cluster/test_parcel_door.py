"""The parcel door, from outside: peers that speak the document in bytes, strangers, and those who lie."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path

import cbor2
import pytest
from tests.certificates import Authority
from tests.net.conftest import Start
from tests.net.raw import DSC_REQ, LOOPBACK, SECONDS, SEQ_REQ, until

from headrace.cluster.membership import Membership
from headrace.message import Batch, Run
from headrace.net.cluster.parcel_authentication import HELLO_BYTES, TAG_BYTES, ParcelTags
from headrace.net.cluster.parcel_door import ParcelDoor
from headrace.net.server.process import Server
from headrace.wire.parcel import stream as wire
from headrace.wire.parcel.body import DscReq, Mode, NodeInfo, Ping


class Peer:
    """A plain socket that knows CBOR."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.setblocking(False)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def say(
        self, kind: str, body: object = "Empty", *, node: int = 0x1234, response: bool = False
    ) -> None:
        """Send a parcel."""
        parcel = {"is_response": response, "parcel_type": kind, "id": node, "size": 0, "body": body}
        encoded = cbor2.dumps(parcel)
        await self.send(bytes([len(encoded)]) + encoded)

    async def raw(self) -> bytes:
        """The next parcel's bytes, length byte included."""
        size = await self._take(1)
        return size + await self._take(size[0])

    async def hear(self) -> tuple[str, object]:
        """The next parcel's type and body."""
        parcel = cbor2.loads((await self.raw())[1:])
        return parcel["parcel_type"], parcel["body"]

    async def over(self) -> bool:
        """Whether the hub has closed the connection, once it has said what it had to say."""
        async with asyncio.timeout(SECONDS):
            return await asyncio.get_running_loop().sock_recv(self._socket, 1) == b""

    async def _take(self, size: int) -> bytes:
        data = b""
        async with asyncio.timeout(SECONDS):
            while len(data) < size:
                more = await asyncio.get_running_loop().sock_recv(self._socket, size - len(data))
                assert more, "the hub closed the connection"
                data += more
        return data

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def peers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def dial(server: Server, peers: ExitStack) -> Peer:
    host, _, port = server.doors["parcel"].rpartition(":")
    peer = Peer(socket.create_connection((host, int(port))))
    peers.callback(peer.close)
    return peer


def node(name: str, node_id: int, host: str = "127.0.0.1", **more: object) -> dict[str, object]:
    return {"DscReq": {"identity": {"id": node_id, "mode": "DSC", "name": name, "host": host}, **more}}


HELLO = bytes(16) + sha256(b"headrace").digest()[:8]
"""A nonce, and the name of the cluster that is the default."""


async def greet(peer: Peer, name: str, node_id: int, host: str = "127.0.0.1") -> tuple[str, object]:
    """Introduce a node that says hello; return the answer's type and body."""
    await peer.say("DscReq", node(name, node_id, host, bulk=len(HELLO)), node=node_id)
    await peer.send(HELLO)
    kind, body = await peer.hear()
    if kind == "DscRes":
        await peer._take(len(HELLO))
    return kind, body


def membership(server: Server) -> Membership:
    [door] = [door for door in server._doors if isinstance(door, ParcelDoor)]
    return door.host.membership


async def test_the_documents_bytes_are_answered_byte_for_byte(start: Start, peers: ExitStack) -> None:
    server = await start("node.name=Ivan")
    before = server.hub.log.head
    server.hub.submit(Batch(Run.of([b""] * (1000 - before)), origin="test"))
    await until(lambda: server.hub.log.head == 1000)
    peer = dial(server, peers)
    await peer.send(SEQ_REQ)
    assert (await peer.raw()).hex() == (
        "49a56b69735f726573706f6e7365f56b70617263656c5f747970656653657152657362696419ebec6473697a651764626f6479"
        "a166536571526573a16a7365715f6e756d6265721903e8"
    )
    await peer.send(DSC_REQ)
    kind, body = await peer.hear()
    me = {"id": 60396, "mode": "WRK", "name": "Ivan", "host": server.doors["parcel"]}
    assert (kind, body) == ("DscRes", {"DscRes": {"neighbours": [me]}})


async def test_any_chunking_is_the_same(start: Start, peers: ExitStack) -> None:
    peer = dial(await start("node.name=Ivan"), peers)
    for byte in DSC_REQ + SEQ_REQ:
        await peer.send(bytes([byte]))
    assert [(await peer.hear())[0], (await peer.hear())[0]] == ["DscRes", "SeqRes"]


async def test_neighbours_are_told_of_each_other(start: Start, peers: ExitStack) -> None:
    server = await start("node.name=Ivan")
    one, two = dial(server, peers), dial(server, peers)
    await one.send(DSC_REQ)
    await one.hear()
    await two.say("DscReq", node("Olga", 7, "127.0.0.1:7000"), node=7)
    kind, body = await two.hear()
    assert kind == "DscRes"
    assert [each["name"] for each in body["DscRes"]["neighbours"]] == ["Ivan", "Ivan"]  # type: ignore[index]
    await two.say("SeqReq", node=7)
    await two.hear()
    await two.say("Ping", node=7)
    assert await two.hear() == ("Pong", "Empty")
    await one.say("DscReq", node("Ivan", 0x1234))
    _, body = await one.hear()
    # "Marks Ivan locally as WRK": who has asked for the sequence is taken to be at work.
    assert [(each["id"], each["mode"]) for each in body["DscRes"]["neighbours"]] == [
        (60396, "WRK"),
        (7, "WRK"),
    ]  # type: ignore[index]


@pytest.mark.parametrize(
    ("kind", "body", "response", "reason"),
    [
        (
            "Prepare",
            {"Prepare": {"view": 1, "first": 1, "last": 1, "commit": 0}},
            False,
            "not of this cluster",
        ),
        ("Publish", {"Publish": {"view": 1, "request": 1}}, False, "not of this cluster"),
        ("DscRes", {"DscRes": {"neighbours": []}}, True, "DscRes"),
        ("SeqRes", {"SeqRes": {"seq_number": 1}}, True, "SeqRes"),
        ("Nonsense", "Empty", False, "Nonsense"),
    ],
)
async def test_what_a_stranger_may_not_say(
    start: Start, peers: ExitStack, kind: str, body: object, response: bool, reason: str
) -> None:
    server = await start("node.name=Ivan")
    peer = dial(server, peers)
    await peer.say("DscReq", node("Olga", 0x1234))
    await peer.hear()
    await peer.say(kind, body, response=response)
    answer, said = await peer.hear()
    assert answer == "ProtoError"
    assert reason in said["ProtoError"]["reason"]  # type: ignore[index]
    assert await peer.over()
    assert any(name.startswith("refused") for name in server.hub.counters.as_dict())


async def test_an_id_is_nobody_elses(start: Start, peers: ExitStack) -> None:
    server = await start("node.name=Ivan")
    for claimed in (60396, 7):
        first, second = dial(server, peers), dial(server, peers)
        if claimed == 7:
            await first.say("DscReq", node("Olga", 7), node=7)
            assert (await first.hear())[0] == "DscRes"
        await second.say("DscReq", node("Oleg", claimed, "127.0.0.2"), node=claimed)
        kind, body = await second.hear()
        assert kind == "ProtoError"
        assert "taken" in body["ProtoError"]["reason"]  # type: ignore[index]
        assert await second.over()


async def test_an_id_must_be_the_one_introduced(start: Start, peers: ExitStack) -> None:
    peer = dial(await start(), peers)
    await peer.say("DscReq", node("Olga", 7), node=8)
    assert (await peer.hear())[0] == "ProtoError"
    assert await peer.over()


async def test_bulk_of_a_stranger_is_bounded(start: Start, peers: ExitStack) -> None:
    peer = dial(await start(), peers)
    await peer.say("Prepare", {"Prepare": {"view": 1, "first": 1, "last": 1, "commit": 0, "bulk": 1 << 20}})
    kind, body = await peer.hear()
    assert kind == "ProtoError"
    assert "bulk" in body["ProtoError"]["reason"]  # type: ignore[index]


async def test_a_stranger_that_takes_no_answers_is_not_read_from(start: Start, peers: ExitStack) -> None:
    server = await start("limits.queue_bytes=4096")
    peer = dial(server, peers)
    asking = asyncio.ensure_future(peer.send(SEQ_REQ * 200_000))
    try:
        [door] = [door for door in server._doors if isinstance(door, ParcelDoor)]
        await until(lambda: any(stream.buffered for stream in door.connections))
        (stream,) = door.connections
        await until(lambda: stream._full or stream.buffered > 1 << 20)
        assert stream.buffered < 1 << 20
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_stranger_that_says_nothing_is_cut_off(start: Start, peers: ExitStack) -> None:
    peer = dial(await start("limits.handshake_seconds=0.1"), peers)
    assert (await peer.hear())[0] == "ProtoError"
    assert await peer.over()


async def test_with_a_key_nothing_is_answered_without_it(start: Start, peers: ExitStack) -> None:
    server = await start("cluster.key=secret")
    for request in (DSC_REQ, SEQ_REQ):
        peer = dial(server, peers)
        await peer.send(request)
        kind, body = await peer.hear()
        assert kind == "ProtoError"
        assert "cluster.key" in body["ProtoError"]["reason"]  # type: ignore[index]
        assert await peer.over()


async def test_nobody_speaks_for_a_node_who_did_not_say_hello(start: Start, peers: ExitStack) -> None:
    server = await start("node.name=Ivan")
    olga = dial(server, peers)
    assert (await greet(olga, "Olga", 7))[0] == "DscRes"
    for kind, body in [
        ("Ping", "Empty"),
        ("StateChange", {"StateChange": {"mode": "ERR"}}),
        ("DscReq", node("Olga", 7)),
    ]:
        stranger = dial(server, peers)
        await stranger.say(kind, body, node=7)
        answer, said = await stranger.hear()
        assert answer == "ProtoError"
        assert "belongs to a node" in said["ProtoError"]["reason"]  # type: ignore[index]
        assert await stranger.over()
    # Where the sequence is may be asked by anybody; it is no news of Olga.
    heard = membership(server).age(7, 0.0)
    stranger = dial(server, peers)
    await stranger.say("SeqReq", node=7)
    assert (await stranger.hear())[0] == "SeqRes"
    assert membership(server).age(7, 0.0) == heard
    assert [info.mode for info in membership(server).neighbours] == [Mode.DSC]
    await olga.say("SeqReq", node=7)
    await olga.hear()
    assert membership(server).age(7, 0.0) != heard
    assert [info.mode for info in membership(server).neighbours] == [Mode.WRK]


async def test_who_says_hello_is_not_kept_out_by_who_does_not(start: Start, peers: ExitStack) -> None:
    server = await start("node.name=Ivan")
    first = dial(server, peers)
    await first.say("DscReq", node("Oleg", 7), node=7)
    assert (await first.hear())[0] == "DscRes"
    assert (await greet(dial(server, peers), "Olga", 7, "127.0.0.2"))[0] == "DscRes"
    assert [info.name for info in membership(server).neighbours] == ["Olga"]
    await first.say("Ping", node=7)
    assert (await first.hear())[0] == "ProtoError"
    assert (await greet(dial(server, peers), "Oleg", 7, "127.0.0.3"))[0] == "ProtoError"


async def test_a_hello_that_is_sent_again_is_no_sign_of_life(start: Start, peers: ExitStack) -> None:
    server = await start("cluster.key=secret")
    olga = NodeInfo(7, Mode.DSC, "Olga", "127.0.0.1")
    seal = ParcelTags("headrace", "secret", dialled=True)
    hello = seal.greet(7, DscReq(olga))
    for _ in range(2):
        replayed = dial(server, peers)
        await replayed.send(hello)
        assert (await replayed.hear())[0] == "DscRes"
        assert membership(server).neighbours == ()
    peer = dial(server, peers)
    await peer.send(hello)
    raw = await peer.raw()
    answer = wire.ParcelDecoder().feed(raw + await peer._take(HELLO_BYTES + TAG_BYTES))
    seal.open(next(iter(answer)), hello=True)
    await peer.send(b"".join(seal.seal(seal.head(7, Ping(), b""), b"")))
    assert (await peer.hear())[0] == "Pong"
    assert membership(server).neighbours == (olga,)


async def test_bulk_of_one_that_was_dialled_is_bounded_until_it_has_said_hello(
    start: Start, peers: ExitStack
) -> None:
    listening = peers.enter_context(socket.create_server((LOOPBACK, 0)))
    listening.setblocking(False)
    await start(f"cluster.peers={LOOPBACK}:{listening.getsockname()[1]}")
    async with asyncio.timeout(SECONDS):
        accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
    peer = Peer(accepted)
    peers.callback(peer.close)
    assert (await peer.hear())[0] == "DscReq"
    await peer._take(len(HELLO))
    await peer.say("Prepare", {"Prepare": {"view": 1, "first": 1, "last": 1, "commit": 0, "bulk": 1 << 20}})
    kind, body = await peer.hear()
    assert kind == "ProtoError"
    assert "bulk" in body["ProtoError"]["reason"]  # type: ignore[index]


async def named(start: Start, peers: ExitStack, host: str) -> tuple[Server, Peer]:
    """A node, and a peer that has told it of a neighbour of its own at ``host``."""
    listening = peers.enter_context(socket.create_server((LOOPBACK, 0)))
    listening.setblocking(False)
    address = f"{LOOPBACK}:{listening.getsockname()[1]}"
    server = await start(f"cluster.peers={address}")
    async with asyncio.timeout(SECONDS):
        accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
    peer = Peer(accepted)
    peers.callback(peer.close)
    await peer.hear()
    await peer._take(len(HELLO))
    olga = {"id": 7, "mode": "WRK", "name": "Olga", "host": address}
    ivan = {"id": 8, "mode": "DSC", "name": "Ivan", "host": host}
    answer = {"DscRes": {"neighbours": [olga, ivan], "bulk": len(HELLO)}}
    await peer.say("DscRes", answer, node=7, response=True)
    await peer.send(HELLO)
    return server, peer


@pytest.mark.parametrize("host", ["127.0.0.9", "::1", "[::1]:7878"])
async def test_a_peer_that_names_a_node_without_a_port_is_met_all_the_same(
    start: Start, peers: ExitStack, host: str
) -> None:
    """ "host is "ip" or "ip:port" (no port: 7878)": any stranger may have introduced itself there like that."""
    _, peer = await named(start, peers, host)
    assert (await peer.hear())[0] != "ProtoError"


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
async def test_a_name_that_no_host_can_have_is_not_reached(start: Start, peers: ExitStack, host: str) -> None:
    server, _ = await named(start, peers, host)
    await until(lambda: server.hub.counters.get("dial_failures", door="parcel"))


async def test_one_that_never_finishes_its_tls_handshake_is_cut_off(
    start: Start, peers: ExitStack, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    node = authority.sign("node")
    server = await start(
        f"cluster.peers={LOOPBACK}:1",
        "limits.handshake_seconds=0.2",
        f"cluster.tls_cert={node.cert}",
        f"cluster.tls_key={node.key}",
        f"cluster.tls_ca={authority.ca}",
    )
    peer = dial(server, peers)
    with suppress(ConnectionResetError):
        assert await peer.over()


async def test_a_refusal_has_room_for_what_is_wrong(start: Start, peers: ExitStack) -> None:
    peer = dial(await start(), peers)
    await peer.send(b"\xff" + b"\x81" * 255)
    kind, body = await peer.hear()
    assert kind == "ProtoError"
    assert "it ends before its last item" in body["ProtoError"]["reason"]  # type: ignore[index]
