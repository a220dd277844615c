"""What fences can read of the messages before those in hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.hub.routing.log_window import LogWindow
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.message import Batch, Run


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """Messages 1 to 30, in batches of 10."""
    log = Log.open(tmp_path, fsync="never")
    for each in range(3):
        log.append([Batch(Run.of([b"payload %d" % each] * 10), first=10 * each + 1, op=10 * each + 1)])
    log.commit(30)
    yield Hub(log, 1, max_uncommitted=1 << 20)
    log.close()


def spoil(hub: Hub, payload: bytes) -> None:
    (path,) = hub.log.directory.glob("*.open")
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(content.index(payload))
        file.write(b"P")


def read(hub: Hub, first: int, last: int) -> list[int]:
    return [message.seq for batch in LogWindow(hub)(first, last) for message in batch]


def test_all_that_was_asked_for(hub: Hub) -> None:
    assert read(hub, 5, 25) == [*range(5, 26)]


def test_damage_is_passed_over_and_counted(hub: Hub) -> None:
    """Otherwise nothing could be matched while the damage is within a window."""
    spoil(hub, b"payload 1")
    assert read(hub, 5, 25) == [*range(5, 11), *range(21, 26)]
    assert ("untracked", {}, 10) in list(hub.counters)


def test_nothing_that_can_be_read(hub: Hub) -> None:
    spoil(hub, b"payload 2")
    assert read(hub, 21, 25) == []
