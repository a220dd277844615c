"""Which host is dialled when, with streams that are no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from tests.net.raw import until

from headrace.client.reconnect import DialPlan, Failover, dial_hosts, keep_dialling, reason_of, redial
from headrace.config import Address
from headrace.errors import ClosedError, RefusedError, UnreachableError, UsageError

A, B, C = (Address("host", port) for port in (1, 2, 3))

Answer = Callable[[], object]


class Stream:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.ended: str | None = None
        self.done: list[str] = []

    async def close(self, deadline: float) -> None:
        await asyncio.sleep(0)
        self.done.append("closed")

    def abort(self) -> None:
        self.done.append("aborted")


class Client:
    """Dials hosts that answer as they are told: with a stream, or with an error."""

    def __init__(self, *hosts: Address) -> None:
        self.failover: Failover[Stream] = Failover(
            hosts, Random(1), self.dial, wanted=self.wanted, on_end=self.ended
        )
        self.answers: dict[Address, BaseException] = {}
        self.dialled: list[Address] = []
        self.streams: list[Stream] = []
        self.ends = 0
        self.room = asyncio.Event()
        self.room.set()
        self.answering = asyncio.Event()
        self.answering.set()

    async def dial(self, address: Address) -> Stream:
        self.dialled.append(address)
        await self.answering.wait()
        if address in self.answers:
            raise self.answers[address]
        self.streams.append(Stream(address))
        return self.streams[-1]

    async def wanted(self) -> None:
        await self.room.wait()

    def ended(self) -> None:
        self.ends += 1


class TestPlan:
    def test_pauses_double_up_to_the_longest_and_start_over_after_a_good_connection(self) -> None:
        plan = DialPlan([A], Random(1), longest=1.0)
        assert plan.pause() == 0.0, "the first try is made at once"
        for expected in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
            plan.failures += 1
            assert 0.5 * expected <= plan.pause() <= 1.5 * expected
        plan.connected(10.0)
        plan.lost(14.9)
        assert plan.failures == 8, "it was lost too soon to be a good one"
        plan.lost(15.0)
        assert (plan.failures, plan.pause()) == (0, 0.0)

    def test_pauses_of_many_clients_are_spread(self) -> None:
        plans = [DialPlan([A], Random(seed)) for seed in range(20)]
        for plan in plans:
            plan.failures = 5
        assert len({plan.pause() for plan in plans}) == 20

    def test_hosts_take_turns_and_share_the_time(self) -> None:
        failures: list[str] = []
        plan = DialPlan([A, B, C], Random(1), on_failure=lambda error: failures.append(error.address))
        assert plan.deadline(10.0, 16.0, 3) == 12.0
        plan.failed(UnreachableError("host:1", "x"))
        assert plan.hosts == [B, C, A]
        assert plan.deadline(10.5, 16.0, 2) == 13.25, "what one host leaves, the others share"
        assert failures == ["host:1"]


async def test_dialling_is_given_up_at_the_deadline() -> None:
    async def dial(address: Address) -> Stream:
        dialled.append(address)
        raise OSError(111, "x")

    dialled: list[Address] = []
    with pytest.raises(UnreachableError, match="host:1,host:2: connection refused"):
        await redial(DialPlan([A, B], Random(1)), dial, deadline=asyncio.get_running_loop().time())
    assert dialled == [A, B]
    with pytest.raises(UnreachableError, match="of another kind"):
        await dial_hosts(
            DialPlan([A], Random(1), attempt=0.0, no_answer="of another kind"), lambda _: asyncio.sleep(9)
        )


async def test_hubs_dial_for_ever_and_soon_but_never_without_a_pause_after_a_useful_connection() -> None:
    async def dial(address: Address) -> int:
        turns.append(plan.failures)
        if len(turns) == 2:
            raise OSError(111, "x")
        return len(turns)

    async def over(turn: int) -> bool:
        if turn == 5:
            raise ValueError("enough")
        return turn == 3

    turns: list[int] = []
    plan = DialPlan([A], Random(1), longest=0.001)
    with pytest.raises(ValueError, match="enough"):
        await keep_dialling(plan, dial, over)
    assert turns == [0, 1, 2, 1, 2]


async def test_the_first_that_answers_and_after_that_the_same_first() -> None:
    client = Client(A, B, C)
    client.answers = {A: OSError(111, "ECONNREFUSED"), B: UnreachableError("b", "asleep")}
    await client.failover.open(5)
    assert client.dialled == [A, B, C]
    assert client.failover.current is client.streams[0]
    client.failover.lost(client.streams[0], "gone")
    assert client.failover.current is None
    assert (await client.failover.connection()).address == C
    assert client.dialled == [A, B, C, C]
    assert (client.failover.connects, client.failover.disconnects) == (2, 1)
    await client.failover.close()
    assert client.streams[1].done == ["closed"]


async def test_nobody_answers() -> None:
    client = Client(A, B)
    client.answers = {A: OSError(111, "x"), B: OSError(113, "x")}
    with pytest.raises(
        UnreachableError, match="host:1,host:2: connection refused; no route to host; is the hub"
    ):
        await client.failover.open(5)
    assert client.ends == 1
    with pytest.raises(UnreachableError):
        client.failover.check()


async def test_hosts_share_the_time() -> None:
    client = Client(A, B)
    client.answering.clear()
    with pytest.raises(UnreachableError, match="host:1,host:2: no answer; is the hub"):
        await client.failover.open(0.02)
    assert client.dialled == [A, B]


async def test_a_refusal_is_final() -> None:
    client = Client(A, B)
    client.answers = {A: RefusedError("auth", "no")}
    with pytest.raises(RefusedError):
        await client.failover.open(5)
    assert client.dialled == [A]

    client = Client(A)
    await client.failover.open(5)
    client.answers = {A: RefusedError("auth", "no")}
    client.failover.lost(client.streams[0], "gone")
    with pytest.raises(RefusedError):
        await client.failover.connection()
    assert client.ends == 1
    await client.failover.close()
    with pytest.raises(RefusedError):
        client.failover.check()


async def test_it_goes_on_trying() -> None:
    client = Client(A)
    await client.failover.open(5)
    client.answers = {A: OSError(111, "x")}
    client.failover.lost(client.streams[0], "gone")
    await until(lambda: len(client.dialled) >= 4)
    client.answers = {}
    assert (await client.failover.connection()) is client.streams[1]
    await client.failover.close()


async def test_a_stream_is_replaced_when_it_is_wanted() -> None:
    client = Client(A)
    await client.failover.open(5)
    client.room.clear()
    client.failover.lost(client.streams[0], "gone")
    waiting = asyncio.ensure_future(client.failover.connection())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    client.room.set()
    assert await waiting is client.streams[1]
    await client.failover.close()


async def test_one_that_is_given_up_is_closed_before_the_next_is_dialled() -> None:
    client = Client(A)
    await client.failover.open(5)
    client.answering.clear()
    client.failover.renew()
    client.failover.renew()
    await until(lambda: len(client.dialled) == 2)
    assert client.streams[0].done == ["closed"]
    client.failover.lost(client.streams[0], "an earlier one")
    client.answering.set()
    assert await client.failover.connection() is client.streams[1]
    assert client.failover.disconnects == 0
    await client.failover.close()


async def test_one_that_ended_as_it_was_made_is_of_no_use() -> None:
    class Short(Client):
        async def dial(self, address: Address) -> Stream:
            stream = await super().dial(address)
            stream.ended = "lost at once" if address == A else None
            return stream

    client = Short(A, B)
    await client.failover.open(5)
    assert client.failover.current is not None
    assert client.failover.current.address == B
    await client.failover.close()


async def test_ended_while_it_is_dialled() -> None:
    client = Client(A)
    client.answering.clear()
    opening = asyncio.ensure_future(client.failover.open(5))
    await until(lambda: client.dialled)
    await client.failover.close()
    client.answering.set()
    with pytest.raises(ClosedError):
        await opening
    assert client.streams[0].done == ["aborted"]
    assert client.failover.current is None


async def test_used_wrongly() -> None:
    client = Client(A)
    with pytest.raises(UsageError, match="not open"):
        await client.failover.connection()
    await client.failover.open(5)
    with pytest.raises(UsageError, match="opened once"):
        await client.failover.open(5)
    await client.failover.close()
    await client.failover.close()
    with pytest.raises(ClosedError):
        await client.failover.connection()


def test_reasons_in_words() -> None:
    assert reason_of(None) == "the hub closed the connection"
    assert reason_of(ConnectionResetError(104, "Connection reset by peer")) == "connection reset by peer"
    assert reason_of(OSError(111, "Connect call failed ('127.0.0.1', 1)")) == "connection refused"
    assert reason_of(ConnectionError("So it is")) == "so it is"
    assert reason_of(ValueError("That")) == "that"
