"""A backup is an archive with a snapshot: a hub goes on from it with the same log, numbers and state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.archive.logs import archive, message_batches, same, write_log
from tests.forking import completed
from tests.hubprocess import HubProcess

import headrace
from headrace.archive.appending import append, ledger_for
from headrace.archive.backups import FOLDER, restore, save_snapshot
from headrace.archive.ledger import Writer
from headrace.archive.past import open_whole
from headrace.client.backup import back_up_files
from headrace.errors import ArchiveError, DamagedError, NoArchiveError, StorageError, UsageError
from headrace.log import Log

SECONDS = 60.0


def command(*arguments: object, fails: bool = False) -> str:
    found = completed([str(argument) for argument in arguments], stdin=b"", seconds=SECONDS)
    assert (found.returncode != 0) is fails, found.stderr.decode()
    return (found.stderr if fails else found.stdout).decode()


def url(hub: HubProcess) -> str:
    return f"tube://{hub.doors['tube_tcp']}"


def test_a_hub_goes_on_from_its_backup(tmp_path: Path) -> None:
    place = tmp_path / "a backup"
    with (
        HubProcess.start(tmp_path / "one", "log.segment_bytes=20000") as hub,
        headrace.connect_sync(url(hub)) as link,
    ):
        publisher = link.publisher("mill")
        for number in range(20):
            publisher.publish([f"{number} {each}".encode() for each in range(50)])
        link.create_service("orders", "last")
        consumer = link.consumer("billing", from_seq=1)
        for _, message in zip(range(10), consumer, strict=False):
            consumer.ack(message)
        made = json.loads(command("backup", place, "--url", url(hub), "--json"))
        assert (made["snapshot"], made["added"]) == (1_000, 1_000)
        # A second one adds what came since, and replaces the snapshot.
        publisher.publish([b"later"] * 5)
        made = json.loads(command("backup", place, "--url", url(hub), "--json"))
        assert (made["snapshot"], made["added"]) == (1_005, 5)
        # As if the archive's job had gone on after the backup.
        publisher.publish([b"archived only"] * 3)
        before = link.read(1).to_arrow().combine_chunks()
        log, services = link.log, link.services()
        hub.terminate()
    kept = Log.open(tmp_path / "one" / "data" / "log", read_only=True)
    archive(kept, place, 1_008)
    kept.close()

    data = tmp_path / "two" / "data"
    assert json.loads(command("restore", place, "--data", data, "--json")) == {
        "log": log,
        "snapshot": 1_005,
        "head": 1_008,
    }
    assert "not empty" in command("restore", place, "--data", data, fails=True)
    with (
        HubProcess.start(tmp_path / "two", f"log.archive={place}") as hub,
        headrace.connect_sync(url(hub)) as link,
    ):
        extent = link.head()
        assert (extent.log, extent.first, extent.head) == (log, 1, 1_008)
        assert same(link.read(1).to_arrow().combine_chunks(), before)
        assert [each["id"] for each in link.services()] == [each["id"] for each in services]
        floors = {each["consumer"]: each["floor"] for each in link.consumers()}
        assert floors == {"billing": 10}
        # A publisher's numbers go on, with those that came after the snapshot.
        assert link.newest("mill") == before["number"].to_pylist()[-1]
        again = link.publisher("mill")
        assert again.publish([b"new"]).first == 1_009
        consumer = link.consumer("billing")
        assert next(iter(consumer)).seq == 11
        status = link.status()
        assert status["first_here"] == 1_006


def test_a_hub_that_does_not_run_is_backed_up_from_its_files(tmp_path: Path) -> None:
    log = write_log(tmp_path / "data" / "log", 2_000)
    uuid = str(log.uuid)
    log.close()
    made = back_up_files(tmp_path / "data" / "log", str(tmp_path / "backup"), "parquet")
    assert made == (uuid, 2_000, 2_000)
    restored = restore(str(tmp_path / "backup"), tmp_path / "other" / "log")
    assert restored == (uuid, 2_000, 2_000)
    with open_whole(tmp_path / "data" / "log") as one, open_whole(tmp_path / "other" / "log") as other:
        assert other.first == 1
        assert other.first_here == 2_001
        assert [repr(each) for batch in other.scan(1) for each in batch] == [
            repr(each) for batch in one.scan(1) for each in batch
        ]
        assert other.last_time == one.last_time


def test_a_log_does_not_go_on_in_the_archive_of_another_history(tmp_path: Path) -> None:
    """The archive has messages that the hub lost with the power; it went on with others."""
    place = tmp_path / "archive"
    with (
        HubProcess.start(tmp_path / "hub") as hub,
        headrace.connect_sync(url(hub)) as link,
    ):
        link.publish([b"other"] * 1_000)
        ledger = ledger_for(str(place), link.log)
        append(ledger, (batch.to_arrow() for batch in message_batches(1, 500)), Writer("tests", 0))
        said = command("backup", place, "--url", url(hub), fails=True)
        hub.terminate()
    assert "its message 500 differs from the log's" in said
    with pytest.raises(StorageError, match="its message 500 differs"):
        back_up_files(tmp_path / "hub" / "data" / "log", str(place))


def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    with pytest.raises(NoArchiveError):
        restore(str(place), tmp_path / "log")
    log = write_log(tmp_path / "data" / "log", 1_000)
    archive(log, place, 500)
    with pytest.raises(UsageError, match="no snapshot"):
        restore(str(place), tmp_path / "log")
    log.close()
    other = write_log(tmp_path / "other" / "log", 10)
    other.close()
    back_up_files(tmp_path / "other" / "log", str(tmp_path / "elsewhere"))
    foreign = next((tmp_path / "elsewhere" / FOLDER).iterdir()).read_bytes()
    with pytest.raises(UsageError, match="archive of log"):
        save_snapshot(str(place), foreign)
    back_up_files(tmp_path / "data" / "log", str(tmp_path / "whole"))
    snapshot = next((tmp_path / "whole" / FOLDER).iterdir())
    with pytest.raises(ArchiveError, match="it ends at 500, and the snapshot is after message 1000"):
        save_snapshot(str(place), snapshot.read_bytes())
    snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedError):
        restore(str(tmp_path / "whole"), tmp_path / "log")
    assert not (tmp_path / "log").exists()
    Log.open(tmp_path / "empty" / "log").close()
    with pytest.raises(UsageError, match="nothing to back up"):
        back_up_files(tmp_path / "empty" / "log", str(tmp_path / "nothing"))
