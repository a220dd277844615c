"""Promise 8: two copies of one history can be proven equal, whatever their files look like."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from tests.clusterprocess import Trio
from tests.forking import completed
from tests.hubprocess import HubProcess
from tests.system.observing import PATIENCE_SECONDS, eventually, head

import headrace
from headrace.log.proof.chain import BLOCK

LATE = 30_000
COUNT = 71_000
"""One block and a part of the next."""


def tube(hub: HubProcess) -> str:
    return f"tube://{hub.doors['tube_tcp']}"


def publish(hub: HubProcess, count: int) -> None:
    with headrace.connect_sync(tube(hub)) as link:
        for begin in range(0, count, 1000):
            rows: list[Any] = [
                {"payload": b"%d" % seq, "topic": f"t/{seq % 9}", "attributes": {"place": str(seq)}}
                for seq in range(begin, begin + 1000)
            ]
            link.publish(rows)


def seal(hub: HubProcess) -> None:
    request = urllib.request.Request(
        f"http://{hub.doors['http']}/api/log/seal", method="POST", headers={"X-Headrace": "1"}
    )
    urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).close()


def verify(*arguments: object) -> dict[str, Any]:
    ended = completed(["verify", "--json", *map(str, arguments)], seconds=PATIENCE_SECONDS)
    told: dict[str, Any] = json.loads(ended.stdout or b"{}")
    assert told, ended.stderr
    return told


def test_nodes_and_a_late_frontend_have_one_chain(tmp_path: Path) -> None:
    assert BLOCK < COUNT < 2 * BLOCK
    with Trio.start(tmp_path / "trio", "log.segment_seconds=1000") as trio:
        primary = trio.working()
        publish(primary, LATE)
        seal(trio.nodes[1])
        upstream = f"node.upstream={tube(trio.nodes[1])}"
        with HubProcess.start(tmp_path / "late", upstream, "log.segment_bytes=300000") as late:
            publish(primary, COUNT - LATE)
            hubs = [*trio.nodes, late]
            eventually("all have all", lambda: all(head(hub) == COUNT for hub in hubs))
            seal(trio.nodes[2])
            seal(late)
            told = verify(*map(tube, hubs))
            assert told["findings"] == []
            assert {each["head"] for each in told["copies"]} == {COUNT}
            assert {(each["chain"], each["open"]) for each in told["copies"]} == {
                (told["copies"][0]["chain"], told["copies"][0]["open"])
            }
            assert told["copies"][3]["first"] == LATE + 1, (
                "the frontend has not the beginning, but knows its digests"
            )
            # Every row, read over the link and from files.
            assert verify("--full", tube(trio.nodes[0]), trio.nodes[2].data, tube(late))["findings"] == []
    layouts = {len(list((hub.data / "log").glob("*.arrow"))) for hub in hubs}
    assert len(layouts) > 1, "their files differ"
