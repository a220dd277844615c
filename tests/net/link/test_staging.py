"""Stages over the link: rows that are all in the log or none of them, once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.net.linkpeer import LinkPeer, link_peer, rows
from tests.net.raw import running_hub, until

from headrace.hub.access.accounts import Resource
from headrace.hub.publishing.staging import StagedPiece
from headrace.message import Batch
from headrace.net.server.machine import log_disk
from headrace.net.server.process import Server


async def test_stages_become_visible_in_one_append(server: Server, peer: LinkPeer) -> None:
    stages = [
        (await peer.ask(rows(*part), op="stage", id=1, query="q", batch=5, part=number))["stage"]
        for number, part in enumerate([(b"a", b"b"), (b"c",), (b"lost",)])
    ]
    assert server.hub.log.tail_op == 0
    answer = await peer.ask(op="commit", id=1, query="q", batch=5, stages=stages[:2])
    assert answer == {"id": 1, "ok": True, "first": 1, "last": 3, "repeated": False, "op": 4}
    assert (server.hub.log.tail, server.hub.log.tail_op) == (3, 4)  # and the mark
    answer = await peer.ask(op="commit", id=1, query="q", batch=5, stages=stages[:2])
    assert (answer["first"], answer["last"], answer["repeated"]) == (1, 3, True)
    for batch in (4, 5):
        answer = await peer.ask(op="commit", id=1, query="q", batch=batch, stages=[])
        assert answer["error"] == "conflict"
    other = await peer.ask(op="commit", id=1, query="q", batch=6, stages=[stages[2]])
    assert other["error"] == "conflict"
    assert (await peer.ask(op="abort", id=1, stages=[stages[2]]))["ok"]
    assert (await peer.ask(op="commit", id=1, query="q", batch=6, stages=[stages[2]]))["error"] == "missing"
    empty = await peer.ask(op="commit", id=1, query="q", batch=6, stages=[])
    assert (empty["first"], empty["last"]) == (None, None)
    got, _ = await peer.stream(op="read", id=2, first=1, origin="spark")
    assert [(m.payload, m.publisher) for m in got] == [(b"a", "q"), (b"b", "q"), (b"c", "q")]


async def test_a_commit_is_known_after_a_restart(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        stage = (await peer.ask(rows(b"a"), op="stage", id=1, query="q", batch=1))["stage"]
        assert (await peer.ask(op="commit", id=1, query="q", batch=1, stages=[stage]))["first"] == 1
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        again = await peer.ask(op="commit", id=1, query="q", batch=1, stages=[stage])
        assert (again["first"], again["last"], again["repeated"]) == (1, 1, True)
        assert (await peer.ask(op="commit", id=1, query="q", batch=2, stages=[stage]))["error"] == "missing"


async def test_a_commit_of_service_changes_creates_what_is_missing(server: Server, peer: LinkPeer) -> None:
    async def commit(batch: int, **changes: bytes) -> dict[str, Any]:
        stages = [
            (await peer.ask(rows(change, topic=name), op="stage", id=1, query="q", batch=batch))["stage"]
            for name, change in changes.items()
        ]
        return await peer.ask(op="commit", id=1, query="q", batch=batch, stages=stages, services=True)

    answer = await commit(1, a=b'{"x":1}', b=b"plain")
    assert (answer["first"], answer["last"]) == (1, 2)
    assert {service.id: service.snapshot for service in server.services} == {"a": b'{"x":1}', "b": b"plain"}
    refused = await commit(2, c=b"new", a=b"no object")
    assert refused["error"] == "malformed"
    assert "service 'a' is a JSON object" in refused["reason"]
    assert server.services.get("c") is None
    nameless = await commit(2, **{"": b"x"})
    assert (nameless["error"], nameless["reason"]) == ("malformed", "a service's id is not empty")
    answer = await commit(2, a=b'{"y":2}')
    assert (answer["first"], answer["last"]) == (3, 3)
    assert await commit(2, a=b'{"y":2}') | {"repeated": False} == answer
    assert [(row.seq, row.topic) for batch in server.hub.log.scan_ops(1) for row in batch] == [
        (0, "service/a"), (0, "service/b"), (1, "a"), (2, "b"), (2, "query/q"), (3, "a"), (3, "query/q"),
    ]  # fmt: skip


async def test_two_commits_of_one_batch_append_once(server: Server, stack: AsyncExitStack) -> None:
    one, two = [await stack.enter_async_context(link_peer(server)) for _ in range(2)]
    stage = (await one.ask(rows(b"a"), op="stage", id=1, query="q", batch=1))["stage"]
    server.hub.commit_by(lambda tail: None)
    for each in (one, two):
        await each.say(op="commit", id=2, query="q", batch=1, stages=[stage])
    await until(lambda: server.hub.log.tail_op == 2)
    await two.ask(op="head", id=3)
    server.hub.committed(2)
    assert (await one.hear())[0]["repeated"] is False
    assert (await two.hear())[0] == {"id": 2, "ok": True, "first": 1, "last": 1, "repeated": True, "op": 2}
    assert server.hub.log.tail_op == 2


async def staged(peer: LinkPeer, batch: int, *parts: tuple[bytes, ...], **more: Any) -> dict[str, Any]:
    """Stage the parts of a batch and commit them."""
    stages = [
        (await peer.ask(rows(*part), op="stage", id=1, query="q", batch=batch))["stage"] for part in parts
    ]
    return await peer.ask(op="commit", id=1, query="q", batch=batch, stages=stages, **more)


async def test_a_batch_that_comes_again_is_done_if_it_has_the_same_rows(tmp_path: Path) -> None:
    """In whatever order and parts they come."""
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        for batch in range(3):
            assert (await staged(peer, batch, (b"a", b"b"), (b"%d" % batch,)))["last"] == 3 * batch + 3
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        for batch in (2, 0):
            again = await staged(peer, batch, (b"%d" % batch, b"b"), (b"a",))
            assert (again["first"], again["repeated"]) == (3 * batch + 1, True)
        assert server.hub.log.tail == 9
        assert len(server._intake.staging) == 0


async def test_a_checkpoint_that_was_put_back_loses_no_rows_without_a_word(
    server: Server, peer: LinkPeer
) -> None:
    for batch in range(12):
        assert (await staged(peer, batch, (b"%d" % batch,)))["ok"]
    for batch, row in ((11, b"more"), (10, b"other"), (1, b"1")):
        refused = await staged(peer, batch, (row,))
        assert refused["error"] == "conflict"
        assert "nothing was appended" in refused["reason"]
    assert server.hub.log.tail == 12
    assert (await staged(peer, 12, (b"12",)))["first"] == 13


async def test_a_high_batch_of_somebody_else_makes_no_rows_vanish(server: Server, peer: LinkPeer) -> None:
    assert (await staged(peer, 0, (b"a",)))["ok"]
    assert (await staged(peer, 10**9, (b"evil",)))["ok"]
    for batch in (1, 2):
        assert (await staged(peer, batch, (b"b",)))["error"] == "conflict"


async def test_where_clients_are_known_a_query_is_its_clients(server: Server, peer: LinkPeer) -> None:
    assert (await staged(peer, 0, (b"a",), client="alice"))["ok"]
    assert (await staged(peer, 1, (b"b",), client="bob"))["error"] == "forbidden"
    assert (await staged(peer, 1, (b"b",), client="alice"))["ok"]


async def test_a_stage_is_filled_in_numbered_pieces(server: Server, peer: LinkPeer) -> None:
    for number, payload in ((1, b"b"), (0, b"lost"), (0, b"a")):
        answer = await peer.ask(
            rows(payload), op="stage", id=1, query="q", batch=1, stage="mine", number=number
        )
        assert answer == {"id": 1, "ok": True, "stage": "mine"}
    refused = await peer.ask(rows(b"x"), op="stage", id=1, query="q", batch=2, stage="mine")
    assert refused["error"] == "conflict"
    await peer.ask(rows(b"d"), op="stage", id=1, query="q", batch=2, stage="holes", number=1)
    assert (await peer.ask(op="commit", id=1, query="q", batch=1, stages=["mine"]))["last"] == 2
    assert (await peer.ask(op="commit", id=1, query="q", batch=2, stages=["holes"]))["error"] == "missing"
    got, _ = await peer.stream(op="read", id=2, first=1, origin="spark")
    assert [message.payload for message in got] == [b"a", b"b"]


async def test_stages_are_charged_to_their_client_and_given_back(tmp_path: Path) -> None:
    budget = f"limits.staged_bytes_per_client={1 << 20}"
    async with running_hub(tmp_path, budget) as server, link_peer(server) as peer:
        (account,) = (each for each in server.accounts if each.has[Resource.CONNECTIONS])
        large = rows(bytes(600_000))
        for batch in range(3):
            assert (await peer.ask(large, op="stage", id=1, query="q", batch=batch, stage=f"s{batch}"))["ok"]
            refused = await peer.ask(large, op="stage", id=1, query="q", batch=batch, stage=f"t{batch}")
            assert refused["error"] == "limit"
            assert "limits.staged_bytes_per_client" in refused["reason"]
            assert account.has[Resource.STAGED_BYTES] > 600_000
            if batch < 2:
                assert (await peer.ask(op="commit", id=1, query="q", batch=batch, stages=[f"s{batch}"]))["ok"]
            else:
                assert (await peer.ask(op="abort", id=1, stages=[f"s{batch}"]))["ok"]
            assert account.has[Resource.STAGED_BYTES] == 0


async def test_a_piece_that_is_sent_again_stays_when_the_first_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer took too long, so the client sent it again; it was the last, so no hole would tell that it is gone."""
    async with (
        running_hub(tmp_path) as server,
        link_peer(server) as peer,
        link_peer(server) as again,
    ):
        staging = server._intake.staging
        monkeypatch.setattr(staging, "_max_memory", 0)
        spill, released = StagedPiece.spill, threading.Event()
        slow: list[StagedPiece] = []

        def slowly(piece: StagedPiece, path: Path) -> None:
            if list(piece.load().run) == [b"b"] and not slow:
                slow.append(piece)
                released.wait(60)
            spill(piece, path)

        stage = {"op": "stage", "id": 1, "query": "q", "batch": 0, "stage": "all"}
        await peer.ask(rows(b"a"), **stage, number=0)
        monkeypatch.setattr(StagedPiece, "spill", slowly)
        await peer.say(rows(b"b"), **stage, number=1)
        await until(lambda: bool(slow))
        assert (await again.ask(rows(b"b"), **stage, number=1))["ok"]
        await until(lambda: slow[0]._removed)
        released.set()
        assert (await peer.hear())[0]["error"] == "missing"
        answer = await again.ask(op="commit", id=2, query="q", batch=0, stages=["all"])
        assert (answer["first"], answer["last"]) == (1, 2)


async def test_a_commit_that_has_no_memory_is_refused_and_can_be_repeated(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: StagedPiece) -> Batch:
        raise MemoryError

    await peer.ask(rows(b"a"), op="stage", id=1, query="q", batch=0, stage="all")
    with monkeypatch.context() as patch:
        patch.setattr(StagedPiece, "load", none)
        refused = await peer.ask(op="commit", id=2, query="q", batch=0, stages=["all"])
    assert (refused["error"], refused["reason"]) == ("storage", "the hub has failed: MemoryError ")
    assert (await peer.ask(op="commit", id=3, query="q", batch=0, stages=["all"]))["last"] == 1


@pytest.mark.slow
async def test_a_batch_of_more_than_half_a_gigabyte_is_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces are files, a thread appends them, and the hub serves others meanwhile."""
    monkeypatch.setattr(log_disk, "PATIENCE", 0.02)
    async with (
        running_hub(tmp_path, "log.fsync=never") as server,
        link_peer(server) as peer,
        link_peer(server) as other,
    ):
        body = rows(*(bytes([number]) * 1_000_000 for number in range(6)))
        for number in range(100):
            await peer.ask(body, op="stage", id=1, query="q", batch=0, stage="all", number=number)
        assert any((tmp_path / "stages").glob("*.rows"))
        assert server.hub.log.tail == 0
        writing, append = threading.Event(), server.hub.log.append

        def slowly(batches: Sequence[Batch]) -> None:
            writing.wait(60)
            append(batches)

        monkeypatch.setattr(server.hub.log, "append", slowly)
        await peer.say(op="commit", id=2, query="q", batch=0, stages=["all"])
        await until(lambda: server.hub.paused)
        # While it is written, others are answered and see nothing of it.
        assert (await other.ask(op="head", id=1))["head"] == 0
        await other.say(rows(b"later"), op="publish", id=2)
        writing.set()
        answer = (await peer.hear())[0]
        assert (answer["first"], answer["last"], answer["repeated"]) == (1, 600, False)
        assert (await other.hear())[0]["first"] == 601
        assert server.hub.log.head == 601
        [last] = server.hub.log.read(600, 600)
        assert list(last.run) == [bytes([5]) * 1_000_000]
        await until(lambda: not any((tmp_path / "stages").glob("*.rows")))
