"""Options that make JVMs start faster in tests.

    python -m tests.jvm   # make the archive of classes; `make test` does so once

A JVM that runs for a test spends most of its time on two things that pay off only in long runs: optimizing code that it
has compiled already, and loading some ten thousand classes of Spark from jars. Here it compiles once
(``TieredStopAtLevel=1``) and maps the classes from a file that an earlier JVM wrote. Spark behaves the same.
``HEADRACE_SOAK=1`` starts JVMs as users do.

The options are passed in variables of Spark's launcher. They reach every driver, master and worker that a test or its
children start, and, unlike Java's own variables, cause no output. A JVM ignores an archive that is missing or belongs
to another Java or Spark; it only starts more slowly then.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"

_ONCE = "-XX:TieredStopAtLevel=1"

# JVMs would print about the archive to stdout, where tests expect their own output.
_QUIET = "-Xlog:disable"

_WORK = """
import sys
from headrace.spark import session
from headrace.testing import Hub

spark = session("local[2]", memory="1g")
with Hub() as hub, hub.connect_sync("tube") as link:
    link.publish([b"one", b"two"], topic="orders")
    hub = {"servers": hub.doors["tube_tcp"]}
    spark.read.format("headrace").options(**hub).load().write.parquet(f"{sys.argv[1]}/rows")
    rows = spark.readStream.format("headrace").options(**hub, startingOffsets="earliest").load()
    kept = rows.groupBy("topic").count().writeStream.outputMode("complete").format("memory").queryName("kept")
    kept.option("checkpointLocation", f"{sys.argv[1]}/kept").trigger(availableNow=True).start().awaitTermination()
    sent = rows.selectExpr("payload", "'copy' as topic").writeStream.format("headrace").options(**hub)
    sent.option("checkpointLocation", f"{sys.argv[1]}/sent").trigger(availableNow=True).start().awaitTermination()
read = spark.read.parquet(f"{sys.argv[1]}/rows")
read.join(read.mapInArrow(lambda batches: batches, read.schema), "seq").orderBy("seq").collect()
spark.stop()
"""


def variables(archive: Path = ARCHIVE) -> dict[str, str]:
    """Environment variables for processes that start JVMs."""
    options = _ONCE
    if archive.exists() and archive.stat().st_size:
        options += f" -XX:SharedArchiveFile={archive} {_QUIET}"
    return {
        "SPARK_SUBMIT_OPTS": options,
        "SPARK_DAEMON_JAVA_OPTS": options,
        "SPARK_LAUNCHER_OPTS": _ONCE,
    }


def cluster_variables() -> dict[str, str]:
    """The same for a cluster of Spark: executors get no options of the launcher, but Java's own variable.

    JVMs print that they have picked it up, so it is for those whose output goes to a file.
    """
    options = variables()
    return {**options, "JAVA_TOOL_OPTIONS": options["SPARK_DAEMON_JAVA_OPTS"]}


def make(archive: Path = ARCHIVE) -> None:
    """Run a JVM that does a little of everything and writes the classes it has loaded to the archive."""
    with tempfile.TemporaryDirectory(prefix="jvm-", dir=archive.parent) as directory:
        made = Path(directory) / archive.name
        options = f"{_ONCE} -XX:ArchiveClassesAtExit={made} {_QUIET}"
        environ = {**os.environ, **variables(archive), "SPARK_SUBMIT_OPTS": options}
        # The JVM keeps the pipe open until it has written the archive, which is after the driver has exited.
        done = subprocess.run(
            [sys.executable, "-c", _WORK, directory],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"Spark does not run:\n{done.stdout}")
        # Some Javas, such as the one from pip, cannot write an archive. An empty file says that it was tried.
        made.touch()
        made.replace(archive)


if __name__ == "__main__":
    make()
