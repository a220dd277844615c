"""The checks of ``doctor``. A check is a function of the settings that gives findings; none changes anything."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.cli.hubs.access import Credentials, remedy_for_refusal
from headrace.cli.hubs.local_hubs import LocalHub, local_hubs
from headrace.cli.hubs.running_hub import find_running_hub
from headrace.cli.terminal.output import open_to_everyone, size
from headrace.config import DOORS, Address, Settings
from headrace.errors import HeadraceError, RefusedError, UsageError
from headrace.platforms import allow_open_files

HUB_MEMORY: Final = 512 << 20
"""Memory for a hub: its kernels and Arrow, and a few thousand connections."""

SPARK_MEMORY: Final = 2 << 30
"""More memory for the embedded pipeline: a JVM with 1 GiB of heap, and Python workers."""

LITTLE_DISK: Final = 1 << 30

FILES_BESIDES_CONNECTIONS: Final = 256

UDP_BUFFER: Final = 4 << 20
"""The receive buffer that survives a burst."""

SPARK_VERSIONS: Final = (4, 3)


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


class Finding(NamedTuple):
    """The result of a check; ``remedy`` says what to do, unless all is well."""

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


Check = Callable[[], Iterator[Finding]]

_COUNTED_AS_WRONG: Final = {
    "sync_failures": "the disk failed: check it, then restart the hub",
    "background_failures": "a mistake in Headrace: look at the hub's log, restart it, report it",
    "upkeep_failures": "sealing or trimming failed: look at the hub's log for the reason",
    "holds_broken": "raise log.retain_bytes, or see why the named consumer or job has fallen behind",
    "torn_tails": "a crash cut a write short; nothing that was acknowledged is lost under log.fsync=always",
    "damaged_snapshots": "run headrace log verify: the disk may be failing",
}


def run_checks(settings: Settings, credentials: Credentials | None, *, spark: bool) -> Iterator[Finding]:
    """Run every check; with ``spark``, also start Spark."""
    running = True
    hub: Check = partial(_guarded_hub, credentials)
    elsewhere = None
    try:
        status = hub_status(settings, credentials)
        if status is None and (elsewhere := _hub_elsewhere(settings, credentials)) is not None:
            settings = settings.override({"node.data": elsewhere.data}, source="the hub that runs")
            status = hub_status(settings, credentials)
    except RefusedError:
        pass
    else:
        running = status is not None
        hub = partial(_ports, settings) if status is None else partial(_hub, status, elsewhere)
    checks: list[Check] = [
        _python,
        partial(_disk, settings, running=running),
        _memory,
        partial(_files, settings),
        _buffers,
        hub,
        _pyspark,
        _java,
    ]
    for check in [*checks, _spark] if spark else checks:
        yield from check()


def _python() -> Iterator[Finding]:
    ours = importlib.metadata.version("headrace")
    yield Finding("Python", Verdict.OK, f"{platform.python_version()}, headrace {ours}")


def _disk(settings: Settings, *, running: bool) -> Iterator[Finding]:
    data = settings.node.data
    nearest = next(each for each in (data, *data.absolute().parents) if each.exists())
    if not nearest.is_dir():
        yield Finding(
            "disk", Verdict.WRONG, f"{nearest} is not a directory", "name another with --data or node.data"
        )
        return
    if not running and not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding("disk", Verdict.WRONG, f"{nearest} cannot be written", "name another with --data")
        return
    free = shutil.disk_usage(nearest).free
    found = f"{size(free)} free at {nearest}"
    wanted = settings.log.retain_bytes
    kept = sum(path.stat().st_size for path in (data / "log").glob("*") if path.is_file())
    if free < LITTLE_DISK:
        yield Finding("disk", Verdict.WARNING, found, "free some: a full disk makes the hub refuse messages")
    elif wanted is not None and wanted > free + kept:
        remedy = f"lower log.retain_bytes ({size(wanted)}): the disk is full before the log is trimmed"
        yield Finding("disk", Verdict.WARNING, found, remedy)
    else:
        yield Finding("disk", Verdict.OK, found)


def _memory() -> Iterator[Finding]:
    available = _available_memory()
    if available is None:
        return
    found = f"{size(available)} available"
    if available < HUB_MEMORY:
        yield Finding("memory", Verdict.WRONG, found, f"a hub wants {size(HUB_MEMORY)}")
    elif available < HUB_MEMORY + SPARK_MEMORY:
        remedy = f"enough for a hub; the Spark pipeline wants {size(SPARK_MEMORY)} more"
        yield Finding("memory", Verdict.WARNING, found, remedy)
    else:
        yield Finding("memory", Verdict.OK, found)


def _files(settings: Settings) -> Iterator[Finding]:
    wanted = settings.limits.connections + FILES_BESIDES_CONNECTIONS
    allowed = allow_open_files(wanted)
    if allowed < wanted:
        remedy = (
            f"limits.connections is {settings.limits.connections:,}: raise ulimit -n to {wanted} or lower it"
        )
        yield Finding("open files", Verdict.WARNING, f"{allowed:,} allowed", remedy)
    else:
        yield Finding("open files", Verdict.OK, "as many as limits.connections wants")


def _buffers() -> Iterator[Finding]:
    try:
        allowed = int(Path("/proc/sys/net/core/rmem_max").read_text())
    except (OSError, ValueError):
        return
    if allowed < UDP_BUFFER and os.geteuid() != 0:
        remedy = f"for bursts over UDP: sysctl -w net.core.rmem_max={UDP_BUFFER}"
        yield Finding("UDP buffers", Verdict.WARNING, f"at most {size(allowed)}", remedy)
    else:
        yield Finding("UDP buffers", Verdict.OK, "large enough for bursts")


def _ports(settings: Settings) -> Iterator[Finding]:
    taken = []
    for door in DOORS:
        address = getattr(settings.listen, door)
        if address is not None and not _free(address, datagrams=door == "fyrehose"):
            taken.append((door, address))
    for door, address in taken:
        free = Address(address.host, 0)
        remedy = (
            f"stop what listens there, or --set listen.{door}={free} (headrace up takes a free port itself)"
        )
        yield Finding("ports", Verdict.WARNING, f"{address} ({door}) is taken", remedy)
    if not taken:
        yield Finding("ports", Verdict.OK, "every door's is free")
    backbone = settings.listen.fyrehose
    if backbone is not None and ":" in backbone.host:
        yield Finding("backbone", Verdict.OK, f"{backbone} is IPv6: TCP only, since its UDP is for IPv4")


def _guarded_hub(credentials: Credentials | None) -> Iterator[Finding]:
    remedy = remedy_for_refusal(credentials)
    yield Finding("hub", Verdict.WARNING, "runs, and refuses us", remedy)


def _hub(status: dict[str, Any], elsewhere: LocalHub | None = None) -> Iterator[Finding]:
    head, first = status["head"], status["first"]
    kept = f"messages {first:,} to {head:,}" if head >= first else "no message yet"
    about = f"{status['node']['name']} runs, {kept}, {size(status['disk']['bytes'])}"
    if elsewhere is not None:
        about += f"; {elsewhere.hub}, its data in {elsewhere.data}"
    yield Finding("hub", Verdict.OK, about)
    for name, remedy in _COUNTED_AS_WRONG.items():
        count = _total(status["counters"].get(name, 0))
        if count:
            yield Finding("hub", Verdict.WARNING, f"{name.replace('_', ' ')}: {count:,}", remedy)
    if exposed := status.get("insecure"):
        remedy = "set auth.required, or move the doors to 127.0.0.1 and take --insecure away"
        yield Finding("hub", Verdict.WARNING, open_to_everyone(exposed), remedy)
    for alert in status.get("alerts", ()):
        part = "pipeline" if alert["alert"] in ("job_failing", "pipeline_silent") else "hub"
        yield Finding(part, Verdict.WARNING, alert["problem"], alert["remedy"])


def _pyspark() -> Iterator[Finding]:
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        remedy = "only the pipeline needs it: pip install '.[spark]' in Headrace's repository"
        yield Finding("PySpark", Verdict.WARNING, "is not installed", remedy)
        return
    if tuple(int(part) for part in version.split(".")[:2]) != SPARK_VERSIONS:
        remedy = "pip install '.[spark]' in Headrace's repository brings the version that it is made for"
        yield Finding("PySpark", Verdict.WARNING, version, remedy)
    else:
        yield Finding("PySpark", Verdict.OK, version)


def _java() -> Iterator[Finding]:
    from headrace.spark.runtime.java import java_home, look, system_java

    found = system_java()
    try:
        home = java_home()
    except UsageError as error:
        yield Finding("Java", Verdict.WARNING, "none that Spark starts on", str(error))
        return
    java = look(home)
    version = "" if java is None else f"{java.version}, "
    whose = "the system's" if found is not None and found.home == home else "from pip"
    yield Finding("Java", Verdict.OK, f"{version}{whose}, {home}")


def _spark() -> Iterator[Finding]:
    from headrace.spark.runtime.session import session

    try:
        spark = session("local[1]", "headrace doctor")
        try:
            counted = spark.range(1000).selectExpr("sum(id)").collect()[0][0]
        finally:
            spark.stop()
    except HeadraceError as error:
        yield Finding("Spark", Verdict.WRONG, "does not start", str(error))
    except Exception as error:  # noqa: BLE001 -- whatever Spark raises is the finding
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        yield Finding("Spark", Verdict.WRONG, "does not start", first)
    else:
        right = counted == sum(range(1000))
        verdict = Verdict.OK if right else Verdict.WRONG
        yield Finding("Spark", verdict, "starts and runs a job" if right else f"counts wrongly: {counted}")


def hub_status(settings: Settings, credentials: Credentials | None = None) -> dict[str, Any] | None:
    """Ask the hub that has this data directory's log open for its status; it may refuse to tell."""
    hub = find_running_hub(settings.node.data / "log", credentials)
    try:
        return None if hub is None else hub.status()
    except RefusedError as error:
        if error.code == "auth":
            raise
        return None
    except HeadraceError:
        return None


def _hub_elsewhere(settings: Settings, credentials: Credentials | None) -> LocalHub | None:
    """Find a hub of another data directory that has the ports of these settings."""
    addresses = [address for door in DOORS if (address := getattr(settings.listen, door)) is not None]
    return next(
        (each for each in local_hubs(credentials) if any(each.listens_at(address) for address in addresses)),
        None,
    )


def _free(address: Address, *, datagrams: bool) -> bool:
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM) if datagrams else (socket.SOCK_STREAM,)
    for kind in kinds:
        if ":" in address.host and kind is socket.SOCK_DGRAM:
            continue  # Over IPv6 the fyrehose door serves TCP only.
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        with socket.socket(family, kind) as sock:
            if kind is socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((address.host, address.port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return False
    return True


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _total(counted: object) -> int:
    """Add up a counter: one number, or one for each of its labels."""
    if isinstance(counted, dict):
        return sum(map(_total, counted.values()))
    return counted if isinstance(counted, int) else 0
