"""``serve``: run a hub until a signal stops it.

The first SIGTERM or SIGINT drains: stop accepting, finish, close, exit 0. After that the signals have their plain
meaning, so that a second one ends the process at once; the log is made for that.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace import __version__
from headrace.cli.hubs.first_key import with_first_key
from headrace.cli.terminal.options import Config, Data, Sets, load_settings
from headrace.cli.terminal.output import console, counted, open_to_everyone
from headrace.cli.terminal.stderr import LogFormat, LogLevel, log_to_stderr
from headrace.config import Settings
from headrace.errors import ConfigError, system_reason
from headrace.protocols import SCHEMES, with_tls

if TYPE_CHECKING:
    import asyncio

    from headrace.net.server.process import Server

logger = logging.getLogger("headrace")

_ARCHIVE_SECONDS: Final = 0.5
"""Seconds that each thread that reads the archive may still take when all else has stopped."""

ReadyFile = Annotated[
    Path | None,
    typer.Option(
        "--ready-file",
        metavar="FILE",
        help="Written, whole or not at all, when every door accepts: JSON with the pid and each door's host:port."
        " Removed when the hub stops.",
    ),
]
Upstream = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="URL",
        help="Be a frontend of the hub at tube://host:port or fyrehose://host:port, which numbers all messages."
        " Repeatable, for several nodes of one hub. Sets node.upstream.",
    ),
]
Roles = Annotated[
    str | None,
    typer.Option(
        "--roles",
        metavar="ROLE,…",
        help="Run only these parts: sequence (number messages; needed without --upstream), publisher, matcher,"
        " dispatcher, connector, fyrehose, spp, tube. Sets node.roles.",
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Be a node of this cluster. Sets cluster.name."),
]
Peers = Annotated[
    str | None,
    typer.Option(
        "--peers",
        metavar="HOST:PORT,…",
        help="The parcel doors of the cluster's nodes, the same list for each of them. Sets cluster.peers.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Open doors beyond this machine without authentication, and say so in every status. Sets auth.insecure.",
    ),
]
Format = Annotated[LogFormat, typer.Option("--log-format", help="Log format on stderr.")]
Level = Annotated[LogLevel, typer.Option("--log-level", help="Minimum log level.")]

Record = Annotated[
    Path | None,
    typer.Option(
        "--record",
        metavar="DIR",
        help="Record what every peer sends and receives, a file each, for headrace decode.",
    ),
]

EXAMPLES: Final = (
    ("Everything by default, the log in ./headrace-data:", "headrace serve"),
    (
        "Another data directory, every message on disk before it is seen:",
        "headrace serve --data /var/lib/headrace --set log.fsync=always",
    ),
    (
        "On a free port, for a script:",
        "headrace serve --set listen.fyrehose=127.0.0.1:0 --ready-file ready.json",
    ),
    (
        "A frontend of another hub: the same numbers, doors of its own:",
        "headrace serve --data ./front --upstream tube://hub.example:8081",
    ),
    (
        "One part of content routing alone, a frontend of another hub:",
        "headrace serve --upstream tube://hub.example --roles connector",
    ),
    (
        "One of three nodes that keep one sequence together:",
        "headrace serve --config a.toml --cluster mill --peers 10.0.0.1,10.0.0.2",
    ),
    ("Under a supervisor that collects JSON:", "headrace serve --config hub.toml --log-format json"),
)

_SCHEMES: Final = {door: scheme for scheme, door in reversed(SCHEMES.items())}
"""The URL scheme of each door."""


def serve(
    config: Config = None,
    data: Data = None,
    sets: Sets = None,
    upstream: Upstream = None,
    roles: Roles = None,
    cluster: ClusterName = None,
    peers: Peers = None,
    insecure: Insecure = False,
    ready_file: ReadyFile = None,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = LogLevel.INFO,
    record: Record = None,
) -> None:
    """Run the hub: its doors, its log, its http door. No JVM.

    Every door listens on 127.0.0.1 by default: listen.DOOR=HOST:PORT moves one, port 0 takes a free port, off keeps the
    door shut. A port that is taken is an error that names the setting. A door that other machines reach needs
    auth.required, or --insecure.

    SIGTERM and Ctrl-C drain: the hub stops accepting, writes out what it holds and exits with 0 within
    limits.drain_seconds. A second signal ends it at once; committed messages are safe either way. SIGHUP loads the
    principals and their rights again, as `headrace reload` does.
    """
    log_to_stderr(log_format, log_level)
    settings = load_settings(config, data, sets)
    given = {
        "upstream": ("node.upstream", ",".join(upstream) if upstream else None),
        "roles": ("node.roles", roles),
        "cluster": ("cluster.name", cluster),
        "peers": ("cluster.peers", peers),
        "insecure": ("auth.insecure", insecure or None),
    }
    for option, (setting, value) in given.items():
        if value is not None:
            settings = settings.override({setting: value}, source=f"--{option}")
    settings = with_first_key(settings)
    if cluster is not None and not settings.cluster.peers:
        logger.warning("cluster %s: this node is all of it; --peers a:7878,b:7878 names the others", cluster)
    run_hub(settings, ready_file, take_free_ports=False, banner=log_format is LogFormat.TEXT, record=record)


def run_hub(
    settings: Settings,
    ready_file: Path | None,
    *,
    take_free_ports: bool,
    banner: bool,
    record: Path | None = None,
) -> None:
    """Start, announce the doors (to a person with ``banner``, else in the log), serve, drain.

    With ``record``, the bytes of every connection are recorded in that directory.
    """
    import asyncio

    from headrace.net.server.machine.without_pandas import keep_pandas_out

    keep_pandas_out()
    from headrace import web
    from headrace.net.server.machine.malloc_tuning import keep_memory
    from headrace.net.server.process import Server
    from headrace.platforms import new_event_loop

    if ready_file is not None and not _in_use(ready_file):
        # A file that a killed hub left must not be taken for this one's.
        with _naming(ready_file):
            ready_file.unlink(missing_ok=True)
    keep_memory()
    server = Server(settings, http=web.start, take_free_ports=take_free_ports)
    announce = _show_banner if banner and sys.stderr.isatty() else _log_ready
    new_loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    if record is not None:
        from headrace.net.server.accepting.recording import Recorder, RecordingLoop

        RecordingLoop.recorder = Recorder(record, lambda: server.doors)
        new_loop = RecordingLoop
        logger.warning(
            "what every peer sends and receives is recorded in %s, keys and payloads included", record
        )
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(server, ready_file, announce))
    _leave_the_archive()


def _leave_the_archive() -> None:
    """End now if the archive still owes an answer: the interpreter would wait for it, for minutes if it hangs."""
    from headrace.net.server.machine.reader_threads import PAST_THREADS

    for thread in threading.enumerate():
        if thread.name.startswith(PAST_THREADS):
            thread.join(_ARCHIVE_SECONDS)
            if thread.is_alive():
                logger.warning("the archive does not answer: stopping without it")
                logging.shutdown()
                os._exit(0)


async def _serve(server: Server, ready_file: Path | None, announce: Callable[[Server], None]) -> None:
    stop = _stop_on_signals()
    running = [server]
    _reload_on_signal(running, stop)
    try:
        await server.start()
    except ConfigError as error:
        raise _naming_the_other_hub(error) from error
    # Objects made at start-up stay: a full collection that visits them all would hold up messages for milliseconds.
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
        # A node that fell too far behind starts over from a snapshot; clients see a short restart.
        server = server.successor()
        await server.start()
        running[:] = [server]


def _naming_the_other_hub(error: ConfigError) -> ConfigError:
    """Explain why a door cannot listen, if another hub is what listens there."""
    from headrace.cli.hubs.local_hubs import hub_at
    from headrace.config import Address

    if not error.key.startswith("listen."):
        return error
    other = hub_at(Address.parse(str(error.value)))
    if other is None:
        return error
    beside = "`headrace up --data DIR` runs another beside it"
    expected = f"a free address: a Headrace hub runs there already, {other.hub} in {other.data}; {beside}"
    return ConfigError(error.key, error.value, source=error.source, expected=expected)


async def _either(stop: asyncio.Event, again: asyncio.Event | None) -> bool:
    """Wait until the hub has to stop or to start over; return whether it is the latter."""
    import asyncio

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


def _stop_on_signals() -> asyncio.Event:
    import asyncio

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)

    def stop_once() -> None:
        for each in signals:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        stop.set()

    for each in signals:
        loop.add_signal_handler(each, stop_once)
    return stop


def _reload_on_signal(running: Sequence[Server], stop: asyncio.Event) -> None:
    """Load the running hub's settings again on SIGHUP; stop it if that tells the end of its terminal."""
    import asyncio

    in_terminal = os.isatty(sys.__stderr__.fileno()) if sys.__stderr__ is not None else False

    def reload() -> None:
        if in_terminal and not os.isatty(sys.__stderr__.fileno()):  # type: ignore[union-attr]
            stop.set()
            return
        for server in running:
            if server.ready:
                server.reloading.try_reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


@contextlib.contextmanager
def _ready(server: Server, ready_file: Path | None) -> Iterator[None]:
    """Keep the ready file for as long as every door accepts."""
    from headrace.cli.hubs.ready_file import read_ready_file

    if ready_file is None:
        yield
        return
    with _naming(ready_file):
        server.write_ready_file(ready_file)
    try:
        yield
    finally:
        written = read_ready_file(ready_file)
        if written is not None and written.pid == os.getpid():
            with contextlib.suppress(OSError):
                ready_file.unlink(missing_ok=True)


def _in_use(ready_file: Path) -> bool:
    """Return whether a ready file belongs to another hub that is running."""
    from headrace.cli.hubs.ready_file import read_ready_file

    found = read_ready_file(ready_file)
    if found is None or found.pid is None or found.pid == os.getpid():
        return False
    try:
        os.kill(found.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def _naming(ready_file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"a file that can be written; {system_reason(error)}"
        raise ConfigError(str(ready_file), None, source="--ready-file", expected=problem) from None


def _log_ready(server: Server) -> None:
    for door, (wanted, where) in server.moved.items():
        logger.warning("%s listens on %s: %s is taken", door, where, wanted)
    if server.exposed:
        logger.warning("insecure: %s", open_to_everyone(server.exposed))
    doors = ", ".join(f"{door} {address}" for door, address in server.doors.items())
    logger.info("ready: %s; log %s, head %d", doors, server.hub.log.uuid, server.hub.log.head)


def _show_banner(server: Server) -> None:
    from rich.markup import escape

    out = console(stderr=True)
    out.print(f"\n[bold]headrace {__version__}[/bold] on node {escape(server.settings.node.name)}\n")
    for name, value in _banner_rows(server):
        out.print(f"  [dim]{name:<10}[/dim] {escape(value)}", soft_wrap=True)
    for door, (wanted, where) in server.moved.items():
        out.print(f"  [yellow]{door:<10}[/yellow] is on {where}: {wanted} is taken", soft_wrap=True)
    if server.exposed:
        out.print(f"  [red]{'insecure':<10}[/red] {open_to_everyone(server.exposed)}", soft_wrap=True)
    out.print("\n  [dim]Ctrl-C stops it.[/dim]\n")


def _banner_rows(server: Server) -> Iterator[tuple[str, str]]:
    for door, address in server.doors.items():
        scheme = _SCHEMES.get(door, door)
        if door in server.entrance.tls.doors:
            scheme = with_tls(scheme)
        yield ("dashboard", f"{scheme}://{address}/") if door == "http" else (door, f"{scheme}://{address}")
    log, settings = server.hub.log, server.settings
    yield "data", str(settings.node.data)
    yield "log", f"{counted(log.head - log.first + 1, 'message')}, head {log.head}, {log.uuid}"
    every = f": every {settings.log.fsync_interval * 1000:g} ms" if log.fsync == "interval" else ""
    yield "fsync", f"{log.fsync}{every}"
