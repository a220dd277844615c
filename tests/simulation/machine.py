"""The machine under one simulated node: its files, its event loop, its threads and its clock.

The node's code is the real one. Its files are real files in memory, and this module knows what of them is on the disk:
:mod:`tests.faults.power_cut` has the rules. The event loop is a :class:`SimulatedLoop`, whose time is the simulated
network's. Threads are played one piece of work at a time (:class:`SimulatedThreads`), each at a moment that chance, or
a disk that hangs, puts off.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.power_cut import Disk, Record
from tests.simulation.network import Network

from headrace.cluster import durable_state
from headrace.errors import HeadraceError
from headrace.net.server.machine import log_disk


class Files:
    """A node's files, and what of them is on the disk."""

    def __init__(self, directory: Path, network: Network) -> None:
        self.directory = directory
        self._network = network
        directory.mkdir(parents=True, exist_ok=True)
        self._disk = Disk({})
        self._known: dict[int, bytes] = {}
        """Content of each file as recorded last, by its inode."""
        self._names: dict[str, int] = {}
        self._syncs = 0
        self.failing = False
        """Whether the next sync of messages fails."""
        self.failed_at: float | None = None
        """When one did, in this life of the node."""
        self.full = False

    def synced(self, fd: int) -> None:
        """Sync a file or the directory, or fail to."""
        self._syncs += 1
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        failed = self.failing and path.endswith(".open")
        if os.path.isdir(path):  # noqa: PTH112 -- quicker
            self._record_names()
            inode = 0
        else:
            inode = os.fstat(fd).st_ino
            self._record(inode, path)
        self._disk.take(Record("B", inode, self._syncs, b""))
        self._disk.take(Record("F" if failed else "E", inode, self._syncs, b""))
        if failed:
            self.failing = False
            self.failed_at = self._network.now
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def power_fails(self, random: Random | None) -> None:
        """Leave what a power failure may leave; without chance, the least."""
        self._record_names()
        self._put(self._disk.certain() if random is None else self._disk.survivors(random))

    def empty(self) -> None:
        self._put({})

    def rot(self, random: Random) -> str:
        """Flip a bit of what is on the disk; return where."""
        certain = {
            path: data
            for path, data in self._disk.certain().items()
            if data and Path(path).exists() and Path(path).stat().st_size
        }
        if not certain:
            return "nothing"
        path = random.choice(sorted(certain))
        at = random.randrange(min(len(certain[path]), Path(path).stat().st_size))
        with open(path, "r+b") as file:  # noqa: PTH123 -- as quick as it gets
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << random.randrange(8))]))
        self._put({each: Path(each).read_bytes() for each in self._paths()})
        return Path(path).suffix or Path(path).name

    def _put(self, content: dict[str, bytes]) -> None:
        """Make this the content of the disk."""
        for path in self._paths():
            os.unlink(path)  # noqa: PTH108 -- quicker
        self._known.clear()
        self._names.clear()
        for path, data in content.items():
            Path(path).write_bytes(data)
            self._names[path] = inode = os.stat(path).st_ino  # noqa: PTH116 -- quicker
            self._known[inode] = data
        self._disk = Disk(content, {inode: path for path, inode in self._names.items()})

    def _paths(self) -> Iterator[str]:
        with os.scandir(self.directory) as entries:
            yield from sorted(entry.path for entry in entries if entry.is_file())

    def _record_names(self) -> None:
        """Note all that has happened to the files: first what is new, then what is gone."""
        now = {path: os.stat(path).st_ino for path in self._paths()}  # noqa: PTH116 -- quicker
        for path, inode in now.items():
            if self._names.get(path) != inode:
                before = next((old for old, known in self._names.items() if known == inode), None)
                if before is None or before in now:
                    # A file that takes another's name had one of its own first: such files are written whole.
                    before = path if path not in self._names else path + ".new"
                    self._create(inode, before)
                if before != path:
                    self._disk.take(Record("R", 0, 0, f"{before}\0{path}".encode()))
                    del self._names[before]
                    self._names[path] = inode
            self._record(inode, path)
        for path in sorted(self._names.keys() - now.keys()):
            self._disk.take(Record("U", 0, 0, path.encode()))
            del self._names[path]

    def _create(self, inode: int, path: str) -> None:
        self._disk.take(Record("C", inode, 0, path.encode()))
        self._names[path] = inode
        self._known[inode] = b""

    def _record(self, inode: int, path: str) -> None:
        """Note what has changed in a file."""
        if self._names.get(path) != inode:
            self._create(inode, path)
        before = self._known[inode]
        with open(path, "rb") as file:  # noqa: PTH123 -- as quick as it gets
            data = file.read()
        if data == before:
            return
        same = len(before)
        if not data.startswith(before):
            differing = (at for at, (a, b) in enumerate(zip(before, data, strict=False)) if a != b)
            same = next(differing, min(len(before), len(data)))
        if len(data) < len(before):
            self._disk.take(Record("T", inode, len(data), b""))
        if same < len(data):
            self._disk.take(Record("W", inode, same, data[same:]))
        self._known[inode] = data


class Handle:
    """What a simulated loop will call."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class SimulatedLoop:
    """The event loop of one process, for as long as that lives."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.alive = True

    def time(self) -> float:
        return self._machine.uptime

    def call_soon(self, action: Callable[..., Any], *arguments: Any) -> Handle:
        return self.call_later(0.0, action, *arguments)

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, action: Callable[..., Any], *arguments: Any) -> Handle:
        return self.call_later(max(0.0, when - self.time()), action, *arguments)

    def run_in_executor(self, executor: Executor, work: Callable[..., Any], *arguments: Any) -> LoopFuture:
        return LoopFuture(self, executor.submit(partial(work, *arguments)))

    def call_later(self, delay: float, action: Callable[..., Any], *arguments: Any) -> Handle:
        handle = Handle(lambda: action(*arguments))

        def run() -> None:
            if self.alive and handle.action is not None:
                with self._machine.acting(self):
                    handle.action()

        network = self._machine.network
        network.at(network.now + delay / self._machine.rate, run)
        return handle


class LoopFuture:
    """What a thread's work will have given, told on the loop."""

    def __init__(self, loop: SimulatedLoop, future: Future[Any]) -> None:
        self._loop = loop
        self._future = future

    def add_done_callback(self, told: Callable[[Future[Any]], None]) -> None:
        self._future.add_done_callback(lambda future: self._loop.call_soon(told, future))


class SimulatedThreads(Executor):
    """Threads of one process; ``in_order`` if there is only one."""

    def __init__(self, machine: Machine, loop: SimulatedLoop, slowest: float, *, in_order: bool) -> None:
        self._machine = machine
        self._loop = loop
        self._slowest = slowest
        self._in_order = in_order
        self._after = 0.0
        self._pending: dict[Future[Any], Callable[[], None]] = {}

    def submit(self, work: Callable[..., Any], /, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        machine = self._machine
        due = machine.network.now + machine.random.uniform(0, self._slowest)
        if self._in_order:
            due = self._after = max(due, self._after)

        def run() -> None:
            if not self._loop.alive or future.done():
                return
            if machine.network.now < machine.stalled_until:
                machine.waits(future, run)
                machine.network.at(machine.stalled_until + machine.random.uniform(0, 0.01), run)
                return
            machine.waits_no_more(future)
            self._pending.pop(future)
            with machine.acting(self._loop):
                try:
                    future.set_result(work())
                except (HeadraceError, OSError) as error:
                    future.set_exception(error)

        self._pending[future] = run
        machine.network.at(due, run)
        return future

    def wait(self, future: Future[Any], _seconds: float) -> bool:
        """Let a prompt disk do its work at once; one that hangs does it later."""
        if self._machine.network.now >= self._machine.stalled_until:
            for run in list(self._pending.values()):
                run()
        return future.done()


class Machine:
    """One machine: it is switched on and off, and what is on its disk stays."""

    current: Machine | None = None
    """The machine whose code runs now."""

    def __init__(self, directory: Path, network: Network, random: Random, skew: float) -> None:
        self.files = Files(directory, network)
        self.network = network
        self.random = random
        self.rate = 1 + random.uniform(-1, 1) * skew
        self._offset = random.uniform(0, 1_000)
        self.boot = 0
        self.stalled_until = 0.0
        self._stalled_from = 0.0
        self._waiting: dict[object, tuple[float, Callable[[], None]]] = {}
        """Work that waits for the disk, since when, and what does it."""
        self.wrong_by = 0
        """Microseconds by which the machine's clock is wrong."""

    @property
    def uptime(self) -> float:
        """Seconds of the clock that does not step."""
        return self.network.now * self.rate + self._offset

    @property
    def wall(self) -> int:
        """Microseconds of the clock that may."""
        return true_time(self.network) + self.wrong_by

    def stall(self, seconds: float) -> None:
        """Let the disk hang for so long, or no more."""
        if not seconds:
            self.stalled_until = 0.0
            for _, run in self._waiting.values():
                self.network.at(self.network.now, run)
            return
        if self.network.now >= self.stalled_until:
            self._stalled_from = self.network.now
        # Of two, the one that lasts longer counts.
        self.stalled_until = max(self.stalled_until, self.network.now + seconds)

    def waits(self, work: object, run: Callable[[], None]) -> None:
        self._waiting.setdefault(work, (self.network.now, run))

    def waits_no_more(self, work: object) -> None:
        self._waiting.pop(work, None)

    def stop(self) -> None:
        """End the process: nothing waits any more."""
        self._waiting.clear()

    @property
    def waited(self) -> float:
        """Seconds that the disk has kept something waiting."""
        return self.network.now - min(
            (since for since, _ in self._waiting.values()), default=self.network.now
        )

    @property
    def stalled_from(self) -> float:
        """When the disk began to hang, if it does or did a moment ago; else now."""
        recently = self.network.now < self.stalled_until + 2
        return self._stalled_from if recently and self._stalled_from else self.network.now

    @contextmanager
    def acting(self, loop: SimulatedLoop) -> Iterator[None]:
        """Run this machine's code, on its loop."""
        before, running = Machine.current, asyncio._get_running_loop()
        Machine.current = self
        asyncio._set_running_loop(loop)  # type: ignore[arg-type]
        try:
            yield
        finally:
            Machine.current = before
            asyncio._set_running_loop(running)


def true_time(network: Network) -> int:
    return 1_700_000_000_000_000 + int(network.now * 1e6)


@contextmanager
def simulated_system() -> Iterator[None]:
    """Let the system's calls know the machine that they are made on."""

    def sync(fd: int) -> None:
        assert Machine.current is not None
        Machine.current.files.synced(fd)

    def pwritev(fd: int, pieces: list[Any], offset: int) -> int:
        assert Machine.current is not None
        if Machine.current.files.full:
            # A part of it finds room, as it does on a disk that is nearly full.
            real["pwritev"](fd, [memoryview(pieces[0])[: len(pieces[0]) // 2]], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(real["pwritev"](fd, pieces, offset))

    def boot() -> str:
        assert Machine.current is not None
        return f"boot {Machine.current.boot}"

    def monotonic() -> float:
        assert Machine.current is not None
        return Machine.current.uptime

    real: dict[str, Callable[..., Any]] = {"pwritev": os.pwritev}
    replaced: list[tuple[Any, str, Any]] = [
        (os, "fsync", sync),
        (os, "fdatasync", sync),
        (os, "pwritev", pwritev),
        (durable_state, "_boot", boot),
        (log_disk, "monotonic", monotonic),
    ]
    kept = [(place, name, getattr(place, name)) for place, name, _ in replaced]
    for place, name, played in replaced:
        setattr(place, name, played)
    try:
        yield
    finally:
        for place, name, original in kept:
            setattr(place, name, original)
