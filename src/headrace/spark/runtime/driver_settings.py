"""How many tasks run at a time, as a source can know it when it plans.

Spark plans Python sources in a process beside the driver, which it tells nothing about the cluster. But the process is
a descendant of the driver's JVM, whose command line has the settings that it was started with, or names their file.
What a session adds later is not among them. So the size is the largest of what is known:

- that of a ``local`` master, or the executors and cores that settings name;
- what :func:`headrace.spark.register` has found when it was called;
- if neither is known, the cores of this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from headrace.platforms import usable_cores

_JVMS: Final = frozenset(
    ("org.apache.spark.deploy.SparkSubmit", "org.apache.spark.deploy.yarn.ApplicationMaster")
)
"""The main classes of drivers' JVMs: the second is that of YARN, if the driver runs in the cluster."""
_GENERATIONS: Final = 4
"""Parents to look at: a worker, the daemon of workers, perhaps a shell, the JVM."""

_ARGUMENTS: Final = {
    "--master": "spark.master",
    "--executor-cores": "spark.executor.cores",
    "--num-executors": "spark.executor.instances",
    "--total-executor-cores": "spark.cores.max",
}
_FILE: Final = "--properties-file"
_ESCAPED: Final = re.compile(r"\\(.)")
"""A character that Java writes with a backslash, such as the colons of an address."""
_LOCAL: Final = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?$")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,")


def tasks_at_a_time(registered: int | None = None) -> int:
    """Return how many tasks run at a time, as far as that is known here; ``registered``: by the session."""
    return max(registered or 0, size_of(driver_settings()) or 0) or usable_cores()


def size_of(settings: Mapping[str, str]) -> int | None:
    """Return how many tasks run at a time by a driver's settings; ``None`` if they do not say.

    >>> size_of({"spark.master": "local[3]"}), size_of({"spark.master": "local-cluster[2,4,1024]"})
    (3, 8)
    >>> size_of({"spark.executor.instances": "5", "spark.executor.cores": "4"}), size_of({"spark.cores.max": "6"})
    (20, 6)
    >>> size_of({"spark.master": "spark://10.0.0.1:7077"}) is None
    True
    """
    master = settings.get("spark.master", "")
    if (given := _number(settings, "spark.default.parallelism")) is not None:
        return given
    if (local := _LOCAL.match(master)) is not None:
        return usable_cores() if local[1] == "*" else int(local[1] or 1)
    if (cluster := _LOCAL_CLUSTER.match(master)) is not None:
        return int(cluster[1]) * int(cluster[2])
    executors = _number(settings, "spark.executor.instances") or _number(
        settings, "spark.dynamicAllocation.maxExecutors"
    )
    if executors is not None:
        # One core is the default of YARN and Kubernetes, the masters that count executors.
        return executors * (_number(settings, "spark.executor.cores") or 1)
    return _number(settings, "spark.cores.max")


@cache
def driver_settings() -> Mapping[str, str]:
    """Return the settings on the command line of the JVM that this process descends from; none if it does not."""
    process = os.getpid()
    with suppress(OSError, ValueError, IndexError):
        for _ in range(_GENERATIONS):
            # The name in parentheses may have any character; the parent comes after it and the state.
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            arguments = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if not _JVMS.isdisjoint(arguments):
                return _of_file(arguments, Path(f"/proc/{process}/cwd")) | parse_arguments(arguments)
    return {}


def parse_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Return the Spark settings among a JVM's arguments.

    >>> parse_arguments(["java", "-Dspark.a=1", "--conf", "spark.b=2=3", "--master", "local[2]", "pyspark-shell"])
    {'spark.a': '1', 'spark.b': '2=3', 'spark.master': 'local[2]'}
    """
    settings: dict[str, str] = {}
    for place, argument in enumerate(arguments):
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        if argument.startswith("-Dspark."):
            name, _, value = argument.removeprefix("-D").partition("=")
        elif argument in ("--conf", "-c"):
            name, _, value = following.partition("=")
        elif argument in _ARGUMENTS:
            name, value = _ARGUMENTS[argument], following
        else:
            continue
        if name.strip().startswith("spark."):
            settings[name.strip()] = value.strip()
    return settings


def _of_file(arguments: Sequence[str], directory: Path) -> dict[str, str]:
    """Return the settings of the file that a JVM was started with, or else of the one for every Spark of its machine.

    On Kubernetes, and on YARN if the driver runs in the cluster, the file has all of them.
    """
    if _FILE in arguments[:-1]:
        return parse_properties(directory / arguments[arguments.index(_FILE) + 1])
    defaults = os.environ.get("SPARK_CONF_DIR")
    return parse_properties(Path(defaults, "spark-defaults.conf")) if defaults else {}


def parse_properties(path: Path) -> dict[str, str]:
    """Return the Spark settings in a file of Java properties; none if it cannot be read."""
    found: dict[str, str] = {}
    with suppress(OSError, UnicodeDecodeError):
        for line in path.read_text().splitlines():
            match = re.match(r"\s*(spark\.[^\s=]+)(?:\s*=\s*|\s+)(.*\S)", line)
            if match is not None:
                found[match[1]] = _ESCAPED.sub(r"\1", match[2])
    return found


def _number(settings: Mapping[str, str], name: str) -> int | None:
    value = settings.get(name, "")
    return int(value) if value.isdecimal() and int(value) else None
