"""Jobs against real hubs: what they write and publish is what the log has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.archive.tables import archived
from tests.hubprocess import HubProcess
from tests.spark.hubs import TRIMMING, Hub, trimmed, until
from tests.spark.jobs.conftest import Play

import headrace
from headrace.archive.folder import Folder
from headrace.demo import job as fleet
from headrace.errors import StorageError, UsageError
from headrace.message import SCHEMA
from headrace.spark import register
from headrace.spark.jobs import archive, verify
from headrace.spark.jobs.job import DEFAULT_JOBS, JobRun, find
from headrace.spark.options import HubOptions

pytestmark = pytest.mark.spark


def linked(hub: HubProcess) -> Any:
    return headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}")


def whole(hub: HubProcess) -> pa.Table:
    """All messages of the log."""
    with linked(hub) as link:
        return pa.Table.from_batches(link.read(1), SCHEMA)


def findings(path: Path) -> list[tuple[str, str, int, int]]:
    table = ds.dataset(path, format="parquet").to_table()
    return sorted((row["kind"], row["server"], row["first"], row["last"]) for row in table.to_pylist())


def test_archive_equals_the_log_through_restarts(hub: HubProcess, play: Play, tmp_path: Path) -> None:
    servers = hub.doors["tube_tcp"]
    with linked(hub) as link:
        for index in range(30):
            link.publish(
                [b"x" * index] * 50, topic=f"t{index}", attributes={"n": str(index)}, numbers={"v": index}
            )
    assert play("archive", servers)["through"] == 1500
    assert archived(tmp_path / "archive") == whole(hub)
    hub.kill9()
    hub.restart()
    with linked(hub) as link:
        assert link.holds() == {"archive": 1501}
        link.publish([b"more"] * 10)
    # Its checkpoint lost, it begins at the beginning, and adds what is new.
    shutil.rmtree(tmp_path / "archive" / "_checkpoint")
    assert play("archive", servers)["through"] == 1510
    assert archived(tmp_path / "archive") == whole(hub)


def test_a_checkpoint_is_of_one_job(hub: HubProcess, play: Play, tmp_path: Path) -> None:
    """Another would go on where that one is, and say of what it never looked at that nothing is wrong."""
    servers = hub.doors["tube_tcp"]
    with linked(hub) as link:
        link.publish([b"hello"] * 10)
    play("archive", servers)
    for job in ("verify", "measure"):
        with pytest.raises(UsageError, match="is the checkpoint of archive"):
            play(job, servers, path=tmp_path / "archive")
        with pytest.raises(UsageError, match="is the checkpoint of archive"):
            play(job, servers, checkpoint=tmp_path / "archive" / "_checkpoint")
    assert not list((tmp_path / "archive").glob("*.parquet"))
    assert play("archive", servers)["through"]


def test_verify_catches_up_step_by_step(
    hub: HubProcess, play: Play, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked at is kept, however long the log is when it begins."""
    monkeypatch.setattr(verify, "ROWS_A_CORE", 100 // spark.sparkContext.defaultParallelism)
    with linked(hub) as link:
        link.publish([b"hello"] * 350)
    assert play("verify", hub.doors["tube_tcp"])["through"] == 350
    done = sorted(path.name for path in (tmp_path / "verify" / "_checkpoint" / "commits").glob("[0-9]*"))
    assert done == ["0", "1", "2", "3"]
    assert findings(tmp_path / "verify") == []


def test_archive_keeps_what_it_reads_and_catches_up_step_by_step(
    hub: HubProcess, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with linked(hub) as link:
        for _ in range(20):
            link.publish([bytes(1000)] * 10)

        def fail(*_: object) -> None:
            raise OSError("the disk is full")

        with monkeypatch.context() as broken:
            broken.setattr(archive.ArchiveWriter, "add", fail)
            with pytest.raises(PySparkException):
                play("archive", hub.doors["tube_tcp"])
        # Nothing is archived yet, and retention waits already.
        assert link.holds() == {"archive": 1}
        shutil.rmtree(tmp_path / "archive" / "_checkpoint")
        monkeypatch.setattr(archive, "MOST_BYTES", 50_000)
        assert play("archive", hub.doors["tube_tcp"])["through"] == 200
        commits = [
            each for each in (tmp_path / "archive/_checkpoint/commits").iterdir() if each.name.isdecimal()
        ]
        assert len(commits) >= 4
        assert archived(tmp_path / "archive") == whole(hub)
        assert link.holds() == {"archive": 201}


def test_archive_takes_a_burst_at_once_and_lets_a_trickle_wait(
    spark: SparkSession, hub: HubProcess, tmp_path: Path
) -> None:
    """An interval of an hour stands for one that is long: what is archived here, its size has brought about."""
    register(spark)
    path = tmp_path / "archive"
    told = {"path": str(path), "interval": "3600", "size": "100000"}
    every_look_tells = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(every_look_tells, "0")
    started = archive.start(
        JobRun(spark, "archive", HubOptions(hub.doors["tube_tcp"]), told, archive.PARAMETERS)
    )
    try:
        with linked(hub) as link:

            def through() -> int:
                assert started.query.isActive, started.query.exception()
                return int(str(started.facts()["through"]))

            def looks() -> list[str]:
                return [each.timestamp for each in started.query.recentProgress if not each.numInputRows]

            def looked_in_vain() -> None:
                """Wait until the query has twice found that there is nothing to do."""
                known = set(looks())
                until(lambda: len(set(looks()) - known) >= 2)

            looked_in_vain()
            assert not list(path.rglob("*.parquet"))
            link.publish(b"the first")
            until(lambda: through() == 1)
            for _ in range(30):
                link.publish([bytes(1000)] * 10)
            burst = link.head().head
            until(lambda: through() >= burst - 100)
            settled = link.publish(b"alone")[1]
            looked_in_vain()
            before, files = through(), sorted(path.rglob("*.parquet"))
            assert before < settled
            looked_in_vain()
            assert (through(), sorted(path.rglob("*.parquet"))) == (before, files)
            assert link.head().head == settled
    finally:
        started.query.stop()
        spark.conf.unset(every_look_tells)
    assert archived(path) == whole(hub).slice(0, before)


def test_what_jobs_pass_over_the_hub_knows(tmp_path: Path, play: Play) -> None:
    with Hub.start(tmp_path / "trimmed", *TRIMMING) as hub:
        trimmed(hub)
        oldest = hub.head().first
        with pytest.raises(PySparkException, match=f"messages 1 to {oldest - 1} are lost"):
            play("archive", hub.servers, starting=1)
        play("archive", hub.servers, starting=1, fail_on_data_loss="false")
        play("measure", hub.servers, starting=1)
        with hub.link() as link:
            gone = {"messages": oldest - 1, "ranges": [[1, oldest - 1]]}
            assert link.lost() == {"archive": gone, "measure": gone}
        assert archived(tmp_path / "archive").column("seq")[0].as_py() == oldest


def test_what_follows_an_archive_and_is_gone_is_lost_though_its_checkpoint_is_too(
    tmp_path: Path, play: Play
) -> None:
    with Hub.start(tmp_path / "trimmed", *TRIMMING) as hub:
        hub.publish([b"archived"] * 3)
        assert play("archive", hub.servers)["through"] == 3
        with hub.link() as link:
            link.release("archive")
        trimmed(hub)
        oldest = hub.head().first
        shutil.rmtree(tmp_path / "archive" / "_checkpoint")
        with pytest.raises(PySparkException, match=f"messages 4 to {oldest - 1} are lost"):
            play("archive", hub.servers)
        shutil.rmtree(tmp_path / "archive" / "_checkpoint")
        play("archive", hub.servers, fail_on_data_loss="false")
        with hub.link() as link:
            assert link.lost("archive")["archive"]["ranges"] == [[4, oldest - 1]]
        assert archived(tmp_path / "archive").column("seq").to_pylist()[:4] == [1, 2, 3, oldest]


def test_a_checkpoint_may_be_where_only_spark_can_write(spark: SparkSession) -> None:
    asked = {"path": "x", "checkpoint": "nowhere://that.pyarrow/knows"}
    run = JobRun(spark, "archive", HubOptions("127.0.0.1:1"), asked, archive.PARAMETERS)
    run._own_checkpoint()


def test_a_checkpoint_that_cannot_be_written_is_told_in_a_line(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would tell it in two pages of Java, and again at each try."""
    (tmp_path / "a file").touch()
    asked = {"path": f"{tmp_path}/a file/archive"}
    run = JobRun(spark, "archive", HubOptions("127.0.0.1:1"), asked, archive.PARAMETERS)
    with pytest.raises(StorageError, match=r"archive: .*/a file/archive/_checkpoint cannot be written: "):
        run._own_checkpoint()


@pytest.mark.parametrize(
    "place",
    [
        "s3://id:hush-hush@bucket/a",
        "abfss://:hush-hush@account.dfs.core.windows.net/a",
        "abfss://box@account.dfs.core.windows.net/a?client_id=b&client_secret=hush-hush",
        "s3://bucket/a?secret_key=hush-hush",
        "s3://bucket/a?unknown=hush-hush",
    ],
)
def test_keys_in_a_path_are_refused_and_not_repeated(place: str) -> None:
    with pytest.raises(UsageError) as refused:
        Folder.at(place)
    assert "hush-hush" not in str(refused.value)


def test_jobs_publish_nothing_before_there_is_a_message_of_somebodys(
    spark: SparkSession, hub: HubProcess, tmp_path: Path
) -> None:
    """The first message that a user publishes is number 1, however long jobs have run by then."""
    register(spark)
    every_look_tells = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(every_look_tells, "0")
    jobs: dict[str, Any] = {name: find(name) for name in DEFAULT_JOBS} | {"fleet": fleet}
    access, started = HubOptions(hub.doors["tube_tcp"]), {}
    try:
        for name, job in jobs.items():
            told = {"path": str(tmp_path / name), "interval": "0.2"}
            started[name] = job.start(JobRun(spark, name, access, told, job.PARAMETERS))
        with linked(hub) as link:

            def progress(name: str) -> list[Any]:
                query = started[name].query
                assert query.isActive, query.exception()
                return list(query.recentProgress)

            until(lambda: all(len(progress(name)) >= 4 for name in jobs))
            assert (link.head().head, link.services()) == (0, [])
            assert link.publish(b"hello")[0] == 1
            told_of = ("verify", "measure/second", "measure/minute", "measure/hour")
            until(lambda: {each["id"] for each in link.services()} >= set(told_of))
            assert json.loads(link.service("verify")) == {"findings": 0, "kinds": {}}
            assert json.loads(link.service("measure/hour"))["messages"] == 1
            # And what they say is not itself something to say.
            head = link.head().head
            known = {name: len(progress(name)) for name in jobs}
            until(lambda: all(len(progress(name)) >= known[name] + 4 for name in jobs))
            assert link.head().head == head == whole(hub).num_rows
    finally:
        for each in started.values():
            each.query.stop()
        spark.conf.unset(every_look_tells)


def test_verify_tells_of_a_sound_log_once(hub: HubProcess, play: Play, tmp_path: Path) -> None:
    with linked(hub) as link:
        link.publish([b"message"] * 1000)
        play("verify", hub.doors["tube_tcp"])
        head = link.head().head
        assert json.loads(link.service("verify")) == {"findings": 0, "kinds": {}}
        play("verify", hub.doors["tube_tcp"])
        assert link.head().head == head
    assert findings(tmp_path / "verify") == []


def test_verify_compares_logs(play: Play, tmp_path: Path) -> None:
    """Two hubs with one log, which then go apart: what a broken replica would look like."""
    with HubProcess.start(tmp_path / "a") as one:
        with linked(one) as link:
            link.publish([b"same"] * 5000)
        one.terminate()
        shutil.copytree(one.data, tmp_path / "b" / "data")
        one.restart()
        with HubProcess.start(tmp_path / "b") as other:
            servers = f"{one.doors['tube_tcp']},{other.doors['tube_tcp']}"
            assert play("verify", servers)["findings"] == 0
            mark = whole(one).num_rows
            with linked(one) as link:
                link.publish([b"here"] * 3, topic="t")
            with linked(other) as link:
                # The service that tells of it is in the first log alone.
                link.publish([b"here"] * (mark - 5000))
                link.publish([b"there"] * 2, topic="t")
            play("verify", servers)
            found = findings(tmp_path / "verify")
    there = other.doors["tube_tcp"]
    kinds = {(kind, server) for kind, server, _, _ in found}
    assert kinds == {("disagreement", there)}
    assert {first for _, _, first, _ in found} == set(range(5001, mark + 3))


def test_replay_adds_what_is_missing(hub: HubProcess, play: Play, tmp_path: Path) -> None:
    with linked(hub) as link:
        for index in range(100):
            link.publish(
                [f"{index}/{each}".encode() for each in range(20)], topic="even" if index % 2 == 0 else "odd"
            )
    play("archive", hub.doors["tube_tcp"])
    with HubProcess.start(tmp_path / "target") as target:
        there = target.doors["tube_tcp"]
        path = tmp_path / "archive"
        done = play("replay", there, path=path, until=1000)
        assert (done["messages"], done["first"], done["last"]) == (1000, 1, 1000)
        assert play("replay", there, path=path, until=1000)["messages"] == 0
        assert play("replay", there, path=path, where="topic = 'neither'")["messages"] == 0
        chosen = play("replay", there, path=path, where="topic = 'odd'", from_=1001, rate=100_000)
        assert chosen["messages"] == 500
        source, copy = whole(hub), whole(target)
        assert copy.slice(0, 1000).column("payload") == source.slice(0, 1000).column("payload")
        picked = copy.slice(1000)
        assert picked.num_rows == 500
        assert set(picked.column("topic").to_pylist()) == {"odd"}
        assert set(copy.column("origin").to_pylist()) == {"replay"}
