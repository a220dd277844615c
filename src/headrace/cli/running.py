"""Run a hub until it is told to stop.

The first SIGTERM or SIGINT drains: stop accepting, finish, close, exit 0. From then on the signals have their plain
meaning, so that a second one ends the process at once; the log is made for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import uvloop

from headrace import web
from headrace.cli.banner import show_banner
from headrace.config import Settings
from headrace.errors import ConfigError
from headrace.net.server.malloc_tuning import keep_memory
from headrace.net.server.process import Server

logger = logging.getLogger("headrace")

Announce = Callable[[Server], None]


def run(
    settings: Settings,
    ready_file: Path | None,
    *,
    take_free_ports: bool,
    banner: bool,
    record: Path | None = None,
) -> None:
    """Start, say where the doors are, serve, drain. ``banner`` says it to a person, else it is a line of the log.

    With ``record``, the bytes of every connection are captured in that directory.
    """
    if ready_file is not None and not _in_use(ready_file):
        # What a killed hub left behind must not be taken for this one's.
        with _blaming(ready_file):
            ready_file.unlink(missing_ok=True)
    keep_memory()
    server = Server(settings, http=web.start, take_free_ports=take_free_ports)
    announce = show_banner if banner and sys.stderr.isatty() else _log_ready
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    if record is not None:
        from headrace.net.server.recording import Recorder, RecordingLoop

        RecordingLoop.recorder = Recorder(record, lambda: server.doors)
        new_loop = RecordingLoop
        logger.warning("what every peer sends and gets is recorded in %s, keys and payloads included", record)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(server, ready_file, announce))


async def _serve(server: Server, ready_file: Path | None, announce: Announce) -> None:
    stop = _told_to_stop()
    await server.start()
    # What start-up has made stays: a full collection that walked it all again would hold up messages for milliseconds.
    gc.collect()
    gc.freeze()
    while True:
        try:
            announce(server)
            with _ready(server, ready_file):
                again = await _either(stop, server.beginning_anew)
        finally:
            await server.drain()
        if not again:
            return
        # A node that fell too far behind goes on behind a snapshot; for clients it is a short restart.
        server = server.successor()
        await server.start()


async def _either(stop: asyncio.Event, again: asyncio.Event | None) -> bool:
    """Wait until the hub is told to stop, or has to begin anew; return whether it is the latter."""
    if again is None:
        await stop.wait()
        return False
    waiting = [asyncio.ensure_future(each.wait()) for each in (stop, again)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return not stop.is_set()


def _told_to_stop() -> asyncio.Event:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)

    def told() -> None:
        for each in signals:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        stop.set()

    for each in signals:
        loop.add_signal_handler(each, told)
    return stop


@contextlib.contextmanager
def _ready(server: Server, ready_file: Path | None) -> Iterator[None]:
    """Say in a file that every door accepts, for as long as it is so."""
    if ready_file is None:
        yield
        return
    with _blaming(ready_file):
        server.write_ready_file(ready_file)
    try:
        yield
    finally:
        if _writer(ready_file) == os.getpid():
            with contextlib.suppress(OSError):
                ready_file.unlink(missing_ok=True)


def _writer(ready_file: Path) -> int | None:
    """The process that a ready file speaks of."""
    try:
        told = msgspec.json.decode(ready_file.read_bytes(), type=dict[str, int | str])
    except (OSError, msgspec.DecodeError):
        return None
    pid = told.get("pid")
    return pid if isinstance(pid, int) else None


def _in_use(ready_file: Path) -> bool:
    """Whether a ready file is of another hub that is running."""
    pid = _writer(ready_file)
    if pid is None or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def _blaming(ready_file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"a file that can be written; {(error.strerror or str(error)).lower()}"
        raise ConfigError(str(ready_file), None, source="--ready-file", expected=problem) from None


def _log_ready(server: Server) -> None:
    for door, (wanted, where) in server.moved.items():
        logger.warning("%s listens on %s: %s is taken", door, where, wanted)
    doors = ", ".join(f"{door} {address}" for door, address in server.doors.items())
    logger.info("ready: %s; log %s, head %d", doors, server.hub.log.uuid, server.hub.log.head)
