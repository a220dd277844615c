"""Power fails at any moment of a hub's life, in any way: the log opens by itself, with everything that was synced.

A hub lives once, under load, with small segments, many snapshots and little retention. Its trace says what it did to
its files and when. Then power is cut hundreds of times, each time at another moment of that life and with other pages
lost, and the log is opened on what is left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from tests.conftest import SOAK
from tests.faults.machine import Machine, library
from tests.faults.power_cut import Disk, records
from tests.faults.processes import FaultyHub
from tests.system.observing import eventually, status

import headrace
from headrace.log import Log

# Read on import: tests run without the shell's settings.
CUTS = int(os.environ.get("HEADRACE_CUTS") or (5000 if SOAK else 100))

SETTINGS = (
    "log.segment_bytes=16KiB",
    "log.segment_seconds=0.1",
    "log.snapshot_seconds=0.1",
    "log.retain_bytes=100KiB",
)


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_the_log_opens_with_all_that_was_synced(tmp_path: Path, fsync: str) -> None:
    random = Random(f"any power cut {fsync}")
    with FaultyHub.start(tmp_path, *SETTINGS, f"log.fsync={fsync}") as hub:
        published = _lives(hub, random)
        hub.kill9()
        trace = hub.machine.trace()
    steps = list(records(trace))
    assert len(steps) > 300
    moments = sorted(random.randrange(len(steps) + 1) for _ in range(CUTS))
    disk, at = Disk({}), 0
    lost = opened = 0
    for moment in moments:
        for step in steps[at:moment]:
            disk.take(step)
        at = moment
        least = _written(disk.certain(), hub.data, tmp_path / "least")
        left = _written(disk.survivors(random), hub.data, tmp_path / "left")
        where = f"cut after {moment} of {len(steps)} steps"
        synced, _ = _content(least, where)
        head, found = _content(left, where)
        assert head >= synced, f"{where}: messages {head + 1} to {synced} were synced and are lost"
        for seq, payload in found.items():
            assert published[seq] == payload, f"{where}: message {seq} is another one"
        opened += head > 0
        lost += head < len(published)
    print(f"{CUTS} cuts, {opened} logs with messages, {lost} of them without the last ones")
    assert opened > CUTS // 4


ADOPTING = """
import os, sys
from pathlib import Path
from uuid import UUID
from headrace.log import Log
from headrace.message import Batch, Run
log = Log.open(Path(sys.argv[1]))
log.adopt(UUID(int=7))
for number in range(1, 41):
    log.append([Batch(Run.one(bytes([number]) * 500), first=number, origin="test")])
    if number == 20:
        log.sync()
os._exit(0)
"""
"""The log of a node that has just joined its cluster: it takes over the cluster's uuid."""


def test_the_log_of_a_new_node_opens(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "log").mkdir(parents=True)
    machine = Machine(tmp_path, data)
    environ = {**os.environ, **machine.environ(), "LD_PRELOAD": str(library())}
    subprocess.run([sys.executable, "-c", ADOPTING, str(data / "log")], env=environ, check=True, timeout=60)
    disk = Disk({})
    disk.replay(machine.trace())
    for seed in range(100):
        left = _written(disk.survivors(Random(seed)), data, tmp_path / "left")
        head, found = _content(left, f"cut {seed}")
        assert head >= 20
        assert found == {number: bytes([number]) * 500 for number in range(1, head + 1)}


def _lives(hub: FaultyHub, random: Random) -> dict[int, bytes]:
    """Publish until segments were sealed and trimmed; return every message under its number."""
    published: dict[int, bytes] = {}
    with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        for number in range(120):
            payloads = [
                random.randbytes(random.choice((10, 100, 5000))) for _ in range(random.choice((1, 1, 5)))
            ]
            first, _ = link.publish(payloads, topic=f"topic/{number % 3}")
            assert first is not None
            published.update(enumerate(payloads, first))
            if number % 10 == 0:
                link.hold("somebody", first)
                # Not for a condition: so that work in the background comes between.
                time.sleep(0.03)
        eventually("something is trimmed", lambda: status(hub)["first"] > 1)
    return published


def _written(files: dict[str, bytes], root: Path, copy: Path) -> Path:
    """Write files that were under one directory under another one."""
    shutil.rmtree(copy, ignore_errors=True)
    (copy / "log").mkdir(parents=True)
    for path, content in files.items():
        there = copy / Path(path).relative_to(root)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(content)
    return copy / "log"


def _content(directory: Path, where: str) -> tuple[int, dict[int, bytes]]:
    """Open a log as a hub does; return its last message, and all that it keeps."""
    try:
        log = Log.open(directory)
    except BaseException as error:
        error.add_note(where)
        raise
    try:
        kept = {message.seq: message.payload for batch in log.scan(log.first) for message in batch}
        assert sorted(kept) == list(range(log.first, log.tail + 1)), where
        return log.tail, kept
    finally:
        log.close()
