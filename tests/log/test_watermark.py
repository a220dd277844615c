"""Power failures: what was synced stays, what was not is cut off, and nobody has to repair anything."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from headrace.errors import DamagedError
from headrace.log import Log, watermark
from headrace.log.damage.repair import plan
from headrace.log.damage.verify import Progress, verify
from headrace.log.frame_file import HEADER_BYTES
from headrace.message import NOT_A_MESSAGE, Batch, Message, Run

PAGE = 64
"""Bytes that a failure loses or keeps together: small, so that small logs have many."""


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert watermark.read(tmp_path) is None
    uuid, other = uuid4(), watermark.Watermark(tmp_path)
    for op in (0, 7, 1 << 47):
        other.write(uuid, op)
        assert watermark.read(tmp_path) == (uuid, op)
    path = tmp_path / watermark.NAME
    whole = path.read_bytes()
    # What is damaged never counts: there is the note before, or the last one is whole.
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert watermark.read(tmp_path) in ((uuid, 7), (uuid, 1 << 47))
    path.write_bytes(bytes(len(whole)))
    assert watermark.read(tmp_path) is None
    watermark.forget(tmp_path)
    assert not path.exists()


def test_a_write_that_is_cut_short_leaves_the_note_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever part of it power leaves; and the next one is written, by this process or another."""
    pwrite, uuid = os.pwrite, uuid4()

    def fails_after(room: int) -> None:
        def some(fd: int, data: bytes, offset: int) -> int:
            nonlocal room
            if not room:
                raise OSError(28, "no space")
            written = pwrite(fd, data[:room], offset)
            room -= written
            return written

        monkeypatch.setattr(os, "pwrite", some)

    mark = watermark.Watermark(tmp_path)
    mark.write(uuid, 1)
    for op in range(2, 40):
        fails_after(op)
        with pytest.raises(OSError, match="no space"):
            mark.write(uuid, 1000)
        assert watermark.read(tmp_path) == (uuid, op - 1)
        monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:5], offset))
        if op % 3 == 0:
            mark = watermark.Watermark(tmp_path)
        mark.write(uuid, op)
        assert watermark.read(tmp_path) == (uuid, op)


def test_a_log_opens_without_one_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / watermark.NAME).mkdir()
    log = Log.open(tmp_path)
    assert "is a directory" in caplog.text
    log.append([Batch(Run.of([b"x"]), first=1, origin="a")])
    log.commit(log.sync())
    log.close()
    again = Log.open(tmp_path)
    assert again.head == 1
    again.close()


@pytest.mark.parametrize("seed", range(150))
def test_after_a_power_failure_the_log_opens_with_all_that_was_synced(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    live, dead = tmp_path / "live", tmp_path / "dead"
    log = Log.open(live, segment_bytes=chance.choice([300, 2000, 1 << 20]))
    written: list[Message] = []
    safe: dict[str, int] = {}
    synced = 0

    def sync() -> None:
        nonlocal synced
        synced = log.sync()
        safe.update({path.name: path.stat().st_size for path in live.glob("*.open")})

    sync()
    for _ in range(chance.randrange(2, 30)):
        batches = []
        for _ in range(chance.randrange(1, 3)):
            entries = chance.random() < 0.4
            seq = batches[-1].last if batches else log.tail
            payloads = [chance.randbytes(chance.randrange(60)) for _ in range(chance.randrange(1, 4))]
            origin = NOT_A_MESSAGE if entries else "test"
            batches.append(Batch(Run.of(payloads), first=seq if entries else seq + 1, origin=origin))
        log.append(batches)
        written += [message for batch in batches for message in batch]
        if chance.random() < 0.3:
            sync()
    marked = (live / watermark.NAME).read_bytes()
    shutil.copytree(live, dead)
    log.close()
    for path in dead.glob("*.open"):
        kept = safe.get(path.name, 0)  # of a tail that is new since then, not even the header is sure
        data = bytearray(path.read_bytes())
        for at in range(kept, len(data), PAGE):
            if chance.random() < 0.4:
                data[at : at + PAGE] = bytes(len(data[at : at + PAGE]))
        if chance.random() < 0.3:
            del data[chance.randrange(kept, len(data) + 1) :]
        path.write_bytes(data)
    if chance.random() < 0.3:
        # It is written after the sync, and may be lost, too: then an older one is there.
        (dead / watermark.NAME).write_bytes(marked)
    # Those who only look say the same as opening does: nothing is damaged.
    (dead / "lock").unlink()
    assert all(isinstance(each, Progress) or each.mends for each in verify(dead))
    planned = plan(dead)
    assert (planned.steps, planned.lost, planned.lost_entries) == ((), (), ())
    again = Log.open(dead)
    assert (again.head, again.uuid) == (planned.last, planned.uuid_after)
    found = [message for batch in again.scan_ops(1) for message in batch]
    assert found == written[: len(found)]
    assert len(found) >= synced
    again.append([Batch(Run.one(b"on"), first=again.tail + 1, origin="test")])
    again.close()
    Log.open(dead).close()


def test_damage_to_what_was_synced_is_refused(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    for number in range(1, 4):
        log.append([Batch(Run.one(bytes(100)), first=number, origin="test")])
    log.sync()
    log.append([Batch(Run.one(bytes(100)), first=4, origin="test")])
    [tail] = log.segments
    data = bytearray(tail.path.read_bytes())
    crashed = tmp_path.with_name("crashed")
    shutil.copytree(tmp_path, crashed)
    log.close()
    data[HEADER_BYTES + 60] ^= 1
    (crashed / tail.path.name).write_bytes(data)
    with pytest.raises(DamagedError, match="messages 1 to"):
        Log.open(crashed)


def test_without_syncs_there_is_none_and_everything_counts_as_promised(tmp_path: Path) -> None:
    Log.open(tmp_path).close()
    assert watermark.read(tmp_path) is not None
    log = Log.open(tmp_path, fsync="never")
    assert watermark.read(tmp_path) is None
    for number in range(1, 4):
        log.append([Batch(Run.one(bytes(100)), first=number, origin="test")])
    [tail] = log.segments
    log.close()
    data = bytearray(tail.path.read_bytes())
    data[HEADER_BYTES + 60] ^= 1
    tail.path.write_bytes(data)
    with pytest.raises(DamagedError):
        Log.open(tmp_path)


def test_it_goes_back_with_the_log(tmp_path: Path) -> None:
    log = Log.open(tmp_path, committed=0)
    for number in range(1, 4):
        log.append([Batch(Run.one(b"x"), first=number, origin="test")])
    log.sync()
    log.cut_back(1)
    assert watermark.read(tmp_path) == (log.uuid, 1)
    log.append([Batch(Run.one(b"y"), first=2, origin="test")])
    assert watermark.read(tmp_path) == (log.uuid, 1)
    log.sync()
    assert watermark.read(tmp_path) == (log.uuid, 2)
    log.close()


def test_what_was_not_synced_is_written_again_before_it_is_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync the system may show what it has given up writing, and call the next sync a success."""
    log = Log.open(tmp_path)
    log.append([Batch(Run.of([b"synced"] * 3), first=1, origin="a")])
    log.commit(log.sync())
    (tail,) = tmp_path.glob("*.open")
    safe = tail.stat().st_size
    log.append([Batch(Run.of([b"given up"] * 3), first=4, origin="a")])
    log.append([Batch(Run.of([b"this too"]), first=7, origin="a")])
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in tmp_path.iterdir():
        if path.is_file() and path.name != "lock":
            shutil.copy(path, copy)
    log.close()
    (tail,) = copy.glob("*.open")
    before, again = tail.read_bytes(), bytearray(len(tail.read_bytes()))
    syncs: list[int] = []
    pwrite, fdatasync = os.pwrite, os.fdatasync

    def written(descriptor: int, data: bytes, at: int) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == tail:
            assert not syncs
            again[at : at + len(data)] = data
        return pwrite(descriptor, data, at)

    def synced(descriptor: int) -> None:
        syncs.append(descriptor)
        fdatasync(descriptor)

    monkeypatch.setattr(os, "pwrite", written)
    monkeypatch.setattr(os, "fdatasync", synced)
    opened = Log.open(copy)
    monkeypatch.undo()
    assert opened.head == 7
    assert bytes(again[safe:]) == before[safe:]
    assert len(before) > safe
    assert not any(again[:HEADER_BYTES])
    assert syncs
    opened.close()
    assert tail.read_bytes() == before
