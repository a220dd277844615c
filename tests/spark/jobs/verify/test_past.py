"""``verify`` compares all of a log's past with an archive, by digests that tasks compute."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace
from pyspark.errors import PySparkException
from tests.archive.tables import add, ledger
from tests.hubprocess import HubProcess
from tests.log.proof.copies import history, write_log
from tests.spark.jobs.conftest import Play
from tests.spark.jobs.test_jobs import findings, linked, whole

from headrace.log.proof.chain import BLOCK

pytestmark = pytest.mark.spark

CHANGED = BLOCK + 5
HOLE = 77


def test_an_archive_is_what_the_hub_has_or_the_message_is_named(
    hub: HubProcess, play: Play, tmp_path: Path
) -> None:
    servers = hub.doors["tube_tcp"]
    with linked(hub) as link:
        for _ in range(14):
            link.publish([b"payload"] * 10_000, topic="t", attributes={"n": "1"})
    messages = whole(hub)
    log = str(link.log)
    same, other = tmp_path / "same", tmp_path / "other"
    add(ledger("delta", same, log), messages)
    assert play("verify", servers, archive=same, full="true")["findings"] == 0
    payloads = pc.if_else(pc.equal(messages["seq"], CHANGED), pa.scalar(b"paylond"), messages["payload"])
    wrong = messages.set_column(9, messages.schema.field("payload"), payloads)
    add(ledger("delta", other, log), wrong.filter(pc.not_equal(messages["seq"], HOLE)))
    play("verify", servers, path=tmp_path / "second", archive=other)
    assert findings(tmp_path / "second") == [
        ("disagreement", str(other), CHANGED, CHANGED),
        ("hole", str(other), HOLE, HOLE),
    ]
    # What was compared is not compared again.
    assert play("verify", servers, path=tmp_path / "second", archive=other)["findings"] == 2


def test_hubs_are_compared_by_what_they_recorded(play: Play, tmp_path: Path) -> None:
    messages = history(2 * BLOCK + 100)
    changed = list(messages)
    changed[CHANGED - 1] = replace(messages[CHANGED - 1], payload=b"other")
    write_log(tmp_path / "one" / "data", messages, each=10_000, sealed=3)
    write_log(tmp_path / "two" / "data", changed, each=7_000, sealed=4)
    with HubProcess.start(tmp_path / "one") as one, HubProcess.start(tmp_path / "two") as two:
        servers = [hub.doors["tube_tcp"] for hub in (one, two)]
        play("verify", ",".join(servers))
    found = findings(tmp_path / "verify")
    assert [(kind, first, last) for kind, _, first, last in found] == [("disagreement", CHANGED, CHANGED)]


def test_an_archive_of_another_log_is_refused(hub: HubProcess, play: Play, tmp_path: Path) -> None:
    with linked(hub) as link:
        link.publish(b"hello")
    add(ledger("delta", tmp_path / "other"), whole(hub))
    with pytest.raises(PySparkException, match="and the hub has log"):
        play("verify", hub.doors["tube_tcp"], archive=tmp_path / "other")
