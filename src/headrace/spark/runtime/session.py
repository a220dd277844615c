"""A Spark session with the settings that suit Headrace.

    from headrace.spark import session
    spark = session("local[2]")
    spark.readStream.format("headrace").option("servers", "127.0.0.1:8081").load()

The source and the sink work in any session, with :func:`headrace.spark.register` where
Spark does not find them by itself. This one finds a Java, stays on the loopback interface when Spark runs on this
machine, prints only what needs attention, and has the settings that make a micro-batch quick.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import UsageError
from headrace.platforms import usable_cores
from headrace.spark.options import as_text
from headrace.spark.runtime.java import java_home
from headrace.spark.runtime.python_command import python_command
from headrace.spark.source.planner_strategies import read_in_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_PYSPARK: Final = "there is no PySpark: pip install '.[spark]' in Headrace's repository brings it along"

LOG4J: Final = Path(__file__).with_name("log4j2.properties")

CONNECT: Final = "sc://"
"""How the address of a Spark Connect server begins."""

QUICK_CHECKPOINTS: Final = {
    # One rename fewer per checkpoint file. On a local disk the write is atomic all the same; on HDFS it is not.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Settings that make a micro-batch quicker on local disks, for ``local`` masters."""

QUICK: Final = {
    # Over TCP a task's work comes in two packets, and the second waits 40 ms for the first to be acknowledged.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "headrace.spark.runtime.python_workers",
}
"""Settings that make a micro-batch quicker at no cost."""

HIDDEN: Final = {"spark.redaction.regex": "(?i)secret|password|token|access[.]?key|credential|headrace_key"}
"""Spark shows settings in its pages and its event log; those with such names are masked. All but the last name are
Spark's own choice; that is for ``spark.executorEnv.HEADRACE_KEY``."""

STATELESS: Final = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
"""Checkpoints on local disks without checksum files, which is quicker still; for ``local`` masters only. RocksDB's
state store needs them."""

ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Java options that stop Arrow from checking every single access to memory that it has checked as a whole: this is a
quarter of the cost of a row from Python in the JVM."""

DEEP: Final = "-Xss16m"
"""A Java option. When a query is stopped while Python works on a micro-batch, Spark searches its long error message for
a pattern, and runs out of stack with the default of 1 MB."""

SKETCHES: Final = "org.apache.datasketches.memory.internal.ResourceImpl"
RESTRICTED: Final = "Warning: Java versions > Java 11 can only operate in restricted mode"

_JAVA_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
"""A collector that the user has chosen: a JVM with two does not start."""

_ONE_TRY: Final = re.compile(r"^local(?:\[\s*(\d+|\*)\s*\])?$")
"""A ``local`` master that does not say how often it tries a task."""

_LOOPBACK: Final = re.compile(r"^spark://(127\.\d+\.\d+\.\d+|localhost|\[::1\])(:|,|$)")


def session(
    master: str = "local[*]",
    app: str = "headrace",
    *,
    memory: str = "1g",
    ui: bool | int = False,
    stateless: bool = False,
    **conf: Any,
) -> SparkSession:
    """Make a Spark session on ``master``, or return the running one.

    ``memory``
        The driver's memory; in ``local`` mode there is no other.
    ``master``
        ``sc://HOST:PORT`` connects to a Spark Connect server; then ``memory``, ``ui`` and ``stateless`` are the
        server's own matter.
    ``ui``
        Serve Spark's web pages: on a port of Spark's choice, or on the given one (0: a free one).
    ``stateless``
        No query keeps state: checkpoints of a ``local`` master are quicker by :data:`STATELESS`.
    ``conf``
        Spark settings that override ours: ``session(**{"spark.sql.shuffle.partitions": 8})``.

    >>> from headrace.testing import Hub
    >>> spark = session("local[2]")
    >>> with Hub() as hub, hub.connect_sync("tube") as link:
    ...     link.publish([b"one", b"two"], topic="orders").last
    ...     messages = spark.read.format("headrace").option("servers", hub.doors["tube_tcp"]).load()
    ...     [(row.seq, bytes(row.payload)) for row in messages.orderBy("seq").collect()]
    2
    [(1, b'one'), (2, b'two')]
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageError(NO_PYSPARK) from None
    if master.startswith(CONNECT):
        return _connected(master, app, conf)
    settings = settings_for(master, memory=memory, ui=ui, stateless=stateless)
    for key, value in conf.items():
        settings[key] = as_text(value)
    builder = SparkSession.builder.master(master).appName(app)
    for key, value in settings.items():
        builder = builder.config(key, value)
    running = SparkContext._gateway is not None
    with _environment(_surroundings(master, running=running)):
        made = builder.getOrCreate()
    if not running:
        _load_sketches(made.sparkContext._jvm)
    read_in_columns(made)
    _hush(getattr(made.sparkContext, "_accumulatorServer", None))
    return made


def settings_for(
    master: str, *, memory: str = "1g", ui: bool | int = False, stateless: bool = False
) -> dict[str, str]:
    """Return the settings of :func:`session`, for a Spark that is started in another way."""
    settings = QUICK | HIDDEN
    if stateless and master.startswith("local"):
        settings |= STATELESS
    settings |= {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG4J.as_uri()} {ARROW} {DEEP}",
        "spark.ui.enabled": "false" if ui is False else "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    if type(ui) is int:
        settings["spark.ui.port"] = str(ui)
    if master.startswith("local"):
        settings |= _quick_checkpoints()
        # Spark's default of 200 tasks per shuffle is for clusters. Queries keep the number they began with.
        settings["spark.sql.shuffle.partitions"] = str(cores(master))
        # The parallel collector is quickest for so small a heap; the default is made for large ones.
        if not _COLLECTOR.search(" ".join(os.environ.get(name, "") for name in _JAVA_VARIABLES)):
            settings["spark.driver.extraJavaOptions"] += " -XX:+UseParallelGC"
    if is_here(master):
        # Executors elsewhere may need the options of their site.
        settings["spark.executor.extraJavaOptions"] = ARROW
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


def _quick_checkpoints() -> dict[str, str]:
    from headrace.spark.spark_release import HAS_STREAM_WRITER

    # 4.0, which has no such writer either, has the class elsewhere.
    return QUICK_CHECKPOINTS if HAS_STREAM_WRITER else {}


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a client of a Spark Connect server, which has no JVM of its own."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _connected(master: str, app: str, conf: Mapping[str, Any]) -> SparkSession:
    """Connect to a Spark Connect server. Its settings are its own: only those of a session can be set."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(master).appName(app)
    for key, value in conf.items():
        builder = builder.config(key, as_text(value))
    try:
        made: SparkSession = builder.getOrCreate()
    except ImportError as error:
        raise UsageError(
            f"Spark Connect needs more packages: pip install 'pyspark[connect]' ({error})"
        ) from None
    return made


def is_here(master: str) -> bool:
    """Whether a master is on this machine and reached over the loopback interface.

    >>> is_here("local[2]"), is_here("spark://127.0.0.1:7077"), is_here("spark://10.0.0.1:7077")
    (True, True, False)
    """
    return master.startswith("local") or _LOOPBACK.match(master) is not None


def cores(master: str) -> int:
    """Return the number of tasks that a ``local`` master runs at a time.

    >>> cores("local"), cores("local[3]"), cores("local[3,2]")
    (1, 3, 3)
    """
    named = re.match(r"^local\[\s*(\d+|\*)", master)
    if named is None:
        return 1
    return usable_cores() if named[1] == "*" else int(named[1])


def trying_twice(master: str) -> str:
    """Have a ``local`` master try a task once more, unless it says how often.

    By itself it ends a query with the first process of Python that is killed, perhaps for want of memory; clusters try
    a task four times.

    >>> trying_twice("local"), trying_twice("local[*]"), trying_twice("local[2,4]"), trying_twice("spark://a:7077")
    ('local[1,2]', 'local[*,2]', 'local[2,4]', 'spark://a:7077')
    """
    once = _ONE_TRY.match(master)
    return f"local[{once[1] or 1},2]" if once else master


def _hush(server: Any) -> None:
    """Keep PySpark from printing a trace when a stopped query closes the connection for accumulators.

    The JVM makes that connection again when it needs it.
    """
    if server is None or getattr(server, "hushed", False):
        return
    tell = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError):
            tell(request, client_address)

    server.handle_error = handle_error
    server.hushed = True


def _load_sketches(jvm: Any) -> None:
    """Load the library of Spark's sketches without the warning that it prints on loading.

    The warning is about memory outside of the heap on Java beyond 11, which Spark does not use, and comes on every Java
    that Spark 4 runs on. Only that line is suppressed: anything else printed meanwhile is printed after.
    """
    with suppress(Exception):  # another release of Spark may have no such class
        system, kept = jvm.java.lang.System, jvm.java.io.ByteArrayOutputStream()
        before = system.err
        system.setErr(jvm.java.io.PrintStream(kept, True))
        try:
            jvm.java.lang.Class.forName(SKETCHES)
        finally:
            system.setErr(before)
            rest = [line for line in kept.toString().splitlines() if not line.startswith(RESTRICTED)]
            for line in rest:
                before.println(line)


def _surroundings(master: str, *, running: bool) -> dict[str, str]:
    """Return the variables that our environment lacks for the JVM and its Python workers."""
    added = {}
    if is_here(master):
        # Executors are on this machine, and use our interpreter.
        added = {"PYSPARK_PYTHON": python_command(), "SPARK_LOCAL_IP": "127.0.0.1"}
    added = {name: value for name, value in added.items() if name not in os.environ}
    if not running:
        added["JAVA_HOME"] = str(java_home())
    return added


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
