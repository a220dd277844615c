"""Stages over the link: rows that are all in the log or none of them, once."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.net.linkpeer import LinkPeer, link_peer, rows
from tests.net.raw import running_hub, until

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
    for again in (stages[:2], []):
        answer = await peer.ask(op="commit", id=1, query="q", batch=5, stages=again)
        assert (answer["first"], answer["last"], answer["repeated"]) == (1, 3, True)
    assert (await peer.ask(op="commit", id=1, query="q", batch=4, stages=[]))["repeated"] is True
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
