"""Commits of a Spark query that are larger than any parcel: in a cluster they are there whole, and once, or not at all.

Three nodes as processes. One of them is killed while a commit goes from node to node, and another takes it over.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clusterprocess import Trio
from tests.hubprocess import HubProcess
from tests.system.observing import eventually, status

import headrace
from headrace.net.cluster.replica_driver import MAX_APPEND

pytestmark = pytest.mark.slow

ROW = 250_000
ROWS = MAX_APPEND // ROW + 20
"""More than a parcel takes."""


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    with Trio.start(tmp_path) as nodes:
        yield nodes


def payload(number: int) -> bytes:
    return number.to_bytes(4) + random.Random(number).randbytes(8) * (ROW // 8)


def staged(node: HubProcess, batch: int) -> tuple[headrace.SyncLinkClient, list[str]]:
    """Stage a large batch at a node."""
    link = headrace.connect_sync(f"tube://{node.doors['tube_tcp']}", reconnect_timeout=60, timeout=60)
    link.open()
    each = 12
    stages = [
        link.stage("query", batch, [payload(number) for number in range(at, min(at + each, ROWS))])
        for at in range(0, ROWS, each)
    ]
    return link, stages


def committed(link: headrace.SyncLinkClient, stages: list[str]) -> tuple[int | None, int | None]:
    """Commit, again if the cluster has no primary for a while, as a query does that is started again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            first, last = link.commit("query", 1, stages)
            return first, last
        except headrace.HeadraceError as error:
            if "try again" not in str(error) or time.monotonic() > deadline:
                raise


def check(trio: Trio, count: int) -> None:
    """Every node has so many batches, each of them whole, and tells readers the same history."""
    trio.working()
    histories = set()
    for node in trio.nodes:
        with headrace.connect_sync(f"tube://{node.doors['tube_tcp']}") as link:
            numbers = [
                int.from_bytes(value.as_py()[:4]) for rows in link.read(1) for value in rows.column("payload")
            ]
            histories |= set(link.head(history=[0, len(numbers)]).history)
        assert numbers == list(range(ROWS)) * count, node.directory.name
    assert len(histories) == 2
    assert None not in histories


def written(node: HubProcess) -> int:
    """Bytes of a node's log."""
    return sum(path.stat().st_size for path in (node.data / "log").glob("*.open"))


class Heads(threading.Thread):
    """Looks at the heads of nodes all the time."""

    def __init__(self, nodes: list[HubProcess]) -> None:
        super().__init__(daemon=True)
        self.seen: set[int] = set()
        self._nodes = nodes
        self._over = threading.Event()

    def run(self) -> None:
        links = [headrace.connect_sync(f"tube://{node.doors['tube_tcp']}").open() for node in self._nodes]
        while not self._over.wait(0.01):
            self.seen |= {link.head().head for link in links}
        for link in links:
            link.close()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def __enter__(self) -> Heads:
        self.start()
        return self


def test_a_batch_larger_than_a_parcel_is_committed_by_any_node(trio: Trio) -> None:
    primary = trio.working()
    backup = next(node for node in trio.nodes if node is not primary)
    with Heads(trio.nodes) as heads:
        for batch, node in enumerate((primary, backup)):
            link, stages = staged(node, batch)
            with link:
                first, last = link.commit("query", batch, stages)
                assert (first, last) == (batch * ROWS + 1, (batch + 1) * ROWS)
                # Asked again, it is there.
                assert link.commit("query", batch, stages) == (first, last)
        check(trio, 2)
    # Nobody has seen a part of one.
    assert heads.seen <= {0, ROWS, 2 * ROWS}


@pytest.mark.parametrize("part", [0.2, 0.9])
def test_a_primary_that_is_killed_between_parts_leaves_all_or_nothing(trio: Trio, part: float) -> None:
    primary = trio.working()
    others = [node for node in trio.nodes if node is not primary]
    link, stages = staged(others[0], 1)
    before = written(primary)

    def kill() -> None:
        while written(primary) < before + part * ROWS * ROW:
            time.sleep(0.001)
        primary.kill9()

    killing = threading.Thread(target=kill, daemon=True)
    with link, Heads(others) as heads:
        killing.start()
        first, last = committed(link, stages)
        killing.join(60)
        assert (first, last) == (1, ROWS)
        # Asked again, it is there.
        assert link.commit("query", 1, stages) == (first, last)
        primary.restart()
        trio.wires.targets[trio.nodes.index(primary)] = primary.address("parcel")
        check(trio, 1)
    assert heads.seen <= {0, ROWS}
    eventually("the node that was killed takes part", lambda: status(primary)["mode"] == "WRK")
