"""Nodes that speak the document and nothing else, in both roles: they share no code with what they test."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Self

import cbor2
import pytest
from tests.net.conftest import Start
from tests.net.raw import LOOPBACK, SECONDS, until

from headrace.cluster.membership import Membership
from headrace.net.cluster.parcel_door import ParcelDoor
from headrace.net.server.process import Server
from headrace.wire.parcel.body import Mode


class UnknownError(Exception):
    """Something that the document does not have."""


class DocumentNode:
    """A node of the document: it answers DscReq and SeqReq, and does not survive anything else."""

    def __init__(self, name: str, node: int, *, lists_itself: bool = True) -> None:
        self.name = name
        self.id = node
        self.lists_itself = lists_itself
        self.neighbours: list[dict[str, object]] = []
        self.heartbeats = 0
        """DscReqs that came without a byte after them."""
        self.unknown: list[str] = []
        """Whatever the document does not have."""
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self, host: str = LOOPBACK) -> Self:
        self._server = await asyncio.start_server(self._serve, host, 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.host = f"{host}:{self.port}"
        return self

    def identity(self) -> dict[str, object]:
        return {"id": self.id, "mode": "WRK", "name": self.name, "host": self.host}

    async def introduce_to(self, server: Server) -> list[dict[str, object]]:
        """Send a DscReq; return the nodes that the DscRes lists."""
        answer = await self.ask(server, "DscReq", {"DscReq": {"identity": self.identity()}})
        assert (answer["parcel_type"], answer["is_response"]) == ("DscRes", True)
        neighbours: list[dict[str, object]] = answer["body"]["DscRes"]["neighbours"]
        return neighbours

    async def ask(self, server: Server, kind: str, body: object) -> dict[str, Any]:
        """Send a request on a connection of its own; return the answer."""
        host, _, port = server.doors["parcel"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(self._parcel(kind, body, response=False))
            async with asyncio.timeout(SECONDS):
                (size,) = await reader.readexactly(1)
                answer: dict[str, Any] = cbor2.loads(await reader.readexactly(size))
            return answer
        finally:
            writer.close()

    async def close(self) -> None:
        self._server.close()
        for writer in tuple(self._open):
            writer.close()

    def _discovered(self) -> bytes:
        listed = [*([self.identity()] if self.lists_itself else []), *self.neighbours]
        return self._parcel("DscRes", {"DscRes": {"neighbours": listed}}, response=True)

    def _parcel(self, kind: str, body: object, *, response: bool) -> bytes:
        parcel = {"is_response": response, "parcel_type": kind, "id": self.id, "size": 0, "body": body}
        encoded = cbor2.dumps(parcel)
        return bytes([len(encoded)]) + encoded

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while size := await reader.read(1):
                parcel = cbor2.loads(await reader.readexactly(size[0]))
                match parcel["parcel_type"]:
                    case "DscReq":
                        if set(parcel["body"]["DscReq"]) != {"identity"}:
                            raise UnknownError("bytes after a DscReq")
                        self.heartbeats += 1
                        listed = [self.identity()] if self.lists_itself else []
                        writer.write(
                            self._parcel("DscRes", {"DscRes": {"neighbours": listed}}, response=True)
                        )
                    case "SeqReq":
                        writer.write(self._parcel("SeqRes", {"SeqRes": {"seq_number": 7}}, response=True))
                    case other:
                        raise UnknownError(other)
        except UnknownError as error:
            self.unknown.append(str(error))
            # It answers a DscReq before it finds out that more follows.
            writer.write(self._discovered())
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()


Make = Callable[..., Awaitable[DocumentNode]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        async def listening(name: str, node: int, host: str = LOOPBACK, **more: bool) -> DocumentNode:
            document = await DocumentNode(name, node, **more).listen(host)
            stack.push_async_callback(document.close)
            return document

        yield listening


def membership(server: Server) -> Membership:
    [door] = [door for door in server._doors if isinstance(door, ParcelDoor)]
    return door.host.membership


@pytest.mark.parametrize("lists_itself", [True, False])
@pytest.mark.slow
async def test_a_neighbour_of_the_document_gets_dsc_reqs_as_heartbeats(
    start: Start, make: Make, lists_itself: bool
) -> None:
    server = await start("node.name=Ivan")
    olga = await make("Olga", 7, lists_itself=lists_itself)
    assert [node["name"] for node in await olga.introduce_to(server)] == ["Ivan"]
    introduced = membership(server).heard_at[7]
    await until(lambda: olga.heartbeats >= 2)
    await until(lambda: membership(server).heard_at[7] > introduced)  # its DscRes was a sign of life
    assert olga.unknown == []
    assert [(node.name, node.mode) for node in membership(server).neighbours] == [("Olga", Mode.WRK)]
    await olga.close()
    await until(lambda: not membership(server).neighbours)


async def test_a_host_is_dialled_only_if_its_neighbour_came_from_there(start: Start, make: Make) -> None:
    server = await start("node.name=Ivan")
    victim = await make("Victim", 8, "127.0.0.9")
    await victim.introduce_to(server)  # from 127.0.0.1
    olga = await make("Olga", 7)
    await olga.introduce_to(server)
    await until(lambda: olga.heartbeats >= 2)
    assert victim.heartbeats == 0
    assert victim.unknown == []


async def test_a_node_that_names_our_own_door_does_not_make_us_dial_ourselves(
    start: Start, make: Make
) -> None:
    server = await start("node.name=Ivan")
    liar, olga = await make("Liar", 8), await make("Olga", 7)
    liar.host = server.doors["parcel"]
    await liar.introduce_to(server)
    await olga.introduce_to(server)
    await until(lambda: olga.heartbeats >= 2)
    assert server.hub.counters.get("refused", door="parcel", reason="identity") == 0


async def test_a_configured_node_of_the_document_is_listed_as_such_and_never_votes(
    start: Start, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    olga = await make("Olga", 7)
    server = await start("node.name=Ivan", f"cluster.peers={olga.host}")
    await until(lambda: olga.heartbeats >= 3)
    # How it was found out: the first DscReq was followed by a hello. Nothing else was ever unknown.
    assert olga.unknown == ["bytes after a DscReq"]
    assert server.cluster is not None
    listed = {node["name"]: node["role"] for node in server.cluster["nodes"]}  # type: ignore[attr-defined]
    assert listed["Olga"] == "document only"
    assert len(listed) == 2
    assert membership(server).members == frozenset()
    assert membership(server).size == 2
    assert not membership(server).sees_majority(asyncio.get_running_loop().time())
    lines = [record.getMessage() for record in caplog.records if "Olga" in record.getMessage()]
    assert lines == [f"neighbour Olga ({olga.host}) is here, speaks only the document and never votes"]


async def test_where_a_key_is_needed_a_node_without_one_is_one_line_in_the_log(
    start: Start, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    olga = await make("Olga", 7)
    server = await start("cluster.key=secret", f"cluster.peers={olga.host}")
    await until(lambda: server.hub.counters.get("refused", door="parcel", reason="malformed") >= 3)
    assert membership(server).neighbours == ()
    lines = [record.getMessage() for record in caplog.records if "cluster.key" in record.getMessage()]
    assert len(lines) == 1


async def test_the_neighbours_of_a_configured_node_are_asked_and_added(start: Start, make: Make) -> None:
    """ "Ivan adds each of the received hosts to his list." """
    olga, boris = await make("Olga", 7), await make("Boris", 8)
    olga.neighbours = [boris.identity()]
    server = await start("node.name=Ivan", f"cluster.peers={olga.host}")
    await until(lambda: {node.name for node in membership(server).neighbours} == {"Olga", "Boris"})
    await until(lambda: boris.heartbeats >= 2)
    assert server.cluster is not None
    roles = {node["name"]: node["role"] for node in server.cluster["nodes"]}  # type: ignore[attr-defined]
    assert (roles["Olga"], roles["Boris"]) == ("document only", "neighbour")


@pytest.mark.parametrize("body", ["Empty", {"SeqRes": {"seq_number": 0}}])
async def test_a_seq_res_that_is_no_response_asks_for_the_sequence(
    start: Start, make: Make, body: object
) -> None:
    """ "After discovery, Ivan can send a `SeqRes` to each of its neighbours." """
    server = await start("node.name=Ivan")
    olga = await make("Olga", 7)
    await olga.introduce_to(server)
    answer = await olga.ask(server, "SeqRes", body)
    assert (answer["parcel_type"], answer["is_response"]) == ("SeqRes", True)
    assert answer["body"] == {"SeqRes": {"seq_number": server.hub.log.head}}
