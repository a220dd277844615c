"""A log that begins behind a snapshot."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from headrace.errors import DamagedError
from headrace.log import Log
from headrace.log.snapshots.snapshot import Snapshot
from headrace.log.snapshots.start_after import begin, begin_anew, is_log
from headrace.message import NOT_A_MESSAGE, Batch, Run


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(("op", "seq"), [(0, 0), (5, 0), (41, 41), (60, 41)])
def test_it_goes_on_behind_the_snapshot(tmp_path: Path, op: int, seq: int, sync: bool) -> None:
    directory = tmp_path / "data" / "log"
    assert not is_log(directory)
    uuid = uuid4()
    begin(directory, Snapshot(uuid, op, seq, {"part": b"state"}), sync=sync)
    assert is_log(directory)
    for _ in range(2):
        log = Log.open(directory)
        assert (log.uuid, log.first, log.tail, log.head) == (uuid, seq + 1, seq, seq)
        assert (log.first_op, log.tail_op, log.head_op) == (op + 1, op, op)
        assert (None if log.snapshot is None else log.snapshot.sections) == (
            {"part": b"state"} if op else None
        )
        log.close()
    log = Log.open(directory)
    log.append([Batch(Run.of([b"e"]), first=seq, time=5, origin=NOT_A_MESSAGE)])
    log.append([Batch(Run.of([b"x"]), first=seq + 1, time=5, op=op + 2)])
    log.commit(log.tail_op)
    assert (log.op_of(seq + 1), log.seq_of(op + 1)) == (op + 2, seq)
    assert [m.seq for batch in log.scan(log.first) for m in batch] == [seq + 1]
    log.close()


def test_an_interrupted_beginning_is_made_again(tmp_path: Path) -> None:
    begin(tmp_path, Snapshot(uuid4(), 7, 7, {}), sync=False)
    (tmp_path / f"{8:016d}.open").unlink()
    assert not is_log(tmp_path)
    with pytest.raises(DamagedError):
        Log.open(tmp_path)
    uuid = uuid4()
    begin(tmp_path, Snapshot(uuid, 3, 3, {}), sync=False)
    log = Log.open(tmp_path)
    assert (log.uuid, log.tail) == (uuid, 3)
    log.close()


def test_a_new_one_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    uuid = uuid4()
    begin(directory, Snapshot(uuid, 0, 0, {}), sync=False)
    log = Log.open(directory)
    log.append([Batch(Run.of([b"old"]), first=1)])
    log.close()
    for seq in (10, 20):
        begin_anew(directory, Snapshot(uuid, seq, seq, {}), sync=False)
        log = Log.open(directory)
        assert (log.uuid, log.first, log.tail) == (uuid, seq + 1, seq)
        log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
