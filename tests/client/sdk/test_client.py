"""The client of content routing against a connector that does as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable
from random import Random
from typing import Any

import pytest
from tests.client.connectors import SECONDS, Session, connector, elsewhere
from tests.net.raw import until

import headrace
from headrace import between, connect, where
from headrace.client import staleness
from headrace.client.sdk.client import SdkClient
from headrace.errors import ClosedError, RefusedError, UnexpectedError, UnreachableError, UsageError
from headrace.message import Message
from headrace.wire.sdk.auth import Auth, is_signed
from headrace.wire.sdk.commands import Heartbeat, HeartbeatReply, Push
from headrace.wire.sdk.predicate import Between, Equals
from headrace.wire.sdk.subscribe import Subscribe

CLIENT, KEY = "00112233445566778899aabb", "a key"


async def soon(waiting: Awaitable[Any]) -> Any:
    async with asyncio.timeout(SECONDS):
        return await waiting


async def take(sdk: SdkClient, count: int) -> list[int]:
    """The numbers of the next messages, whose payloads must be right."""
    messages = [await soon(anext(sdk)) for _ in range(count)]
    assert [message.payload for message in messages] == [b"%d" % message.seq for message in messages]
    return [message.seq for message in messages]


class Notes:
    """What scripts saw."""

    def __init__(self) -> None:
        self.auths: list[Auth] = []
        self.subs: list[Subscribe] = []

    async def serve(self, session: Session) -> None:
        """Take an auth and a sub."""
        self.auths.append(await session.welcome())
        self.subs.append(await session.subscription())


@pytest.fixture
def notes() -> Notes:
    return Notes()


class TestReceiving:
    @pytest.mark.parametrize("piece", [1, 7, 1 << 16])
    async def test_as_the_page_shows_it(self, notes: Notes, piece: int) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            session.send(Push(7, b"hello"), Push(9, b"\xff\x00"), Push(12, b""))
            await session.stay()

        async with connector(script, piece=piece) as url, connect(url) as sdk:
            await sdk.subscribe(where(city="Praha", x=between(0, 10)))
            got = [await soon(anext(sdk)) for _ in range(3)]
            assert got == [Message(7, b"hello"), Message(9, b"\xff\x00"), Message(12, b"")]
            assert (sdk.stats.received, sdk.stats.received_bytes, sdk.stats.repeated) == (3, 7, 0)
            assert (sdk.cursor, sdk.connected, sdk.connects) == (13, True, 1)
        assert notes.subs == [Subscribe({"city": Equals("Praha"), "x": Between(0, 10)})]
        assert not sdk.connected

    async def test_conditions_need_no_where(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            await session.stay()

        async with connector(script) as url, connect(url) as sdk:
            await sdk.subscribe({"unit-price": 5})
        assert notes.subs == [Subscribe({"unit-price": Between(5, 5)})]

    async def test_subscribing_again_replaces_and_unsubscribing_withdraws(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            notes.subs += [await session.subscription(), await session.subscription()]
            await session.stay()

        async with connector(script) as url, connect(url) as sdk:
            await sdk.subscribe(where(a="1"))
            await sdk.subscribe(where(b="2"))
            await sdk.unsubscribe()
        assert [sub.predicates for sub in notes.subs] == [{"a": Equals("1")}, {"b": Equals("2")}, {}]

    async def test_repeats_are_dropped(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            session.push(3, 3, 5, 4, 3, 5, 6)
            await session.stay()

        async with connector(script, piece=5) as url, connect(url) as sdk:
            await sdk.subscribe(where(a="1"))
            assert await take(sdk, 3) == [3, 5, 6]
            assert sdk.stats.repeated == 4

    async def test_a_hub_with_another_sequence_is_refused(
        self, notes: Notes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(staleness, "STALE_SECONDS", 0.0)
        received = asyncio.Event()

        async def long(session: Session) -> None:
            await notes.serve(session)
            session.push(99, 98, 97, 100)
            await received.wait()
            session.reset()

        async def emptied(session: Session) -> None:
            await notes.serve(session)
            session.push(1, 2, 3)
            await session.stay()

        async with connector(long, emptied) as url, connect(url) as sdk:
            await sdk.subscribe(where(a="1"))
            assert await take(sdk, 2) == [99, 100]
            received.set()
            with pytest.raises(UnexpectedError, match="serves another sequence"):
                await take(sdk, 1)
            assert (sdk.stats.repeated, sdk.cursor) == (5, 101)

    async def test_what_has_no_place_in_the_sequence_is_no_repeat_and_moves_nothing(
        self, notes: Notes
    ) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            session.push(0, 3, 0, 3, 4)
            await session.stay()

        async with connector(script, piece=5) as url, connect(url) as sdk:
            await sdk.subscribe(where(a="1"))
            assert await take(sdk, 4) == [0, 3, 0, 4]
            assert (sdk.stats.repeated, sdk.cursor) == (1, 5)

    async def test_iterations_go_on_where_the_last_one_ended(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            session.push(*range(1, 2001))
            await session.stay()

        async with connector(script) as url, connect(url) as sdk:
            await sdk.subscribe(where(a="1"))
            seen = []
            while len(seen) < 2000:
                async for message in sdk:
                    seen.append(message.seq)
                    if message.seq % 300 == 0 or message.seq == 2000:
                        break
            assert seen == list(range(1, 2001))

    async def test_a_cancelled_wait_takes_nothing(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            await going.wait()
            session.push(1, 2)
            await session.stay()

        going = asyncio.Event()
        async with connector(script) as url, connect(url) as sdk:
            await sdk.subscribe(where(a="1"))
            waiting = asyncio.ensure_future(anext(sdk))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            going.set()
            assert await take(sdk, 2) == [1, 2]

    async def test_several_tasks_share_the_messages(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            session.push(*range(1, 1001))
            await session.stay()

        async with connector(script) as url, connect(url) as sdk:
            await sdk.subscribe(where(a="1"))
            parts = await asyncio.gather(*(take(sdk, 250) for _ in range(4)))
            assert sorted(seq for part in parts for seq in part) == list(range(1, 1001))

    async def test_without_a_subscription_what_the_hub_has_kept_comes(self) -> None:
        async def script(session: Session) -> None:
            await session.welcome()
            session.push(5)
            await session.stay()

        async with connector(script) as url, connect(url, client_id=CLIENT) as sdk:
            assert await take(sdk, 1) == [5]


class TestIdentity:
    async def test_a_random_id_that_lasts(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            notes.auths.append(await session.welcome())
            session.reset()

        async def last(session: Session) -> None:
            notes.auths.append(await session.welcome())
            await session.stay()

        async with connector(script, last) as url, connect(url, random=Random(1)) as sdk:
            await until(lambda: len(notes.auths) == 2)
            assert [auth.client_id.hex() for auth in notes.auths] == [sdk.client_id] * 2
            async with connector(last) as other, connect(other) as another:
                assert another.client_id != sdk.client_id

    async def test_a_key_signs_each_connection_anew(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            notes.auths.append(await session.welcome())
            session.reset()

        async def last(session: Session) -> None:
            notes.auths.append(await session.welcome())
            await session.stay()

        async with connector(script, script, last) as url, connect(url, client_id=CLIENT.upper(), key=KEY):
            await until(lambda: len(notes.auths) == 3)
        assert all(is_signed(auth, KEY.encode()) for auth in notes.auths)
        assert len({auth.token for auth in notes.auths}) == 3
        assert {auth.client_id.hex() for auth in notes.auths} == {CLIENT}

    async def test_after_is_told(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            session.push(41, 42, 43)
            await session.stay()

        async with connector(script) as url, connect(url, from_seq=43) as sdk:
            await sdk.subscribe(where(a="1"))
            assert await take(sdk, 1) == [43]
        assert notes.auths[0].after == 42

    @pytest.mark.parametrize("client_id", [None, CLIENT])
    async def test_what_nobody_can_resume_is_withdrawn(self, notes: Notes, client_id: str | None) -> None:
        async def script(session: Session) -> None:
            sessions.append(session)
            await notes.serve(session)
            session.push(*range(1, 10_000))
            await session.stay()

        sessions: list[Session] = []
        async with connector(script) as url:
            async with connect(url, client_id=client_id, buffer_bytes=1 << 16, heartbeat=0.001) as sdk:
                await sdk.subscribe(where(a="1"))
                await until(lambda: sdk._waiting.full)
            assert not sdk.connected
        assert sessions[0].withdrawn is (client_id is None)

    async def test_an_id_that_is_not_accepted(self) -> None:
        async def script(session: Session) -> None:
            assert isinstance(await session.command(), Auth)
            session.refuse()

        async with connector(script) as url:
            with pytest.raises(
                RefusedError, match=f"does not accept client {CLIENT}: check its id, its key"
            ) as told:
                async with connect(url, client_id=CLIENT, key=KEY):
                    pass
        assert told.value.code == "auth"
        assert KEY not in str(told.value)


class TestRefusals:
    async def test_a_subscription_that_is_refused_leaves_the_one_before(self, notes: Notes) -> None:
        async def first(session: Session) -> None:
            await notes.serve(session)
            assert isinstance(await session.command(), Subscribe)
            session.refuse()

        async def second(session: Session) -> None:
            await notes.serve(session)
            session.push(1)
            await session.stay()

        async with connector(first, second) as url, connect(url) as sdk:
            await sdk.subscribe(where(a="1"))
            with pytest.raises(RefusedError, match="does not take this subscription") as told:
                await sdk.subscribe(where(b="2"))
            assert told.value.code == "sub"
            assert await take(sdk, 1) == [1]
        assert [sub.predicates for sub in notes.subs] == [{"a": Equals("1")}] * 2

    async def test_a_client_that_is_no_longer_accepted_ends_with_the_reason(self, notes: Notes) -> None:
        async def first(session: Session) -> None:
            await notes.serve(session)
            session.push(1, 2)
            await session.drain()
            await received.wait()
            session.reset()

        async def second(session: Session) -> None:
            await session.command()
            session.refuse()

        received = asyncio.Event()
        async with connector(first, second) as url, connect(url) as sdk:
            await sdk.subscribe(where(a="1"))
            await until(lambda: sdk.stats.received == 2)
            received.set()
            await until(lambda: sdk._failover.over is not None)
            assert await take(sdk, 2) == [1, 2]
            for _ in range(2):
                with pytest.raises(RefusedError, match="auth"):
                    await soon(anext(sdk))
            with pytest.raises(RefusedError, match="auth"):
                await sdk.subscribe(where(a="1"))

    @pytest.mark.parametrize(
        "wrong", [b"+authsuccess\r\n", b"+what\r\n", b"#1\r\n{", b"-command error\r\n", b"+h\r\n"]
    )
    async def test_what_makes_no_sense_costs_the_connection(self, notes: Notes, wrong: bytes) -> None:
        async def first(session: Session) -> None:
            await notes.serve(session)
            session.push(1)
            session.send_bytes(wrong)
            await session.stay()

        async def second(session: Session) -> None:
            await notes.serve(session)
            session.push(2)
            await session.stay()

        async with connector(first, second) as url, connect(url) as sdk:
            await sdk.subscribe(where(a="1"))
            assert await take(sdk, 2) == [1, 2]
            assert sdk.connects == 2

    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            ({"key": KEY}, "client_id and key belong together"),
            ({"client_id": "me"}, "client_id 'me': expected 24 hex digits"),
            ({"from_seq": -1}, "from_seq -1: expected 0 to"),
            ({"heartbeat": 0}, "heartbeat 0: expected more than 0"),
            ({"heartbeat_timeout": float("nan")}, "heartbeat_timeout nan"),
            ({"client_id": CLIENT, "key": "\udc80"}, "the key is not text"),
        ],
    )
    def test_options_that_cannot_be(self, options: dict[str, Any], complaint: str) -> None:
        with pytest.raises(UsageError, match=complaint):
            connect("sdk://127.0.0.1", **options)

    async def test_subscriptions_that_cannot_be(self) -> None:
        async def script(session: Session) -> None:
            await session.welcome()
            await session.stay()

        sdk = connect("sdk://127.0.0.1")
        with pytest.raises(UsageError, match="not open"):
            await sdk.subscribe(where(a="1"))
        with pytest.raises(UsageError, match="not open"):
            aiter(sdk)
        async with connector(script) as url, connect(url) as sdk:
            with pytest.raises(UsageError, match="names an attribute at least"):
                await sdk.subscribe({})
            with pytest.raises(UsageError, match="where a: None is not a condition"):
                await sdk.subscribe({"a": None})
            with pytest.raises(UsageError, match="cannot be sent: sdk: number of elements 259"):
                await sdk.subscribe({str(number): "x" for number in range(129)})
            with pytest.raises(UsageError, match="opened once"):
                await sdk.open()
        with pytest.raises(ClosedError, match="closed"):
            await sdk.subscribe(where(a="1"))
        with pytest.raises(ClosedError):
            aiter(sdk)
        await sdk.close()


class TestReconnecting:
    async def test_resumes_behind_what_was_received(self, notes: Notes) -> None:
        async def first(session: Session) -> None:
            await notes.serve(session)
            session.push(3, 5)
            await session.drain()
            await until(lambda: sdk.stats.received == 2)
            session.reset()

        async def second(session: Session) -> None:
            await notes.serve(session)
            session.push(5, 8)
            await session.drain()
            await until(lambda: sdk.stats.received == 3)
            session.send_bytes(b"#40\r\n{")  # cut in the middle of a push

        async def third(session: Session) -> None:
            await notes.serve(session)
            session.push(9)
            await session.stay()

        async with connector(first, second, third, piece=3) as url, connect(url) as sdk:
            await sdk.subscribe(where(a="1"))
            assert await take(sdk, 4) == [3, 5, 8, 9]
            assert (sdk.stats.repeated, sdk.connects) == (1, 3)
        assert [auth.after for auth in notes.auths] == [None, 5, 8]
        assert notes.subs == [Subscribe({"a": Equals("1")})] * 3

    async def test_a_subscription_made_while_there_is_no_connection(self, notes: Notes) -> None:
        async def first(session: Session) -> None:
            await session.welcome()
            session.reset()

        async def second(session: Session) -> None:
            await notes.serve(session)
            session.push(1)
            await session.stay()

        async with connector(first, second) as url, connect(url) as sdk:
            await until(lambda: not sdk.connected)
            await soon(sdk.subscribe(where(a="1")))
            assert await take(sdk, 1) == [1]
        assert notes.subs == [Subscribe({"a": Equals("1")})]

    async def test_a_connection_lost_before_the_subscription_was_answered(self, notes: Notes) -> None:
        async def first(session: Session) -> None:
            await session.welcome()
            assert isinstance(await session.command(), Subscribe)
            session.reset()

        async def second(session: Session) -> None:
            await notes.serve(session)
            await session.stay()

        async with connector(first, second) as url, connect(url) as sdk:
            await soon(sdk.subscribe(where(a="1")))
        assert notes.subs == [Subscribe({"a": Equals("1")})]

    async def test_another_host_takes_over(self, notes: Notes) -> None:
        async def first(session: Session) -> None:
            await notes.serve(session)
            session.push(1)
            await session.drain()
            await until(lambda: sdk.stats.received == 1)
            gone.set()

        async def never(session: Session) -> None:
            session.reset()

        async def second(session: Session) -> None:
            await notes.serve(session)
            session.push(2)
            await session.stay()

        gone = asyncio.Event()
        async with connector(first, never) as one, connector(second) as other:
            nobody = _closed_port()
            hosts = ",".join(url.removeprefix("sdk://") for url in (nobody, one, other))
            async with connect(f"sdk://{hosts}") as sdk:
                await sdk.subscribe(where(a="1"))
                assert await take(sdk, 2) == [1, 2]
        assert [auth.after for auth in notes.auths] == [None, 1]
        assert len({auth.client_id for auth in notes.auths}) == 1

    async def test_nobody_there(self) -> None:
        with pytest.raises(UnreachableError, match="connection refused; is the hub running there"):
            async with connect(_closed_port()):
                pass

    async def test_a_hub_that_does_not_answer(self) -> None:
        async def script(session: Session) -> None:
            while True:
                await session.command()

        async with connector(script) as url:
            with pytest.raises(UnreachableError, match="no answer"):
                async with connect(url, timeout=0.05):
                    pass

    async def test_closing_while_connecting_again(self) -> None:
        async def first(session: Session) -> None:
            await session.welcome()

        async def deaf(session: Session) -> None:
            while True:
                await session.command()

        async with connector(first, deaf) as url, connect(url) as sdk:
            await until(lambda: not sdk.connected)
            waiting = asyncio.ensure_future(anext(sdk, None))
            subscribing = asyncio.ensure_future(sdk.subscribe(where(a="1")))
            await asyncio.sleep(0)
            await sdk.close()
            assert await soon(waiting) is None
            with pytest.raises(ClosedError):
                await soon(subscribing)


class TestHeartbeat:
    async def test_heartbeats_are_sent_and_their_answers_awaited(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            for _ in range(3):
                assert isinstance(await session.command(), Heartbeat)
                session.send(HeartbeatReply())
            session.push(1)
            await session.stay()

        async with connector(script) as url, connect(url, heartbeat=0.01) as sdk:
            await sdk.subscribe(where(a="1"))
            assert await take(sdk, 1) == [1]
            assert sdk.connects == 1

    async def test_a_hub_that_has_fallen_silent_is_replaced(self, notes: Notes) -> None:
        async def first(session: Session) -> None:
            await notes.serve(session)
            session.push(1)
            while True:
                assert isinstance(await session.command(), Heartbeat)

        async def second(session: Session) -> None:
            await notes.serve(session)
            session.push(2)
            await session.stay()

        async with (
            connector(first, second) as url,
            connect(url, heartbeat=0.02, heartbeat_timeout=0.5) as sdk,
        ):
            await sdk.subscribe(where(a="1"))
            assert await take(sdk, 2) == [1, 2]
        assert notes.auths[1].after == 1


class TestBackpressure:
    async def test_what_nobody_takes_waits_in_the_hub(self, notes: Notes) -> None:
        count, payload = 500, b"x" * 50_000

        async def script(session: Session) -> None:
            await notes.serve(session)
            for seq in range(1, count + 1):
                session.send(Push(seq, payload))
                await session.drain()
                sent.append(seq)
            await session.stay()

        sent: list[int] = []
        async with connector(script) as url, connect(url, buffer_bytes=1 << 18, heartbeat=0.01) as sdk:
            await sdk.subscribe(where(a="1"))
            await until(lambda: sdk._waiting.full)
            most = 0
            for seq in range(1, count + 1):
                assert (await soon(anext(sdk))).seq == seq
                most = max(most, sdk._waiting._size)
            assert most < (1 << 18) + (1 << 19)
            # Its own silence was no reason to give up the hub, nor was the heartbeats'.
            assert sdk.connects == 1

    async def test_a_connection_lost_while_full_is_replaced_when_there_is_room(self, notes: Notes) -> None:
        async def first(session: Session) -> None:
            await notes.serve(session)
            session.push(*range(1, 101))
            await until(lambda: sdk._waiting.full)
            session.reset()

        async def second(session: Session) -> None:
            await notes.serve(session)
            session.push(*range(notes.auths[1].after + 1, 201))
            await session.stay()

        async with connector(first, second) as url, connect(url, buffer_bytes=100, heartbeat=0.01) as sdk:
            await sdk.subscribe(where(a="1"))
            await until(lambda: not sdk.connected)
            assert len(notes.auths) == 1
            assert await take(sdk, 200) == list(range(1, 201))

    async def test_whoever_takes_the_messages_can_subscribe_with_a_full_buffer(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            session.push(1, 2)
            notes.subs.append(await session.subscription())
            session.push(3)
            await session.stay()

        async with connector(script) as url, connect(url, buffer_bytes=1) as sdk:
            await sdk.subscribe(where(a="1"))
            await until(lambda: sdk._waiting.full)
            await soon(sdk.subscribe(where(b="2")))
            assert await take(sdk, 3) == [1, 2, 3]
        assert len(notes.subs) == 2

    async def test_a_buffer_that_fills_while_a_subscription_waits(self, notes: Notes) -> None:
        async def script(session: Session) -> None:
            await notes.serve(session)
            assert isinstance(await session.command(), Subscribe)
            session.push(1, 2)
            await session.drain()
            await subscribed.wait()
            session.refuse()

        subscribed = asyncio.Event()
        async with connector(script) as url, connect(url, buffer_bytes=1) as sdk:
            await sdk.subscribe(where(a="1"))
            await soon(sdk.subscribe(where(b="2")))
            subscribed.set()
            assert await take(sdk, 2) == [1, 2]
            # Nobody waited for the refusal any more: the iteration tells.
            with pytest.raises(RefusedError, match="does not take this subscription"):
                await soon(anext(sdk))


def test_without_an_event_loop() -> None:
    """The same client, blocking; the connector has a loop of its own."""

    async def script(session: Session) -> None:
        await session.welcome()
        await session.subscription()
        session.push(*range(1, 1201))
        await session.stay()

    with elsewhere(lambda: connector(script)) as url, headrace.connect_sync(url, client_id=CLIENT) as sdk:
        sdk.subscribe(where(a="1"))
        assert [next(sdk).seq for _ in range(1200)] == list(range(1, 1201))
        assert (sdk.client_id, sdk.stats.received) == (CLIENT, 1200)
        with pytest.raises(UsageError, match="names an attribute"):
            sdk.subscribe({})


def _closed_port() -> str:
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return "sdk://{}:{}".format(*sock.getsockname())
