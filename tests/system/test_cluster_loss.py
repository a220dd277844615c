"""Nodes that have lost everything, or that nobody can trust: what comes back by itself, and what an operator decides.

Three nodes as processes. After each loss all of them have the whole sequence again, the same on each.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.clusterprocess import Trio
from tests.forking import completed
from tests.hubprocess import HubProcess
from tests.system.observing import eventually, status

import headrace
from headrace.cluster import durable_state as states
from headrace.log import Log
from headrace.message import Batch, Message, Run, messages

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Three nodes that prove to each other who they are; each test leaves them whole."""
    with Trio.start(tmp_path_factory.mktemp("trio"), "cluster.key=theirs alone") as nodes:
        yield nodes


def headrace_cluster(command: str, node: HubProcess) -> subprocess.CompletedProcess[bytes]:
    """Run ``headrace cluster COMMAND`` on a node's data directory."""
    return completed(["cluster", command, "--data", str(node.data), "--yes"], seconds=60)


def publish(node: HubProcess, *payloads: bytes) -> None:
    with headrace.connect_sync(f"tube://{node.doors['tube_tcp']}") as link:
        link.publish(list(payloads))


def whole(trio: Trio) -> list[Message]:
    """All messages that the nodes have, once they are the same on all of them."""
    trio.working()
    logs = []
    for node in trio.nodes:
        with headrace.connect_sync(f"tube://{node.doors['tube_tcp']}") as link:
            logs.append([each for rows in link.read(1) for each in messages(rows)])
    assert logs[0] == logs[1] == logs[2]
    assert [message.seq for message in logs[0]] == list(range(1, len(logs[0]) + 1))
    return logs[0]


def payloads(trio: Trio) -> list[bytes]:
    return [message.payload for message in whole(trio)]


def doing(node: HubProcess) -> str:
    """What a node's replica does."""
    return str(status(node)["cluster"]["status"])


def test_a_node_lost_for_good_is_replaced_under_its_name(trio: Trio) -> None:
    primary = trio.working()
    publish(primary, b"before")
    before = payloads(trio)
    number = trio.nodes.index(primary)
    trio.nodes[number].kill9()
    shutil.rmtree(trio.nodes[number].data)
    publish(trio.nodes[(number + 1) % 3], b"meanwhile")
    trio.replace(number)
    assert payloads(trio) == [*before, b"meanwhile"]
    # It has a vote again: without another one, it is needed.
    other = trio.nodes[(number + 1) % 3]
    other.kill9()
    publish(trio.nodes[number], b"by the new one")
    other.restart()
    assert payloads(trio) == [*before, b"meanwhile", b"by the new one"]


def test_a_log_of_another_history_is_given_up_and_set_aside(trio: Trio) -> None:
    number = (trio.nodes.index(trio.working()) + 1) % 3
    node, before = trio.nodes[number], whole(trio)
    node.terminate()
    shutil.rmtree(node.data / "log")
    log = Log.open(node.data / "log")
    log.append([Batch(Run.of([b"of", b"another", b"history"]), first=1, time=1, origin="tube")])
    log.close()
    node.restart()
    eventually("it gives up", lambda: status(node)["mode"] == "ERR")
    problem = status(node)["cluster"]["problem"]
    assert "headrace cluster replace" in problem
    assert b"stop it first" in headrace_cluster("replace", node).stderr
    node.terminate()
    done = headrace_cluster("replace", node)
    assert done.returncode == 0, done.stderr
    node.restart()
    assert whole(trio)[: len(before)] == before
    kept = Log.open(node.data / "log.replaced-1", read_only=True)
    assert kept.tail == 3
    kept.close()


def test_after_a_power_failure_of_all_they_wait_for_an_operators_word(trio: Trio) -> None:
    publish(trio.working(), b"before the power failed")
    before = payloads(trio)
    for node in trio.nodes:
        node.kill9()
        path = node.data / "log" / "cluster.state"
        kept = states.load(path)
        assert kept is not None
        states.save(path, replace(kept, boot="an earlier boot of the machine"))
    for node in trio.nodes:
        node.restart()
    for node in trio.nodes:
        eventually("it knows that it may have lost something", lambda: doing(node) == "recovering")  # noqa: B023
    for node in trio.nodes[:2]:
        done = headrace_cluster("vouch", node)
        assert done.returncode == 0, done.stderr
    assert payloads(trio) == before
    publish(trio.nodes[2], b"after")
    assert payloads(trio) == [*before, b"after"]
    # Whoever works needs nobody's word.
    assert b"only a node that recovers" in headrace_cluster("vouch", trio.nodes[2]).stderr


def test_if_only_the_primary_keeps_its_disk_it_takes_an_operators_word_for_another(trio: Trio) -> None:
    primary = trio.working()
    publish(primary, b"kept by one")
    before = payloads(trio)
    emptied = [node for node in trio.nodes if node is not primary]
    for node in trio.nodes:
        node.kill9()
    for node in emptied:
        shutil.rmtree(node.data)
    for node in trio.nodes:
        node.restart()
    assert b"only a node that recovers" in headrace_cluster("vouch", primary).stderr
    # It is refused until the node has heard of all the others: one of them could remember.
    eventually("it is vouched for", lambda: headrace_cluster("vouch", emptied[0]).returncode == 0)
    assert payloads(trio) == before
    publish(emptied[1], b"by all")
    assert payloads(trio) == [*before, b"by all"]
