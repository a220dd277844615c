"""How JVMs are started in tests: as users have them, but sooner.

    python -m tests.jvm   # make the archive of classes; `make test` does so once

A JVM that runs for a test spends most of its time on two things that pay only when it runs for long: compiling what it
does a second time and better, and loading some ten thousand classes of Spark from their archives. Here it does neither.
It compiles once (``TieredStopAtLevel=1``), and maps the classes from a file that an earlier JVM wrote. What Spark does
is the same. ``HEADRACE_SOAK=1`` leaves both as users have them.

The options come by variables of Spark's launcher, which reach every driver, master and worker that a test or one of its
children starts, and which, unlike Java's own, nobody prints. A file that is missing, or was made by another Java or of
another Spark, is passed over by the JVM itself: tests take longer then, and that is all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"

_ONCE = "-XX:TieredStopAtLevel=1"

# What a JVM has to say about an archive goes where tests expect what they print themselves.
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
    """What to add to the environment in which tests start JVMs."""
    options = _ONCE
    if archive.exists() and archive.stat().st_size:
        options += f" -XX:SharedArchiveFile={archive} {_QUIET}"
    return {
        "SPARK_SUBMIT_OPTS": options,
        "SPARK_DAEMON_JAVA_OPTS": options,
        "SPARK_LAUNCHER_OPTS": _ONCE,
    }


def make(archive: Path = ARCHIVE) -> None:
    """Make the archive, by a JVM that does a little of everything and writes at its end what it has loaded."""
    with tempfile.TemporaryDirectory(prefix="jvm-", dir=archive.parent) as directory:
        made = Path(directory) / archive.name
        options = f"{_ONCE} -XX:ArchiveClassesAtExit={made} {_QUIET}"
        environ = {**os.environ, **variables(archive), "SPARK_SUBMIT_OPTS": options}
        # The JVM holds the pipe open until it has written everything, some time after its driver is gone.
        done = subprocess.run(
            [sys.executable, "-c", _WORK, directory],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"Spark does not run:\n{done.stdout}")
        # Some Javas cannot write one, that from pip among them. An empty file says that this was tried.
        made.touch()
        made.replace(archive)


if __name__ == "__main__":
    make()
