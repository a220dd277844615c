"""A frontend that stores and forwards, as processes: what it keeps goes up once, in order, whoever is killed."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hubprocess import HubProcess
from tests.system.observing import counter, eventually, status
from tests.system.test_frontends import rows
from typer.testing import CliRunner

import headrace
from headrace import Acknowledged, Kept
from headrace.cli.app import app
from headrace.errors import RefusedError
from headrace.wire.fyrehose.stream import Push, serialize

STORING = ("upstream.store=true", "node.upstream_seconds=0.2")


def upstream(root: HubProcess) -> str:
    return f"node.upstream=tube://{root.doors['tube_tcp']}"


def outbox(front: HubProcess) -> dict[str, Any]:
    facts: dict[str, Any] = status(front)["upstream"]["outbox"]
    return facts


def is_stored(front: HubProcess) -> bool:
    return bool(outbox(front)["storing"])


def is_drained(front: HubProcess) -> bool:
    facts = status(front)["upstream"]
    return bool(facts["connected"]) and not facts["outbox"]["storing"] and facts["lag"] == 0


def post(front: HubProcess, path: str, body: bytes) -> tuple[int, Any]:
    """Send a body by HTTP; return the status and the answer."""
    request = urllib.request.Request(f"http://{front.doors['http']}{path}", body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def push(front: HubProcess, payloads: list[bytes]) -> None:
    """Publish by the backbone's door, which acknowledges nothing."""
    reader, writer = await asyncio.open_connection(*front.address("fyrehose"))
    writer.write(b"".join(serialize(Push(payload)) for payload in payloads))
    await writer.drain()
    writer.write_eof()
    await reader.read()
    writer.close()


async def soon(what: str, holds: Callable[[], object]) -> None:
    await asyncio.to_thread(eventually, what, holds)


async def test_what_is_kept_goes_up_once_and_in_order(tmp_path: Path) -> None:
    """Publishers at four doors; the upstream hub is killed, then the frontend, then both are back."""
    with HubProcess.start(tmp_path / "root") as root:
        with HubProcess.start(tmp_path / "front", *STORING, upstream(root)) as front:
            url = f"tube://{front.doors['tube_tcp']}"
            async with headrace.connect(url, reconnect_timeout=30) as link:
                named = link.publisher("sensor")
                assert await named.publish(b"link/0", topic="t") == Acknowledged(1, 1)
                root.kill9()
                told = [await named.publish(b"link/%d" % number, topic="t") for number in range(1, 6)]
                assert told == [Kept(None, None)] * 5
                assert all(ack.kept for ack in told)
                assert is_stored(front)
                await push(front, [b"push/%d" % number for number in range(20)])
                assert post(front, "/v1/publish/web", b"http/0") == (202, {"kept": True})
                async with headrace.connect(f"spp://{front.doors['spp']}") as spp:
                    await spp.publish(b'{"spp": 0}', topic="service/new")
                    await soon("the change is kept", lambda: outbox(front)["messages"] == 5 + 20 + 1 + 1)
                front.kill9()
                await asyncio.to_thread(front.restart)
                assert outbox(front)["messages"] == 27
                # The publisher goes on in its epoch, over another connection.
                assert await named.publish([b"link/6", b"link/7"], topic="t") == Kept(None, None)
                assert post(front, "/v1/publish/web", b"http/1") == (202, {"kept": True})
                facts = status(front)
                assert {alert["alert"] for alert in facts["alerts"]} >= {"upstream"}
                assert facts["upstream"]["away_since"] is not None
                await asyncio.to_thread(root.restart)
                await soon("the outbox is empty", lambda: is_drained(front))
                # From then on it is as before.
                after = await named.publish(b"link/8", topic="t")
                assert after.first == 1 + 30 + 1
                assert status(root)["head"] == after.last
                assert counter(front, "outbox_sent") == 30
                assert outbox(front)["messages"] == outbox(front)["aside"] == 0
                async with headrace.connect(f"tube://{root.doors['tube_tcp']}") as above:
                    assert [each["id"] for each in await above.services()] == ["service/new"]
            front.terminate()
        root.terminate()
    everything = rows(root)
    assert rows(front) == everything[rows(front)[0].seq - 1 :]
    counts = Counter(message.payload for message in everything)
    assert set(counts.values()) == {1}
    for kind, count in (("link", 9), ("push", 20), ("http", 2)):
        mine = [message for message in everything if message.payload.startswith(kind.encode())]
        assert [message.payload for message in mine] == [f"{kind}/{n}".encode() for n in range(count)]
    assert {message.topic for message in everything} == {"t", "", "web", "service/new"}


async def test_no_more_is_kept_than_the_bound(tmp_path: Path) -> None:
    with (
        HubProcess.start(tmp_path / "root") as root,
        HubProcess.start(tmp_path / "front", *STORING, "upstream.store_bytes=1MiB", upstream(root)) as front,
    ):
        root.kill9()
        async with headrace.connect(f"tube://{front.doors['tube_tcp']}") as link:
            kept: list[bytes] = []

            async def fill() -> None:
                for number in range(200):
                    payload = b"%06d" % number * 2000
                    assert (await link.publish(payload)).kept
                    kept.append(payload)

            with pytest.raises(RefusedError, match=r"upstream\.store_bytes") as refused:
                await fill()
            assert refused.value.code == "storage"
        assert 70 < len(kept) < 90
        assert post(front, "/v1/publish/t", b"x" * 20_000)[0] == 507
        assert counter(front, "refused", "upstream/outbox") >= 2
        assert "outbox" in {alert["alert"] for alert in status(front)["alerts"]}
        await asyncio.to_thread(root.restart)
        await soon("the outbox is empty", lambda: is_drained(front))
        async with headrace.connect(f"tube://{root.doors['tube_tcp']}") as link:
            read = [payload async for batch in link.read(1) for payload in batch["payload"].to_pylist()]
            assert read == kept


async def test_what_cannot_be_kept_is_refused_by_name(tmp_path: Path) -> None:
    with (
        HubProcess.start(tmp_path / "root") as root,
        HubProcess.start(tmp_path / "front", *STORING, upstream(root)) as front,
    ):
        root.kill9()
        async with headrace.connect(f"tube://{front.doors['tube_tcp']}") as link:
            assert (await link.publish(b"kept")).kept
            for refused in (
                link.publisher("new").publish(b"x"),
                link.create_service("made", "json"),
                link.hold("mine", 1),
            ):
                with pytest.raises(RefusedError) as error:
                    await refused
                assert error.value.code == "unavailable"
        code, _ = await asyncio.to_thread(post, front, "/v1/stream/s", b"x")
        assert code == 404


def aside(front: HubProcess, *words: str) -> Any:
    """Run ``headrace log aside`` at a frontend; return the exit code and what it printed."""
    done = CliRunner().invoke(
        app, ["log", "aside", *words, "--url", f"tube://{front.doors['tube_tcp']}", "--json"]
    )
    return done.exit_code, json.loads(done.stdout) if done.exit_code == 0 else done.stderr


async def test_what_is_refused_later_is_set_aside_until_a_person_decides(tmp_path: Path) -> None:
    """The upstream hub comes back with a lower limit than it had when the messages were kept."""
    with (
        HubProcess.start(tmp_path / "root") as root,
        HubProcess.start(tmp_path / "front", *STORING, upstream(root)) as front,
    ):
        async with headrace.connect(f"tube://{front.doors['tube_tcp']}") as link:
            named = link.publisher("sensor")
            await named.publish(b"first", topic="sensors")
            root.kill9()
            for payload in (b"before", b"x" * 50_000, b"y" * 50_000):
                assert (await link.publish(payload, topic="t")).kept
            assert (await named.publish([b"z" * 50_000, b"small"], topic="sensors")).kept
            assert (await link.publish(b"after", topic="t")).kept
        await asyncio.to_thread(root.restart, "limits.message_bytes=16KiB")
        await soon("the outbox is empty", lambda: is_drained(front))
        assert status(root)["head"] == 3
        assert outbox(front)["aside"] == counter(front, "outbox_aside") == 4
        assert "outbox_aside" in {alert["alert"] for alert in status(front)["alerts"]}
        assert "set aside: headrace log aside list" in front.stderr
        code, (x, y, z) = await asyncio.to_thread(aside, front, "list")
        assert [each["messages"] for each in (x, y, z)] == [1, 1, 2]
        assert (z["publisher"], z["number"], z["topics"]) == ("sensor", 1, ["sensors"])
        assert "16384" in x["reason"]
        # For the same reason they are refused again, and stay.
        code, told = await asyncio.to_thread(aside, front, "retry", x["request"])
        assert code != 0
        assert "16384" in told
        code, told = await asyncio.to_thread(aside, front, "drop", "no-such", "--yes")
        assert code != 0
        assert "is set aside here" in told
        dropped = await asyncio.to_thread(aside, front, "drop", y["request"], "--yes")
        assert dropped == (0, {"dropped": [y["request"]]})
        # What was decided, and what was not, outlives a crash.
        front.kill9()
        root.kill9()
        await asyncio.to_thread(root.restart, "limits.message_bytes=1MiB")
        await asyncio.to_thread(front.restart)
        await soon("it follows", lambda: is_drained(front))
        assert (await asyncio.to_thread(aside, front, "list"))[1] == [x, z]
        code, done = await asyncio.to_thread(aside, front, "retry", "--all")
        assert [(each["request"], each["last"]) for each in done] == [(x["request"], 4), (z["request"], 6)]
        assert await asyncio.to_thread(aside, front, "list") == (0, [])
        assert outbox(front)["aside"] == 0
        assert not (front.data / "outbox" / "aside").exists()
        front.terminate()
        root.terminate()
    texts = [message.payload[:6] for message in rows(root)]
    assert texts == [b"first", b"before", b"after", b"xxxxxx", b"zzzzzz", b"small"]
    assert [(row.publisher, row.number) for row in rows(root)[4:]] == [("sensor", None)] * 2


async def test_a_frontend_of_a_frontend_is_told_so(tmp_path: Path) -> None:
    with (
        HubProcess.start(tmp_path / "root") as root,
        HubProcess.start(tmp_path / "middle", *STORING, upstream(root)) as middle,
        HubProcess.start(tmp_path / "leaf", upstream(middle)) as leaf,
    ):
        root.kill9()
        async with headrace.connect(f"tube://{leaf.doors['tube_tcp']}") as link:
            for number in range(3):
                assert (await link.publish(b"%d" % number)).kept
        assert await asyncio.to_thread(post, leaf, "/v1/publish/t", b"3") == (202, {"kept": True})
        assert outbox(middle)["messages"] == 4
        await asyncio.to_thread(root.restart)
        await soon("the outbox is empty", lambda: is_drained(middle))
        await soon("it has come back", lambda: status(leaf)["head"] == 4)
        for hub in (leaf, middle, root):
            hub.terminate()
    assert [message.payload for message in rows(root)] == [b"0", b"1", b"2", b"3"]
    assert rows(leaf)[-1].payload == b"3"


async def test_another_history_gets_nothing(tmp_path: Path) -> None:
    with (
        HubProcess.start(tmp_path / "root") as root,
        HubProcess.start(tmp_path / "front", *STORING, upstream(root)) as front,
    ):
        root.kill9()
        async with headrace.connect(f"tube://{front.doors['tube_tcp']}") as link:
            assert (await link.publish(b"for the first")).kept
            for path in sorted((root.data / "log").iterdir()):
                path.unlink()
            await asyncio.to_thread(root.restart)
            await soon("it is noticed", lambda: "has the log" in str(status(front)["upstream"]["problem"]))
            with pytest.raises(RefusedError, match="has the log"):
                await link.publish(b"for the second")
        assert outbox(front)["messages"] == 1
        assert status(root)["head"] == 0


async def test_killed_while_it_sends(tmp_path: Path) -> None:
    """More than a segment is kept; the frontend is killed several times before the upstream hub has it all."""
    sent = [b"%06d" % number * 1000 for number in range(2500)]
    with (
        HubProcess.start(tmp_path / "root") as root,
        HubProcess.start(tmp_path / "front", *STORING, "log.fsync=always", upstream(root)) as front,
    ):
        root.kill9()
        async with headrace.connect(f"tube://{front.doors['tube_tcp']}") as link:
            publisher = link.publisher()
            acks = [await publisher.send(payload, topic="t") for payload in sent]
            assert {(await ack).kept for ack in acks} == {True}
        await asyncio.to_thread(root.restart)
        for share in (0.1, 0.4, 0.7):
            await soon("some of it is there", lambda share=share: status(root)["head"] >= share * len(sent))
            front.kill9()
            await asyncio.to_thread(front.restart)
        await soon("the outbox is empty", lambda: is_drained(front))
        await soon("its files are gone", lambda: _size(front.data / "outbox") < 100_000)
        # Once more: the outbox was made shorter, and nothing is settled since.
        root.kill9()
        async with headrace.connect(f"tube://{front.doors['tube_tcp']}") as link:
            assert (await link.publish(b"after", topic="t")).kept
        sent.append(b"after")
        front.kill9()
        await asyncio.to_thread(front.restart)
        await asyncio.to_thread(root.restart)
        await soon("the outbox is empty again", lambda: is_drained(front))
        front.terminate()
        root.terminate()
    assert [message.payload for message in rows(root)] == sent
    assert [message.payload for message in rows(front)] == sent[-len(rows(front)) :]


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
