"""Strategies for Spark's planner: read the source in columns, and copy it to Parquet without rows.

Spark converts the Arrow batches of a Python source to rows first, but reads columns from sources in Java. With the
strategy ``ColumnsAsTheyAre.java`` it reads ours in columns too, and makes rows only where they are needed. With
``ParquetByPython.java``, a query that only copies the source to Parquet files makes no rows at all: Python writes the
files where it reads (:mod:`headrace.spark.source.parquet_files`).

Both are compiled at run time, by the compiler that Spark has for the code of queries, so there is no jar that depends
on a release of Spark. Executors get the classes from the driver, as a jar of the application. If any of that fails, as
it may with a release of Spark whose planner differs, Spark works as usual, only slower.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import ZipFile

from headrace.spark.source.parquet_files import GIVES, pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE: Final = "headrace"
"""The name for ``format``."""

JAVA: Final = Path(__file__).parent
PACKAGE: Final = "headrace.spark"
COLUMNS: Final = "ColumnsAsTheyAre"
PARQUET: Final = "ParquetByPython"
JAR: Final = "headrace-columns.jar"

logger = logging.getLogger("headrace.spark")


def read_in_columns(spark: SparkSession) -> None:
    """Install the strategies in this session, once."""
    try:
        methods = spark._jsparkSession.experimental()
        if COLUMNS in methods.extraStrategies().toString():
            return
        compiled = _Compiled(spark)
        planner = compiled.jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy
        columns = compiled.strategy(COLUMNS, planner(spark._jsparkSession), SOURCE)
        strategies = [columns]
        try:
            strategies.insert(0, compiled.strategy(PARQUET, spark._jsparkSession, columns, _function()))
        except Exception as error:  # noqa: BLE001 - see below.
            logger.info("Parquet files are written by Spark: %s", error)
        _give_executors(spark, compiled.classes)
        before = methods.extraStrategies()
        for strategy in strategies:
            # Spark takes the first strategy that has a plan.
            before = before.appended(strategy)
        getattr(methods, "extraStrategies_$eq")(before)
    except Exception as error:  # noqa: BLE001 - any failure costs only speed.
        logger.info("the source is read in rows: %s", error)


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


class _Compiled:
    """The classes compiled for a session; each may use those before it."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._gateway = context._gateway
        self.jvm = self._gateway.jvm
        self.classes: dict[str, bytes] = {}
        self._loader = self.jvm.java.lang.Thread.currentThread().getContextClassLoader()

    def strategy(self, name: str, *arguments: object) -> Any:
        """Compile one more, and make it with these arguments."""
        compiler = self.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(self._loader)
        compiler.cook((JAVA / f"{name}.java").read_text())
        given = self._gateway.new_array(self.jvm.java.lang.Object, len(arguments))
        for position, argument in enumerate(arguments):
            given[position] = argument
        made = (
            compiler.getClassLoader().loadClass(f"{PACKAGE}.{name}").getConstructors()[0].newInstance(given)
        )
        self._loader = compiler.getClassLoader()
        self.classes.update(compiler.getBytecodes())
        return made


def _function() -> bytes:
    """Pickle the function that yields pieces of files, as Spark passes functions to Python."""
    from pyspark.cloudpickle import dumps
    from pyspark.sql.types import _parse_datatype_string

    pickled: bytes = dumps((pieces, _parse_datatype_string(GIVES)))  # type: ignore[no-untyped-call]
    return pickled


def _give_executors(spark: SparkSession, classes: dict[str, bytes]) -> None:
    """Give executors the classes, once for all sessions of an application, which compile the same ones."""
    context: Any = spark.sparkContext
    jar = Path(context._temp_dir, JAR)
    if jar.exists():
        return
    with ZipFile(jar, "x") as file:
        for name in sorted(classes):
            file.writestr(f"{name.replace('.', '/')}.class", classes[name])
    context._jsc.sc().addJar(str(jar))
