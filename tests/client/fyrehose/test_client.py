"""The client of the backbone against real hubs, and against hubs that do what a test needs, over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from tests.client.hubs import SECONDS, UdpHub, Visit, bad_road, scripted_hub
from tests.hubprocess import HubProcess
from tests.net.raw import ack, address_of, deliver, forward, request, until
from tests.ports import lasting_port

from headrace import connect
from headrace.client import staleness
from headrace.client.fyrehose import subscription
from headrace.client.fyrehose.client import FyrehoseClient
from headrace.errors import (
    ClosedError,
    LimitError,
    LostRangeError,
    UnexpectedError,
    UnreachableError,
    UsageError,
)
from headrace.message import Batch, Message, Run
from headrace.net.server.process import Server

both = pytest.mark.parametrize("transport", ["tcp", "udp"])


def url_of(hub: Server) -> str:
    return f"fyrehose://{hub.doors['fyrehose']}"


def numbered(first: int, last: int) -> list[bytes]:
    """Payloads that tell their place: ``first`` to ``last``."""
    return [b"%d" % seq for seq in range(first, last + 1)]


async def take(client: FyrehoseClient, count: int) -> list[Message]:
    async with asyncio.timeout(SECONDS):
        return [await anext(client) for _ in range(count)]


async def take_batches(client: FyrehoseClient, count: int) -> list[Batch]:
    """Batches of so many messages together."""
    batches: list[Batch] = []
    async with asyncio.timeout(SECONDS):
        async for batch in client.batches():
            batches.append(batch)
            count -= len(batch)
            if count <= 0:
                break
    return batches


async def filled(hub: Server, count: int) -> None:
    """Messages ``b"1"`` to ``b"<count>"``."""
    async with connect(url_of(hub), subscribe=False) as publisher:
        await publisher.publish(numbered(1, count))
    await until(lambda: hub.hub.log.head >= count)


def check_whole(messages: list[Message], first: int) -> None:
    """Numbers follow one another from ``first``, and each payload is its own number."""
    assert [message.seq for message in messages] == list(range(first, first + len(messages)))
    assert [message.payload for message in messages] == numbered(first, first + len(messages) - 1)


class TestHollow:
    """Messages that DELIVER cannot carry come without data, as empty ones do."""

    @staticmethod
    async def fill(hub: Server, *sizes: int) -> None:
        hub.hub.submit(Batch(Run.of([bytes(size) for size in sizes]), origin="tube"))
        await until(lambda: hub.hub.log.head == len(sizes))

    @both
    async def test_they_are_told_before_they_are_handed_out(self, hub: Server, transport: str) -> None:
        await self.fill(hub, 1, 70_000, 0, 0, 2)
        told: list[int] = []
        options = {"from_seq": 1, "transport": transport, "on_hollow": told.append}
        async with connect(url_of(hub), **options) as client:  # type: ignore[arg-type]
            async for message in client:
                assert len(message.payload) == {1: 1, 5: 2}.get(message.seq, 0)
                assert (message.seq in told) == (message.seq in (2, 3, 4))
                if message.seq == 5:
                    break
            assert told == [2, 3, 4]
            assert client.stats.hollow == 3

    @both
    async def test_a_message_alone(self, hub: Server, transport: str) -> None:
        told: list[int] = []
        async with connect(url_of(hub), from_seq=1, transport=transport, on_hollow=told.append) as client:
            await self.fill(hub, 65_527)
            assert await take(client, 1) == [Message(1, b"")]
        assert told == [1]

    async def test_what_just_fits_differs_by_transport(self, hub: Server) -> None:
        await self.fill(hub, 65_499)
        for transport, hollow in (("tcp", []), ("udp", [1])):
            told: list[int] = []
            async with connect(url_of(hub), from_seq=1, transport=transport, on_hollow=told.append) as client:
                await take(client, 1)
            assert told == hollow

    async def test_without_a_callback_the_first_is_a_warning(
        self, hub: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        await self.fill(hub, 1, 70_000, 2)
        async with connect(url_of(hub), from_seq=1) as client:
            await take(client, 3)
            hub.hub.submit(Batch(Run.one(b""), origin="tube"))
            await take(client, 1)
            assert client.stats.hollow == 2
        warnings = [record.getMessage() for record in caplog.records if "without data" in record.getMessage()]
        assert len(warnings) == 1
        assert warnings[0].startswith("message 2 came without data: it is empty, or too long for fyrehose")

    async def test_a_callback_that_raises_costs_no_message(self, hub: Server) -> None:
        def refuse(seq: int) -> None:
            raise ZeroDivisionError(seq)

        await self.fill(hub, 1, 70_000, 2)
        async with connect(url_of(hub), from_seq=1, on_hollow=refuse) as client:
            with pytest.raises(ZeroDivisionError):
                await take(client, 3)
            assert [message.seq for message in await take(client, 3)] == [1, 2, 3]


class TestReceiving:
    @both
    async def test_a_message_comes_back(self, hub: Server, transport: str) -> None:
        async with connect(url_of(hub), transport=transport) as client:
            await client.publish(b"hello")
            [message] = await take(client, 1)
        assert message == Message(1, b"hello")

    @both
    async def test_history_and_then_what_is_new(self, hub: Server, transport: str) -> None:
        await filled(hub, 3000)
        async with connect(url_of(hub), from_seq=1, transport=transport) as client:
            check_whole(await take(client, 3000), 1)
            await client.publish(b"3001")
            check_whole(await take(client, 1), 3001)
            assert client.stats.received == 3001

    @both
    async def test_from_the_middle(self, hub: Server, transport: str) -> None:
        await filled(hub, 100)
        async with connect(url_of(hub), from_seq=90, transport=transport) as client:
            check_whole(await take(client, 11), 90)

    @both
    async def test_without_a_place_only_what_is_new(self, hub: Server, transport: str) -> None:
        await filled(hub, 10)
        async with connect(url_of(hub), transport=transport) as client:
            await client.publish(b"11")
            check_whole(await take(client, 1), 11)

    @both
    async def test_what_is_pushed_once_it_is_open_is_received_whenever_that_is_asked_for(
        self, hub: Server, transport: str
    ) -> None:
        async with connect(url_of(hub), transport=transport) as client:
            async with connect(url_of(hub), subscribe=False) as other:
                await other.publish(numbered(1, 5))
            await until(lambda: client.stats.received == 5)
            check_whole(await take(client, 5), 1)

    @both
    async def test_who_only_publishes_is_not_subscribed_until_it_asks(
        self, hub: Server, transport: str
    ) -> None:
        subscribers = lambda: hub.status()["subscribers"][f"fyrehose_{transport}"]  # noqa: E731
        async with connect(url_of(hub), subscribe=False, transport=transport) as client:
            await client.publish(b"1")
            await until(lambda: hub.hub.log.head == 1)
            assert subscribers() == 0
            taking = asyncio.create_task(take(client, 1))
            await until(lambda: subscribers() == 1)
            await client.publish(b"2")
            check_whole(await taking, 2)

    async def test_a_place_counts_also_for_who_does_not_subscribe_yet(self, hub: Server) -> None:
        await filled(hub, 10)
        async with connect(url_of(hub), from_seq=4, subscribe=False) as client:
            check_whole(await take(client, 7), 4)

    @both
    async def test_batches(self, hub: Server, transport: str) -> None:
        await filled(hub, 1000)
        async with connect(url_of(hub), from_seq=1, transport=transport) as client:
            batches = await take_batches(client, 1000)
        assert [batch.first for batch in batches[1:]] == [batch.last + 1 for batch in batches[:-1]]
        assert [payload for batch in batches for payload in batch.run] == numbered(1, 1000)

    async def test_messages_and_batches_share_one_place(self, hub: Server) -> None:
        await filled(hub, 100)
        async with connect(url_of(hub), from_seq=1) as client:
            async for message in client:
                if message.seq == 7:
                    break
            [*rest] = await take_batches(client, 93)
            assert (rest[0].first, rest[-1].last) == (8, 100)
            await client.publish(numbered(101, 110))
            check_whole(await take(client, 3), 101)
            async for message in client:
                check_whole([message], 104)
                break
            check_whole(await take(client, 6), 105)

    async def test_several_tasks_share_the_work(self, hub: Server) -> None:
        taken: list[Message] = []

        async def consume(client: FyrehoseClient) -> None:
            async for message in client:
                taken.append(message)
                if message.seq % 100 == 0:
                    await asyncio.sleep(0)

        async def consume_batches(client: FyrehoseClient) -> None:
            async for batch in client.batches():
                taken.extend(batch)

        async with connect(url_of(hub)) as client, asyncio.TaskGroup() as tasks:
            for consumer in (consume, consume, consume_batches):
                tasks.create_task(consumer(client))
            for first in range(1, 5001, 50):
                await client.publish(numbered(first, first + 49))
            await until(lambda: len(taken) == 5000)
            await client.close()
        check_whole(sorted(taken, key=lambda message: message.seq), 1)

    async def test_what_is_too_long_for_a_datagram_comes_empty(self, hub: Server) -> None:
        async with connect(url_of(hub), transport="udp") as client:
            async with connect(url_of(hub), subscribe=False) as other:
                await other.publish(b"x" * 65_526)
                await other.publish(b"y" * 65_498)
            assert [len(message.payload) for message in await take(client, 2)] == [0, 65_498]


class TestPublishing:
    @both
    async def test_a_run_of_many_sizes(self, hub: Server, transport: str) -> None:
        payloads = [bytes([size % 256]) * size for size in [0, 1, 2, 1470, 3000, 9000, 0, 5]]
        async with connect(url_of(hub), transport=transport) as client:
            await client.publish(Run.of(payloads))
            await client.publish(iter(payloads))
            await client.publish([])
            messages = await take(client, 2 * len(payloads))
            assert client.stats.published == len(messages)
        assert [message.payload for message in messages] == payloads * 2

    async def test_a_long_batch_goes_in_pieces(self, hub: Server) -> None:
        payloads = [b"%07d" % number * 1000 for number in range(1000)]
        async with connect(url_of(hub)) as client:
            await client.publish(payloads)
            assert [message.payload for message in await take(client, 1000)] == payloads

    @pytest.mark.parametrize(("transport", "most"), [("tcp", 65_526), ("udp", 65_504)])
    async def test_the_longest_message(self, hub: Server, transport: str, most: int) -> None:
        async with connect(url_of(hub), transport=transport) as client:
            await client.publish(bytes(most))
            with pytest.raises(LimitError) as refused:
                await client.publish(bytes(most + 1))
            assert (refused.value.field, refused.value.value, refused.value.limit) == (
                "LENGTH",
                most + 1,
                most,
            )
            with pytest.raises(LimitError):
                await client.publish([b"short", bytes(most + 1)])
            await client.publish(b"last")
            assert [message.payload for message in await take(client, 2)][1] == b"last"

    async def test_a_message_is_bytes(self, hub: Server) -> None:
        async with connect(url_of(hub)) as client:
            for wrong in ("text", 5, None):
                with pytest.raises(UsageError, match="a payload is bytes, not"):
                    await client.publish(wrong)  # type: ignore[arg-type]
                with pytest.raises(UsageError, match="a payload is bytes, not"):
                    await client.publish([b"right", wrong])  # type: ignore[list-item]
            await client.publish(bytearray(b"a"))
            await client.publish(memoryview(b"bc")[1:])
            assert [message.payload for message in await take(client, 2)] == [b"a", b"c"]

    async def test_closing_waits_until_the_hub_has_it_all(self, hub: Server) -> None:
        async with connect(url_of(hub)) as client:
            # It is subscribed and reads nothing of what comes back: a connection that is reset loses pushes.
            await client.publish([bytes(1000)] * 20_000)
        await until(lambda: hub.hub.log.head == 20_000)

    async def test_a_publisher_waits_for_a_hub_that_does_not_read(self) -> None:
        pushed = asyncio.Event()

        async def script(visit: Visit) -> None:
            await visit.subscription()
            await pushed.wait()
            for _ in range(200):
                assert len(await visit.push()) == 60_000
            await visit.end()

        async with scripted_hub(script) as url, connect(url) as client:
            pushing = asyncio.create_task(client.publish([bytes(60_000)] * 200))
            await until(lambda: client.stats.published)
            done = client.stats.published
            for _ in range(100):
                await asyncio.sleep(0)
            assert client.stats.published - done < 100, "not all of it is taken in"
            assert not pushing.done()
            pushed.set()
            await pushing


class TestRepair:
    async def test_what_a_stream_leaves_out_is_asked_for(self) -> None:
        async def script(visit: Visit) -> None:
            await visit.subscription()
            visit.send(deliver(5, b"5") + deliver(6, b"6") + deliver(9, b"9"))
            assert await visit.request() == (7, 8)
            visit.send(deliver(7, b"7") + deliver(8, b"8"))
            await visit.end()

        async with scripted_hub(script) as url, connect(url) as client:
            check_whole(await take(client, 5), 5)
            assert (client.stats.missing, client.stats.repaired) == (2, 2)

    async def test_a_lost_range_is_raised_once_in_its_place(self) -> None:
        async def script(visit: Visit) -> None:
            await visit.subscription()
            assert await visit.request() == (1, (1 << 48) - 1)
            visit.send(deliver(4, b"4") + deliver(5, b"5"))
            await visit.end()

        async with scripted_hub(script) as url, connect(url, from_seq=1, repair_timeout=0.3) as client:
            with pytest.raises(LostRangeError, match=r"messages 1 to 3 are lost: .* within 0.3 s") as lost:
                await take(client, 1)
            assert (lost.value.first, lost.value.last) == (1, 3)
            check_whole(await take(client, 2), 4)
            assert client.stats.lost == 3

    async def test_or_told_to_whom_it_concerns(self) -> None:
        async def script(visit: Visit) -> None:
            await visit.subscription()
            visit.send(deliver(1, b"1") + deliver(3, b"3"))
            await visit.end()

        order: list[object] = []
        async with (
            scripted_hub(script) as url,
            connect(
                url, repair_timeout=0.3, on_lost=lambda error: order.append((error.first, error.last))
            ) as client,
        ):
            async with asyncio.timeout(SECONDS):
                async for message in client:
                    order.append(message.seq)
                    if message.seq == 3:
                        break
        assert order == [1, (2, 2), 3]

    @pytest.mark.parametrize("seed", range(2))
    async def test_the_sequence_is_whole_over_a_bad_road(self, hub: Server, seed: int) -> None:
        await filled(hub, 500)
        async with (
            bad_road(address_of(hub), Random(seed)) as (url, road),
            connect(url_of(hub), subscribe=False) as publisher,
            # The road is an address translator.
            connect(url, from_seq=1, translated=True) as client,
        ):
            for first in range(501, 1001, 10):
                await publisher.publish(numbered(first, first + 9))
                await asyncio.sleep(0)
            check_whole(await take(client, 1000), 1)
            assert road.dropped > 10
            assert client.stats.repaired > 0
            assert client.stats.repeated > 0
            assert client.stats.lost == 0

    async def test_datagrams_that_find_no_room_are_asked_for_later(self, hub: Server) -> None:
        async with (
            connect(url_of(hub), transport="udp", buffer_bytes=10_000) as client,
            connect(url_of(hub), subscribe=False) as publisher,
        ):
            for first in range(1, 1001, 10):
                await publisher.publish(numbered(first, first + 9))
                await asyncio.sleep(0)
            await until(lambda: client.stats.dropped > 0)
            check_whole(await take(client, 1000), 1)

    async def test_a_slow_consumer_makes_the_hub_wait(self, hub: Server) -> None:
        payload = bytes(10_000)
        async with (
            connect(url_of(hub), buffer_bytes=100_000) as client,
            connect(url_of(hub), subscribe=False) as publisher,
        ):
            for _ in range(100):
                await publisher.publish([payload] * 20)
            await until(lambda: hub.hub.log.head == 2000)
            await until(lambda: client.stats.received > 0)
            held = client.stats.received
            assert held < 200
            messages = await take(client, 2000)
            assert [message.seq for message in messages] == list(range(1, 2001))
            assert client.stats.missing == client.stats.dropped == client.stats.repeated == 0


class TestRest:
    @both
    async def test_a_client_that_consumes_nothing_stays_connected_and_misses_nothing(
        self, hub: Server, transport: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(subscription, "REST_SECONDS", 0.1)
        async with connect(url_of(hub), transport=transport, buffer_bytes=10_000) as client:
            for first in range(1, 2001, 100):
                await client.publish(numbered(first, first + 99))
            await until(lambda: client.stats.rests == 1)
            await client.publish(numbered(2001, 2500))
            await until(lambda: hub.hub.log.head == 2500)
            assert client.stats.disconnects == 0
            check_whole(await take(client, 2500), 1)


class TestReconnecting:
    @both
    @pytest.mark.asyncio(loop_factories=["asyncio"])
    async def test_a_hub_that_is_killed_and_started_again(self, tmp_path: Path, transport: str) -> None:
        with HubProcess.start(tmp_path) as process:
            url = process.url("fyrehose")
            async with connect(url, transport=transport, from_seq=1) as client:
                await client.publish(numbered(1, 500))
                messages = await take(client, 500)
                process.kill9()
                await asyncio.to_thread(process.restart)
                async with connect(url, subscribe=False) as other:
                    await other.publish(numbered(501, 1000))
                messages += await take(client, 500)
                check_whole(messages, 1)
                assert client.connected
                await client.publish(numbered(1001, 1010))
                check_whole(await take(client, 10), 1001)
                assert client.stats.lost == 0

    async def test_a_push_waits_for_the_connection(self) -> None:
        again = asyncio.Event()

        async def cut(visit: Visit) -> None:
            await visit.subscription()

        async def go_on(visit: Visit) -> None:
            await visit.subscription()
            again.set()
            assert await visit.push() == b"hello"
            await visit.end()

        async with scripted_hub(cut, go_on) as url, connect(url) as client:
            await until(lambda: client.stats.disconnects == 1)
            async with asyncio.timeout(SECONDS):
                await client.publish(b"hello")
                await again.wait()
            assert client.stats.connects == 2

    async def test_it_resumes_behind_the_last_message(self) -> None:
        async def cut(visit: Visit) -> None:
            await visit.subscription()
            visit.send(deliver(7, b"7") + deliver(8, b"8"))

        async def resume(visit: Visit) -> None:
            await visit.subscription()
            assert await visit.request() == (9, (1 << 48) - 1)
            visit.send(deliver(8, b"8") + deliver(9, b"9") + deliver(10, b"10"))
            await visit.end()

        async with scripted_hub(cut, resume) as url, connect(url) as client:
            check_whole(await take(client, 4), 7)
            assert client.stats.repeated == 1

    async def test_a_hub_that_says_nothing_more_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(subscription, "SILENCE_SECONDS", 0.2)
        left = asyncio.Event()

        async def silent(visit: Visit) -> None:
            await visit.subscription()
            await visit.left()
            left.set()

        async def good(visit: Visit) -> None:
            await visit.subscription()
            visit.send(deliver(1, b"1"))
            await visit.end()

        async with scripted_hub(silent, good) as url, connect(url) as client:
            check_whole(await take(client, 1), 1)
            assert client.stats.disconnects == 1
            async with asyncio.timeout(SECONDS):
                await left.wait()

    async def test_bytes_that_are_not_fyrehose_end_the_connection_only(self) -> None:
        async def bad(visit: Visit) -> None:
            await visit.subscription()
            assert await visit.push() == b"x"
            visit.send(deliver(1, b"1") + b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await visit.left()

        async def good(visit: Visit) -> None:
            await visit.subscription()
            visit.send(deliver(2, b"2"))
            await visit.end()

        async with scripted_hub(bad, good) as url, connect(url) as client:
            await client.publish(b"x")
            check_whole(await take(client, 2), 1)
            assert client.stats.refused == 1

    async def test_the_next_host_is_tried_when_one_is_gone(self, hub: Server, tmp_path: Path) -> None:
        async def gone(visit: Visit) -> None:
            await visit.subscription()
            visit.send(deliver(1, b"1"))

        async with scripted_hub(gone) as url:
            servers = [url]
        # That one no longer listens: the second is found at once.
        await filled(hub, 3)
        async with connect(f"{servers[0]},{hub.doors['fyrehose']}", from_seq=1) as client:
            check_whole(await take(client, 3), 1)

    async def test_udp_finds_its_hub_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(subscription, "SILENCE_SECONDS", 0.2)
        with UdpHub() as hub:
            opening = asyncio.create_task(connect(hub.url).open())
            before = await hub.subscribed()
            client = await opening
            hub.send(deliver(4, b"4"), before)
            check_whole(await take(client, 1), 4)
            await until(lambda: client.stats.disconnects == 1)
            after = before
            while after == before:
                datagram, after = await hub.receive()
            assert int.from_bytes(datagram[7:13]) == 5, "it asks for what comes next"
            hub.send(deliver(5, b"5"), after)
            check_whole(await take(client, 1), 5)
            await client.close()


class TestForward:
    async def test_the_hub_may_have_us_send_what_we_store(self) -> None:
        with UdpHub() as hub, UdpHub() as other:
            opening = asyncio.create_task(connect(hub.url).open())
            client_at = await hub.subscribed()
            client = await opening
            for seq in range(1, 6):
                hub.send(deliver(seq, b"%d" % seq), client_at)
            check_whole(await take(client, 5), 1)
            other.send(forward(1, 5, *other.endpoint), client_at)
            hub.send(forward(3, 9, *other.endpoint), client_at)
            assert (await other.receive())[0] == deliver(3, b"3")
            assert (await other.receive())[0] == deliver(4, b"4")
            assert (await other.receive())[0] == deliver(5, b"5")
            assert (client.stats.forwards, client.stats.forwarded) == (2, 3)
            await client.close()

    async def test_others_may_send_us_only_what_we_asked_for(self) -> None:
        with UdpHub() as hub, UdpHub() as other:
            opening = asyncio.create_task(connect(hub.url).open())
            client_at = await hub.subscribed()
            client = await opening
            other.send(deliver(1, b"forged"), client_at)
            other.send(ack(), client_at)
            hub.send(deliver(1, b"1"), client_at)
            hub.send(deliver(3, b"3"), client_at)
            asked, _ = await hub.receive()
            assert asked == request(2, 2, *client_at)
            other.send(deliver(4, b"forged"), client_at)
            other.send(deliver(2, b"2"), client_at)
            check_whole(await take(client, 3), 1)
            await until(lambda: client.stats.unasked == 2)
            await client.close()


class TestOpening:
    async def test_nobody_listens(self) -> None:
        with pytest.raises(UnreachableError, match=r"refused; is the hub running there\? `headrace serve`"):
            await connect(f"fyrehose://127.0.0.1:{lasting_port()}").open()

    async def test_nobody_answers_by_udp(self) -> None:
        with pytest.raises(UnreachableError, match="no answer; is the hub running"):
            await connect(f"fyrehose+udp://127.0.0.1:{lasting_port()}", timeout=0.2).open()

    async def test_somebody_else_answers(self) -> None:
        async def web(visit: Visit) -> None:
            await visit.read(7)
            visit.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        async with scripted_hub(web) as url:
            with pytest.raises(UnreachableError, match=r"TYPE 72 .* is malformed"):
                await connect(url).open()

    async def test_somebody_accepts_and_says_nothing(self) -> None:
        async def mute(visit: Visit) -> None:
            await visit.left()

        async with scripted_hub(mute) as url:
            with pytest.raises(UnreachableError, match="no answer"):
                await connect(url, timeout=0.2).open()

    async def test_each_of_several_hosts_is_named(self) -> None:
        first, second = lasting_port(), lasting_port()
        with pytest.raises(UnreachableError, match=f"127.0.0.1:{first},127.0.0.1:{second}: .*refused; is"):
            await connect(f"fyrehose://127.0.0.1:{first},127.0.0.1:{second}").open()

    async def test_there_is_no_such_host(self) -> None:
        with pytest.raises(UnreachableError, match=r"nowhere\.invalid"):
            await connect("fyrehose://nowhere.invalid").open()

    async def test_a_client_is_opened_once(self, hub: Server) -> None:
        client = connect(url_of(hub))
        async with client:
            with pytest.raises(UsageError, match="opened once"):
                await client.open()
        with pytest.raises(UsageError, match="opened once"):
            await client.open()

    async def test_an_unopened_client_says_so(self) -> None:
        client = connect("fyrehose://127.0.0.1")
        with pytest.raises(UsageError, match="not open: write `async with"):
            await client.publish(b"")
        with pytest.raises(UsageError, match="not open"):
            await anext(client)
        with pytest.raises(UsageError, match="not open"):
            aiter(client)
        assert not client.connected
        await client.close()


class TestClosing:
    async def test_while_it_is_being_opened(self) -> None:
        async def mute(visit: Visit) -> None:
            await visit.left()

        async with scripted_hub(mute) as url:
            client = connect(url)
            opening = asyncio.create_task(client.open())
            for _ in range(50):
                await asyncio.sleep(0)
            assert not opening.done()
            await client.close()
            with pytest.raises(ClosedError):
                await opening

    @both
    async def test_it_may_be_closed_again(self, hub: Server, transport: str) -> None:
        client = await connect(url_of(hub), transport=transport).open()
        await asyncio.gather(client.close(), client.close())
        await client.close()
        assert not client.connected
        with pytest.raises(ClosedError):
            await client.publish(b"")
        with pytest.raises(ClosedError):
            aiter(client)
        with pytest.raises(ClosedError):
            client.batches()
        with pytest.raises(StopAsyncIteration):
            await anext(client)

    @both
    async def test_who_waits_comes_to_an_end(self, hub: Server, transport: str) -> None:
        async def consume() -> list[Message]:
            return [message async for message in client]

        async with connect(url_of(hub), transport=transport) as client:
            await client.publish(b"1")
            consuming = asyncio.create_task(consume())
            await until(lambda: client.stats.received == 1)
            for _ in range(10):
                await asyncio.sleep(0)
        check_whole(await consuming, 1)

    async def test_what_was_not_taken_is_dropped(self, hub: Server) -> None:
        async with connect(url_of(hub)) as client:
            await client.publish([b"1", b"2"])
            await until(lambda: client.stats.received == 2)
        with pytest.raises(StopAsyncIteration):
            await anext(client)

    async def test_while_there_is_no_hub(self) -> None:
        async def cut(visit: Visit) -> None:
            await visit.subscription()

        async with scripted_hub(cut) as url:
            client = await connect(url).open()
            await until(lambda: client.stats.disconnects >= 1)
        await until(lambda: not client.connected)
        waiting = asyncio.create_task(client.publish(b"x"))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClosedError):
            await waiting


async def test_a_hub_with_another_history_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staleness, "STALE_SECONDS", 0.0)

    async def long(visit: Visit) -> None:
        await visit.subscription()
        visit.send(b"".join(deliver(seq, b"%d" % seq) for seq in range(1, 101)))

    async def emptied(visit: Visit) -> None:
        await visit.subscription()
        visit.send(b"".join(deliver(seq, b"other") for seq in (1, 3, 5, 7, 9)))
        await visit.end()

    async with scripted_hub(long, emptied) as url, connect(url) as client:
        check_whole(await take(client, 100), 1)
        with pytest.raises(UnexpectedError, match="serves another sequence"):
            await take(client, 1)
