"""A hub serves its past from S3: a real server, with keys, that can refuse what it is asked."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.archive.logs import archive, rows_of, same, trim, write_log
from tests.hubprocess import HubProcess
from tests.spark.jobs.s3 import KEYS, S3, s3_server

import headrace
from headrace.archive.backups import restore
from headrace.archive.past import ArchivedPast
from headrace.client.backup import back_up_files
from headrace.errors import ArchiveError

COUNT = 3_000


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in KEYS.items():
            environment.setenv(name, value)
        with s3_server(tmp_path_factory.mktemp("s3")) as server:
            yield server


def test_a_log_reads_its_past_from_s3(s3: S3, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", COUNT)
    before = rows_of(log.scan(1))
    place = s3.uri("past of a mill")
    archive(log, place, COUNT)
    past = ArchivedPast(log, place)
    trim(log, past)
    assert (log.first, log.first_here) == (1, 2_001)
    assert same(rows_of(log.scan(1)), before)
    fresh = ArchivedPast(log, place)
    assert fresh.look()
    log.past = fresh
    with s3.refusing("read"):
        with pytest.raises(ArchiveError, match="messages 1 to 3000 cannot be read from the archive s3://"):
            log.read(1)
        assert fresh.problem is not None
    assert log.read(1)
    assert fresh.look()
    log.close()


def test_a_backup_in_s3_brings_a_hub_back(s3: S3, tmp_path: Path) -> None:
    log = write_log(tmp_path / "one" / "log", COUNT)
    uuid = str(log.uuid)
    before = rows_of(log.scan(1))
    log.close()
    place = s3.uri("backups")
    back_up_files(tmp_path / "one" / "log", place)
    assert restore(place, tmp_path / "two" / "data" / "log") == (uuid, COUNT, COUNT)
    with (
        HubProcess.start(tmp_path / "two", f"log.archive={place}", environ=KEYS) as hub,
        headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link,
    ):
        assert link.log == uuid
        assert same(link.read(1).to_arrow().combine_chunks(), before)
        assert link.publish(b"next").first == COUNT + 1


def test_a_hub_starts_and_stops_beside_an_archive_that_never_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"s3://mill/x?scheme=http&endpoint_override=127.0.0.1:{silent.getsockname()[1]}"
        with HubProcess.start(tmp_path, f"log.archive={place}", environ=KEYS) as hub:
            with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
                assert link.publish(b"taken").first == 1
                assert "archive" in link.status()["problems"]
            hub.terminate()  # Within the time that a hub has for it.
            assert "the archive does not answer" in hub.stderr
