"""A process's disk and clock, which fail when a test says so; ``machine.c`` says how.

    machine = Machine(directory, under=directory / "data")
    process = run(..., environ={**os.environ, **machine.environ()}, LD_PRELOAD=library())
    machine.set(Order.SYNC_ERROR, errno.EIO)
    machine.count(Order.FAILED_SYNCS)
    process.kill()
    machine.cut_power(random)   # what a power failure would have left, in place of what is there

A machine outlives its processes: each starts with the orders that are in force, and with a new trace.
"""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from pathlib import Path
from random import Random
from uuid import UUID

from tests.faults.power_cut import Disk
from tests.preloading import compiled

_PAGE_BYTES = 4096


class Order(IntEnum):
    """The orders that ``machine.c`` takes, and its counts."""

    CLOCK_STEP = 0
    """Microseconds by which the wall clock is wrong."""
    WRITE_ERROR = 1
    WRITE_SHORT = 2
    WRITE_SLOW = 3
    """Microseconds that each write takes."""
    SYNC_ERROR = 4
    SYNC_SLOW = 5
    """Microseconds that each sync takes."""
    FULL = 6
    ROOM = 7
    """Bytes that a full disk has left."""
    WRITES = 16
    SYNCS = 17
    FAILED_WRITES = 18
    SHORT_WRITES = 19
    FAILED_SYNCS = 20


def library() -> Path:
    """Compile ``machine.c``."""
    return compiled(Path(__file__).with_name("machine.c"))


class Machine:
    """The disk and the clock of the processes that have :meth:`environ`."""

    def __init__(self, directory: Path, under: Path) -> None:
        self._directory = directory
        self._under = under
        self._boot = directory / "boot_id"
        self._lives = 0
        self._base: tuple[dict[str, bytes], dict[int, str]] = ({}, {})
        control = directory / "orders"
        control.write_bytes(bytes(_PAGE_BYTES))
        with control.open("r+b") as file:
            self._orders = mmap.mmap(file.fileno(), _PAGE_BYTES)
        self._reboot(Random(str(directory)))

    def environ(self) -> dict[str, str]:
        """Begin a new life: what is under the directory now counts as on the disk."""
        self._lives += 1
        self._trace.unlink(missing_ok=True)
        self._base = files_under(self._under), _inodes_under(self._under)
        return {
            "FAULTS_CONTROL": str(self._directory / "orders"),
            "FAULTS_TRACE": str(self._trace),
            "FAULTS_UNDER": str(self._under),
            "FAULTS_BOOT": str(self._boot),
        }

    def set(self, order: Order, value: int) -> None:
        """Give an order; 0 lifts it."""
        struct.pack_into("<q", self._orders, order * 8, value)

    def count(self, order: Order) -> int:
        """Read a count, or an order."""
        value: int = struct.unpack_from("<q", self._orders, order * 8)[0]
        return value

    def heal(self) -> None:
        """Lift all orders."""
        for order in Order:
            if order < Order.WRITES:
                self.set(order, 0)

    def cut_power(self, random: Random) -> dict[str, bytes]:
        """Replace the files by what a power failure leaves; return the least that it could have left.

        The process must have been killed, or the trace and the files would not be of one moment.
        """
        disk = Disk(*self._base)
        disk.replay(self.trace())
        found = files_under(self._under)
        left = disk.survivors(random)
        for path in found.keys() - left.keys():
            Path(path).unlink()
        for path, content in left.items():
            if found.get(path) != content:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_bytes(content)
        self._reboot(random)
        return disk.certain()

    def trace(self) -> bytes:
        """The trace of the present life so far."""
        return self._trace.read_bytes() if self._trace.exists() else b""

    @property
    def _trace(self) -> Path:
        return self._directory / f"trace.{self._lives}"

    def _reboot(self, random: Random) -> None:
        self._boot.write_text(f"{UUID(bytes=random.randbytes(16))}\n")


def files_under(directory: Path) -> dict[str, bytes]:
    """The content of all files under a directory, by path."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _inodes_under(directory: Path) -> dict[int, str]:
    return {path.stat().st_ino: str(path) for path in directory.rglob("*") if path.is_file()}
