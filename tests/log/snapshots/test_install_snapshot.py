from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.log.content import append, append_entries, batch, content_of, flat, operations, restore, seal_all
from tests.log.interruption import Interruption, PowerFailureError

from headrace.errors import DamagedError, LockedError
from headrace.log import Log
from headrace.log.snapshots import start_after as start_after_snapshot
from headrace.log.snapshots.snapshot import Snapshot
from headrace.log.snapshots.start_after import install

UUID_OF_THE_CLUSTER = UUID(int=7)
SNAPSHOT = Snapshot(UUID_OF_THE_CLUSTER, 700, 500, {"services": b"state"})


def old_log(directory: Path) -> None:
    """One with a sealed segment, a snapshot, and a tail."""
    log = Log.open(directory)
    append_entries(log, b"entry", time=2)
    append(log, b"one", b"two", time=3)
    append_entries(log, b"entry")
    seal_all(log)
    log.write_snapshot(4, 2, {"services": b"old"})
    append(log, b"three")
    log.close()


@pytest.mark.parametrize("prepare", [old_log, lambda directory: None], ids=["an old log", "nothing"])
def test_the_log_goes_on_behind_the_snapshot(tmp_path: Path, prepare: Any) -> None:
    prepare(tmp_path)
    (tmp_path / "someone else's").write_text("stays")
    install(tmp_path, SNAPSHOT, 99)
    log = Log.open(tmp_path)
    assert (log.uuid, log.first, log.head, log.tail, log.last_time) == (
        UUID_OF_THE_CLUSTER,
        501,
        500,
        500,
        99,
    )
    assert log.snapshot == SNAPSHOT
    assert (log.first_op, log.head_op, log.tail_op) == (701, 700, 700)
    append_entries(log, b"before it")
    append(log, b"next")
    assert [message.seq for message in flat(log.scan(501))] == [501]
    assert [(op, message.seq) for op, message in operations(log.scan_ops(701))] == [(701, 500), (702, 501)]
    assert not list(tmp_path.glob("*.entries"))
    log.close()
    assert (tmp_path / "someone else's").exists()
    again = Log.open(tmp_path, committed=0)
    assert (again.head, again.tail, again.head_op, again.tail_op) == (500, 501, 700, 702)
    again.close()


def test_a_crash_at_any_step_leaves_the_old_log_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for step in itertools.count():
        directory = tmp_path / str(step)
        old_log(directory)
        fail = Interruption(step)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail(os.fsync))
            patch.setattr(Path, "unlink", fail(Path.unlink))
            patch.setattr(Path, "rename", fail(Path.rename))
            patch.setattr(start_after_snapshot, "sync_path", fail(start_after_snapshot.sync_path))
            try:
                install(directory, SNAPSHOT, 99)
            except PowerFailureError:
                failed = True
            else:
                failed = False
            left = content_of(directory)
        restore(directory, left)
        log = Log.open(directory)
        seen.add((log.first, log.tail))
        assert (log.first, log.tail) in {(1, 3), (501, 500)}
        log.close()
        if not failed:
            break
    assert seen == {(1, 3), (501, 500)}


def test_a_log_in_use_is_left_alone(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    with pytest.raises(LockedError):
        install(tmp_path, SNAPSHOT, 99)
    log.close()


def test_what_is_half_done_is_not_read(tmp_path: Path) -> None:
    old_log(tmp_path)
    (tmp_path / start_after_snapshot.INSTALLING).write_bytes(b"\0" * 40)
    with pytest.raises(DamagedError, match="being installed"):
        Log.open(tmp_path, read_only=True)
    with pytest.raises(DamagedError, match="checksum"):
        Log.open(tmp_path)


def test_a_new_log_may_be_given_its_uuid(tmp_path: Path) -> None:
    log = Log.open(tmp_path, uuid=UUID_OF_THE_CLUSTER)
    log.append([batch(1)])
    assert log.uuid == UUID_OF_THE_CLUSTER
    log.close()
    log = Log.open(tmp_path, uuid=UUID(int=8))
    assert log.uuid == UUID_OF_THE_CLUSTER
    log.close()
