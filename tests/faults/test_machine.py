"""The machine does what it is told, to any program: here one of a few lines."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.faults.machine import Machine, Order, library

PROGRAM = """
import json, os, sys, time
path, other = sys.argv[1:]
def attempt(function, *arguments):
    try:
        return function(*arguments)
    except OSError as error:
        return -error.errno
fd = os.open(path, os.O_RDWR | os.O_CREAT)
outside = os.open(other, os.O_RDWR | os.O_CREAT)
print(json.dumps({
    "written": [attempt(os.pwritev, fd, [b"a" * 300, b"b" * 300], 0), attempt(os.write, fd, b"c" * 600)],
    "synced": [attempt(os.fsync, fd), attempt(os.fdatasync, fd)],
    "free": os.statvfs(os.path.dirname(path)).f_bavail,
    "outside": [attempt(os.write, outside, b"c" * 600), attempt(os.fsync, outside)],
    "time": time.time(),
    "boot": open("/proc/sys/kernel/random/boot_id").read(),
}), flush=True)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "data").mkdir()
    return Machine(tmp_path, tmp_path / "data")


def run(machine: Machine, tmp_path: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, str(tmp_path / "data" / "file"), str(tmp_path / "other")],
        env={**os.environ, **machine.environ(), "LD_PRELOAD": str(library())},
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["outside"] == [600, None]
    return found


def test_nothing_fails_that_is_not_told_to(machine: Machine, tmp_path: Path) -> None:
    found = run(machine, tmp_path)
    assert (found["written"], found["synced"]) == ([600, 600], [None, None])
    assert abs(found["time"] - time.time()) < 60
    assert (machine.count(Order.WRITES), machine.count(Order.SYNCS)) == (2, 2)


def test_errors_of_the_disk(machine: Machine, tmp_path: Path) -> None:
    machine.set(Order.WRITE_ERROR, errno.EIO)
    machine.set(Order.SYNC_ERROR, errno.EIO)
    found = run(machine, tmp_path)
    assert (found["written"], found["synced"]) == ([-errno.EIO] * 2, [-errno.EIO] * 2)
    assert (machine.count(Order.FAILED_WRITES), machine.count(Order.FAILED_SYNCS)) == (2, 2)
    machine.heal()
    assert run(machine, tmp_path)["written"] == [600, 600]


def test_a_full_disk_takes_what_still_fits(machine: Machine, tmp_path: Path) -> None:
    machine.set(Order.FULL, 1)
    machine.set(Order.ROOM, 400)
    found = run(machine, tmp_path)
    # The second write begins where the file began: it overwrites what is there.
    assert (found["written"], found["free"]) == ([400, 400], 0)
    assert run(machine, tmp_path)["written"] == [400, 400]


def test_short_writes(machine: Machine, tmp_path: Path) -> None:
    machine.set(Order.WRITE_SHORT, 1)
    assert all(0 < written <= 600 for written in run(machine, tmp_path)["written"])
    assert machine.count(Order.SHORT_WRITES) > 0


def test_a_clock_that_steps_and_a_machine_that_boots(machine: Machine, tmp_path: Path) -> None:
    machine.set(Order.CLOCK_STEP, 25 * 3600 * 1_000_000)
    found = run(machine, tmp_path)
    assert abs(found["time"] - time.time() - 25 * 3600) < 60
    machine.cut_power(Random(1))
    assert run(machine, tmp_path)["boot"] != found["boot"]


def test_a_power_failure(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "data" / "file").write_bytes(b"old")
    run(machine, tmp_path)
    certain = machine.cut_power(Random(1))
    # All was synced, and the last write was at the file's beginning.
    assert certain == {str(tmp_path / "data" / "file"): b"c" * 600}
    assert (tmp_path / "data" / "file").read_bytes() == b"c" * 600
