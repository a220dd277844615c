"""Many peers that each do one short thing at the same moment: in a turn that took long enough, what is read waits."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import accumulate, pairwise, repeat

import pytest
from tests.net.backbone_tcp import logged
from tests.net.conftest import Dial
from tests.net.linkpeer import link_peer
from tests.net.raw import SECONDS, TcpPeer, push, until

from headrace.net.server.process import Server
from headrace.tube.fair_turns import FEW_READS, TURN_SECONDS

PEERS = 3 * FEW_READS

NOT_THE_PROTOCOL = {
    "fyrehose": b"\x00",
    "publisher": b"\xff" * 8,
    "sdk": b"\xff" * 8,
}
"""Bytes that each door refuses."""


def refused(server: Server) -> int:
    """How much all doors have refused."""
    return sum(count for name, _, count in server.hub.counters if name == "refused")


@pytest.fixture
def long_turns(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is done takes as long as a turn may be."""
    times = accumulate(repeat(TURN_SECONDS))
    monkeypatch.setattr(server.turns, "_clock", lambda: next(times))


@pytest.mark.usefixtures("long_turns")
@pytest.mark.parametrize("door", NOT_THE_PROTOCOL)
async def test_those_who_come_late_in_a_turn_are_refused_in_later_ones(
    server: Server, stack: AsyncExitStack, door: str
) -> None:
    class Stranger(TcpPeer):
        pass

    Stranger.door = door
    peers = [stack.enter_context(await Stranger.connect(server)) for _ in range(PEERS)]
    await until(lambda: server.connections == PEERS)
    for peer in peers:
        peer.sock.send(NOT_THE_PROTOCOL[door])
    counts = [refused(server)]
    async with asyncio.timeout(SECONDS):
        while counts[-1] < PEERS:
            await asyncio.sleep(0)
            counts.append(refused(server))
    assert counts[0] == 0
    assert max(after - before for before, after in pairwise(counts)) <= FEW_READS + 4
    for peer in peers:
        await peer.rest()
    assert refused(server) == PEERS


@pytest.mark.usefixtures("long_turns")
async def test_nothing_that_waits_is_lost(server: Server, dial: Dial) -> None:
    peers = [await dial(server) for _ in range(PEERS)]
    await until(lambda: server.connections == PEERS)
    for number, peer in enumerate(peers):
        # In pieces, and then it leaves.
        whole = push(b"%d first" % number) + push(b"%d second" % number)
        peer.sock.send(whole[:5])
        peer.sock.send(whole[5:])
        peer.sock.close()
    await until(lambda: server.connections == 0)
    assert sorted(logged(server)) == sorted(
        b"%d %s" % (number, what) for number in range(PEERS) for what in (b"first", b"second")
    )
    assert refused(server) == 0


@pytest.mark.usefixtures("long_turns")
async def test_every_link_is_answered(server: Server, stack: AsyncExitStack) -> None:
    peers = [await stack.enter_async_context(link_peer(server)) for _ in range(PEERS)]
    answers = await asyncio.gather(*(peer.ask(op="head", id=7) for peer in peers))
    assert [answer["id"] for answer in answers] == [7] * PEERS
