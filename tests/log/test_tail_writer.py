"""What is written at once: never more than a system call is to be given, and every byte in its place."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log import Log, tail_writer
from headrace.log.frame_file import HEADER_BYTES
from headrace.log.tail import TailFile
from headrace.log.tail_writer import TailWriter
from headrace.message import Batch, Run
from headrace.platforms import reserve_ahead

PIECES = st.lists(st.binary(max_size=40).flatmap(lambda data: st.sampled_from([data, memoryview(data)])))


@given(PIECES, st.integers(1, 50), st.integers(1, 6))
def test_portions_are_the_same_bytes_in_bounds(
    pieces: list[bytes | memoryview], most_bytes: int, most_pieces: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail_writer, "_MAX_BYTES", most_bytes)
        patch.setattr(tail_writer, "_MAX_PIECES", most_pieces)
        portions = list(tail_writer._portions(pieces))
    assert b"".join(map(b"".join, portions)) == b"".join(pieces)
    for portion in portions:
        assert 0 < len(portion) <= most_pieces
        assert sum(map(len, portion)) <= most_bytes


@pytest.mark.parametrize("most", [None, 100_001])
def test_a_long_write_is_made_of_short_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    written: list[int] = []
    original = os.pwritev

    def counted(fd: int, pieces: list[bytes | memoryview], offset: int) -> int:
        assert len(pieces) <= 1000
        # A disk may also take less than it is given.
        count = original(fd, pieces if most is None else [b"".join(pieces)[:most]], offset)
        written.append(count)
        return count

    monkeypatch.setattr(os, "pwritev", counted)
    file = TailFile.create(tmp_path / "1.tail", UUID(int=1), 1, 1, sync=False)
    pieces = [bytes([number % 251]) * (number * 37) for number in range(500)] + [os.urandom(3 << 20)]
    TailWriter().write(file, list(pieces))
    assert (tmp_path / "1.tail").read_bytes()[HEADER_BYTES:] == b"".join(pieces)
    assert max(written) <= 1 << 19
    assert len(written) >= sum(map(len, pieces)) >> 19


def test_a_growing_tail_has_room_reserved_and_gives_it_back(tmp_path: Path) -> None:
    """Nothing of that shows in the file's size, or in what a reader of the file gets."""
    with (tmp_path / "probe").open("wb") as probe:
        can = reserve_ahead(probe.fileno(), 0, 1 << 20)
    assert can == (sys.platform == "linux")
    path = tmp_path / "log"
    block = bytes(range(256)) * 1024
    with closing(Log.open(path)) as log:
        for number in range(1, 13):
            log.append([Batch(Run.one(block), first=number, origin="test")])
            [tail] = path.glob("*.open")
            assert log.size == tail.stat().st_size
        grown = tail.stat()
        assert (grown.st_blocks * 512 > grown.st_size + (1 << 20)) == can
        log.commit(log.tail_op)
        log.rotate()
        assert tail.stat().st_blocks * 512 < grown.st_size + (1 << 16)
        for number in range(13, 25):
            log.append([Batch(Run.one(block), first=number, origin="test")])
        log.commit(log.tail_op)
    for tail in path.glob("*.open"):
        assert tail.stat().st_blocks * 512 < tail.stat().st_size + (1 << 16)
    with closing(Log.open(path)) as log:
        assert log.torn is None
        assert [message.payload for batch in log.scan(1) for message in batch] == [block] * 24


def test_a_disk_that_reserves_nothing_still_takes_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(tail_writer, "reserve_ahead", lambda _fd, offset, _size: asked.append(offset))
    with closing(Log.open(tmp_path / "log")) as log:
        for number in range(1, 9):
            log.append([Batch(Run.one(bytes(1 << 20)), first=number, origin="test")])
        assert log.tail == 8
    # As much again each time, so rarely.
    assert len(asked) == 3


def test_nothing_is_reserved_of_a_disk_that_is_filling_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub refuses messages while too little is free: what it reserved itself must not bring that about."""
    free = 8 << 20
    asked: list[int] = []
    monkeypatch.setattr(tail_writer, "reserve_ahead", lambda _fd, _offset, size: asked.append(size))
    monkeypatch.setattr(os, "fstatvfs", lambda _fd: SimpleNamespace(f_bavail=free >> 12, f_frsize=1 << 12))
    with closing(Log.open(tmp_path / "log")) as log:
        for number in range(1, 9):
            log.append([Batch(Run.one(bytes(1 << 20)), first=number, origin="test")])
        assert log.tail == 8
        assert asked == []
        free = 1 << 30
        for number in range(9, 18):
            log.append([Batch(Run.one(bytes(1 << 20)), first=number, origin="test")])
        assert len(asked) == 1
