"""An archive on S3: a real server of that protocol, several micro-batches, refusals in the middle of each step."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.hubprocess import HubProcess
from tests.spark.jobs.conftest import Play
from tests.spark.jobs.s3 import BUCKET, KEYS, S3, s3_server
from tests.spark.jobs.test_jobs import linked, whole

from headrace.errors import UsageError
from headrace.message import SCHEMA
from headrace.spark.jobs.folder import Folder
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


def archived(s3: S3, path: str) -> pa.Table:
    """What any reader sees."""
    found = ds.dataset(
        f"{BUCKET}/{path}", filesystem=s3.system, format="parquet", partitioning="hive"
    ).to_table()
    return found.select(SCHEMA.names).sort_by("seq").cast(SCHEMA)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark_with_keys")
def test_archive_and_replay(hub: HubProcess, play: Play, s3: S3, tmp_path: Path) -> None:
    """Whatever step is refused, readers see the log up to some number, and the next run adds the rest, once."""
    servers = hub.doors["tube_tcp"]
    told = {"path": s3.uri("archive"), "checkpoint": str(tmp_path / "checkpoint")}
    with linked(hub) as link:
        link.publish([b"first"] * 1000, topic="t", attributes={"place": "Bern"}, numbers={"v": 1.5})
        assert play("archive", servers, **told)["through"] == 1000
        assert archived(s3, "archive") == whole(hub)

        # Tasks that cannot write.
        for _ in range(3):
            link.publish([os.urandom(1 << 20) for _ in range(4)])
        with s3.refusing("upload"), pytest.raises(PySparkException):
            play("archive", servers, **told)
        assert archived(s3, "archive") == whole(hub).slice(0, 1000)
        # A driver that cannot move what they wrote, and one that moves it, but is told that it failed: a move is a copy
        # and a removal.
        with s3.refusing("copy"), pytest.raises(PySparkException):
            play("archive", servers, **told)
        assert archived(s3, "archive") == whole(hub).slice(0, 1000)
        assert any(name.startswith("_making/") for name in s3.names("archive"))
        # So that there is nothing to remove but what is moved.
        Folder.at(told["path"]).sub("_making").remove_all()
        with s3.refusing("delete"), pytest.raises(PySparkException):
            play("archive", servers, **told)
        assert archived(s3, "archive").num_rows == 1012
        assert archived(s3, "archive") == whole(hub)

        for _ in range(2):
            link.publish([b"more"] * 10)
            through = int(str(play("archive", servers, **told)["through"]))
            assert archived(s3, "archive") == whole(hub)
        assert link.holds() == {"archive": through + 1}
    assert through == 1032
    names = s3.names("archive")
    assert all(name.startswith("day=") for name in names)
    # It has grown by copies of itself, in parts of 10 MiB; an hour may have begun meanwhile.
    assert len(names) <= 3
    assert max(s3.system.get_file_info(f"{BUCKET}/archive/{name}").size for name in names) > 12 << 20

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
