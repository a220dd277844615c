"""An archive on S3: a real server of that protocol, several micro-batches, refusals in the middle of each step."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.archive.tables import add, archived, ledger, rows, staged
from tests.hubprocess import HubProcess
from tests.spark.jobs.conftest import Play
from tests.spark.jobs.s3 import BUCKET, KEYS, S3, s3_server
from tests.spark.jobs.test_jobs import linked, whole

from headrace.archive import ArchiveFile, open_table
from headrace.archive.folder import Folder
from headrace.archive.ledger import Ledger, Writer
from headrace.errors import NoArchiveError, OvertakenError, StorageError, UsageError
from headrace.spark import history
from headrace.spark.jobs.job import JobRun, find, parameters_of
from headrace.spark.options import HubOptions


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        with s3_server(tmp_path_factory.mktemp("s3")) as server:
            yield server


@pytest.fixture
def spark_with_keys(spark: SparkSession, s3: S3) -> Iterator[SparkSession]:
    """Workers that Spark starts from now on have the keys, as they have where the environment had them all along."""
    environment = spark.sparkContext.environment
    environment.update(KEYS)
    yield spark
    for name in KEYS:
        environment.pop(name, None)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark_with_keys")
def test_archive_and_replay(spark: SparkSession, hub: HubProcess, play: Play, s3: S3, tmp_path: Path) -> None:
    """Whatever step is refused, readers see the log up to some number, and the next run adds the rest, once."""
    servers = hub.doors["tube_tcp"]
    told = {"path": s3.uri("an archive"), "checkpoint": str(tmp_path / "checkpoint")}
    with linked(hub) as link:
        link.publish([b"first"] * 1000, topic="t", attributes={"place": "Bern"}, numbers={"v": 1.5})
        assert play("archive", servers, **told)["through"] == 1000
        assert archived(told["path"]) == whole(hub)

        # Tasks whose upload, in several parts, is interrupted, and a driver that cannot commit.
        for _ in range(3):
            link.publish([os.urandom(1 << 20) for _ in range(4)])
        for step in ("upload", "commit"):
            with s3.refusing(step), pytest.raises(PySparkException):
                play("archive", servers, **told)
            assert archived(told["path"]) == whole(hub).slice(0, 1000)
        # A driver that commits, but is told that it did not.
        with s3.refusing("commit.lost"), contextlib.suppress(PySparkException):
            play("archive", servers, **told)
        assert archived(told["path"]) == whole(hub)

        for _ in range(2):
            link.publish([b"more"] * 10)
            through = int(str(play("archive", servers, **told)["through"]))
            assert archived(told["path"]) == whole(hub)
        assert link.holds() == {"archive": through + 1}
    assert through == 1032
    assert {name.partition("/")[0] for name in s3.names("an archive")} == {"data", "_delta_log"}
    assert history(spark, told["path"]).count() == 1032

    with HubProcess.start(tmp_path / "target") as target:
        there = target.doors["tube_tcp"]
        assert play("replay", there, path=told["path"])["messages"] == 1032
        assert play("replay", there, path=told["path"])["messages"] == 0
        copy, source = whole(target), whole(hub)
        for name in ("payload", "topic", "attributes", "numbers"):
            assert copy.column(name) == source.column(name), name
        chosen = play("replay", there, path=told["path"], from_=995, until=1003, where="topic = 't'")
        assert chosen["messages"] == 6
        since = source["time"][1000].as_py().isoformat()
        assert play("replay", there, path=told["path"], from_=since)["messages"] == 32


def test_of_two_writers_on_s3_one_is_refused(s3: S3) -> None:
    """The store takes a commit only if there is none of its number."""
    place = s3.uri("two writers")
    one, other = ledger("delta", place), ledger("delta", place)
    late = staged(one, rows(1, 20))
    add(other, rows(1, 10), Writer("the other", 7))
    with pytest.raises(OvertakenError, match="query the other, batch 7 has added messages up to 10"):
        one.append(late, Writer("the first", 1))
    assert archived(place) == rows(1, 10)
    racing = [ledger("delta", place) for _ in range(4)]
    files = [staged(each, rows(11, 30)) for each in racing]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(_appended, racing, files))
    assert sorted(done) == [False, False, False, True]
    assert archived(place) == rows(1, 30)


def _appended(to: Ledger, files: list[ArchiveFile]) -> bool:
    try:
        to.append(files, Writer("racing", 1))
    except OvertakenError:
        return False
    return True


def test_a_store_that_refuses_is_told_by_its_place(s3: S3) -> None:
    place = s3.uri("refused")
    add(ledger("delta", place), rows(1, 10))
    with s3.refusing("read"), pytest.raises(StorageError, match="refused"):
        open_table(place)
    with pytest.raises(NoArchiveError):
        open_table(s3.uri("nowhere"))
    with pytest.raises(UsageError, match="plain Parquet has no transactions"):
        ledger("parquet", s3.uri("plain"))


@pytest.mark.spark
@pytest.mark.usefixtures("spark_with_keys")
@pytest.mark.parametrize("job", ["verify", "measure"])
def test_other_jobs_write_there_too(hub: HubProcess, play: Play, s3: S3, tmp_path: Path, job: str) -> None:
    with linked(hub) as link:
        link.publish([b"message"] * 100)
    play(job, hub.doors["tube_tcp"], path=s3.uri(job), checkpoint=tmp_path / "checkpoint")
    assert s3.names(job) == (["findings.parquet"] if job == "verify" else [])


def test_keys_travel_in_no_task_and_stand_in_no_path(s3: S3) -> None:
    folder = Folder.at(s3.uri("archive"))
    pickled = pickle.dumps(folder)
    assert not [key for key in KEYS.values() if key.encode() in pickled and key != KEYS["AWS_DEFAULT_REGION"]]
    assert pickle.loads(pickled).names() == folder.names()
    for place in (f"s3://the-id:the-secret@{BUCKET}/archive", "s3a://the-id@mill"):
        with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID") as told:
            Folder.at(place)
        assert "the-secret" not in str(told.value)
        assert "the-id" not in str(told.value)


def test_a_checkpoint_has_a_place_of_its_own(s3: S3) -> None:
    """Spark writes it, and cannot write where only pyarrow can."""
    run = JobRun(None, "archive", HubOptions(), {"path": s3.uri("archive")}, find("archive").PARAMETERS)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"--param archive\.checkpoint="):
        _ = run.checkpoint
    run.params = {"path": "hdfs://name/archive"}
    assert run.checkpoint == "hdfs://name/archive/_checkpoint"


def test_several_jobs_share_a_place_with_options() -> None:
    jobs = {name: find(name) for name in ("archive", "verify")}
    told = parameters_of(jobs, {"path": "s3://mill/all/?scheme=http", "checkpoint": "/srv/checkpoints/"})
    assert told == {
        "archive": {"path": "s3://mill/all/archive?scheme=http", "checkpoint": "/srv/checkpoints/archive"},
        "verify": {"path": "s3://mill/all/verify?scheme=http", "checkpoint": "/srv/checkpoints/verify"},
    }
