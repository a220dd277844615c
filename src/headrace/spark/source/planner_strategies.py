"""A strategy for Spark's planner, where a session asks for it: read the source in columns.

Spark converts the Arrow batches of a Python source to rows first, but reads columns from sources in Java. With the
strategy ``ColumnsAsTheyAre.java`` it reads ours in columns too, and makes rows only where they are needed.

The setting ``spark.headrace.columns`` turns it on and off (:data:`SETTING`). It is on in the sessions of Headrace's own
jobs, and off elsewhere. The strategy knows classes of Spark that are no interface, so it is for the releases that it is
tested with. It is for ``local`` masters: there tasks run in the driver's process and have its classes. Anywhere else,
or if anything fails, Spark works as usual, only slower, and a warning says so.

It is compiled at run time, by the compiler that Spark has for the code of queries: there is no jar to install.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import ZipFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE: Final = "headrace"
"""The name for ``format``."""

SETTING: Final = "spark.headrace.columns"
"""The setting of a session that turns the strategy on."""

TESTED: Final = ("4.3.0",)
"""The releases of Spark that the strategy is tested with."""

JAVA: Final = Path(__file__).parent
PACKAGE: Final = "headrace.spark"
COLUMNS: Final = "ColumnsAsTheyAre"
JAR: Final = "headrace-columns.jar"

logger = logging.getLogger("headrace.spark")


def read_in_columns(spark: SparkSession) -> None:
    """Install the strategy in this session, once, if its setting asks for it."""
    if (spark.conf.get(SETTING, "false") or "false").lower() != "true":
        return
    try:
        if (problem := _unfit(spark)) is None:
            _install(spark)
    except Exception as error:  # noqa: BLE001 - any failure costs only speed.
        problem = str(error)
    if problem is not None:
        logger.warning("%s = true, but the source is read in rows: %s", SETTING, problem)


def for_threads(spark: SparkSession, source: str) -> None:
    """Let several queries of a session use a source at once.

    Spark has one map of environment variables for all of them, to which each query's thread writes when it starts. If
    that is not a concurrent map, it may be corrupted, and no task can be sent any more.
    """
    try:
        context: Any = spark.sparkContext
        jvm = context._jvm
        function = (
            spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource(source).dataSourceCls()
        )
        field = function.getClass().getDeclaredField("envVars")
        field.setAccessible(True)
        field.set(function, jvm.java.util.concurrent.ConcurrentHashMap(function.envVars()))
    except Exception as error:  # noqa: BLE001 - as in any other session.
        logger.info("the source's environment is as Spark made it: %s", error)


def _unfit(spark: SparkSession) -> str | None:
    """Return why the strategy is not for this session; ``None`` if it is."""
    if spark.version not in TESTED:
        return f"Spark {spark.version} is not among those it is tested with: {', '.join(TESTED)}"
    master = spark.sparkContext.master or ""
    if master != "local" and not master.startswith("local["):
        return f"executors of {master} may lack its classes"
    return None


def _install(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    methods = spark._jsparkSession.experimental()
    if COLUMNS in methods.extraStrategies().toString():
        return
    jvm = context._gateway.jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook((JAVA / f"{COLUMNS}.java").read_text())
    planner = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy
    arguments = context._gateway.new_array(jvm.java.lang.Object, 3)
    arguments[0], arguments[1], arguments[2] = planner(spark._jsparkSession), SOURCE, SETTING
    made = compiler.getClassLoader().loadClass(f"{PACKAGE}.{COLUMNS}").getConstructors()[0]
    _give_tasks(context, compiler.getBytecodes())
    getattr(methods, "extraStrategies_$eq")(methods.extraStrategies().appended(made.newInstance(arguments)))


def _give_tasks(context: Any, classes: dict[str, bytes]) -> None:
    """Give tasks the classes, once for all sessions of an application, which compile the same ones."""
    jar = Path(context._temp_dir, JAR)
    if jar.exists():
        return
    with ZipFile(jar, "x") as file:
        for name in sorted(classes):
            file.writestr(f"{name.replace('.', '/')}.class", classes[name])
    context._jsc.sc().addJar(str(jar))
