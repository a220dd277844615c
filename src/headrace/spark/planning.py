"""How Spark reads the source: in columns, as Python gives them.

Spark makes rows of the Arrow batches that a source in Python gives, before anything looks at them. Sources in Java may
give it columns. ``ColumnsAsTheyAre.java`` is a strategy for Spark's planner that has ours do the same: a query is then
compiled together with what takes its values out of the columns, and rows are made where rows are wanted, once.

It is compiled where it is used, by the compiler that Spark brings along for the code it makes of queries: there is no
jar to keep in step with a release of Spark. Executors get the classes from the driver, as a jar of the application's.
Where any of that fails, as it may with a release of Spark whose planner is another, all is as Spark would have it, and
slower.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import ZipFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE: Final = "headrace"
"""What ``format`` takes."""

STRATEGY: Final = "headrace.spark.ColumnsAsTheyAre"
JAVA: Final = Path(__file__).with_name("ColumnsAsTheyAre.java")
JAR: Final = "headrace-columns.jar"

logger = logging.getLogger("headrace.spark")


def read_in_columns(spark: SparkSession) -> None:
    """Have a session read the source so; one that does already goes on as it is."""
    try:
        _add_strategy(spark)
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs speed alone.
        logger.info("the source is read in rows: %s", error)


def _add_strategy(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    jvm, classic = gateway.jvm, spark._jsparkSession
    methods = classic.experimental()
    before = methods.extraStrategies()
    if STRATEGY in before.toString():
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(JAVA.read_text())
    arguments = gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0] = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy(classic)
    arguments[1] = SOURCE
    strategy = compiler.getClassLoader().loadClass(STRATEGY).getConstructors()[0].newInstance(arguments)
    _give_executors(spark, compiler.getBytecodes())
    getattr(methods, "extraStrategies_$eq")(before.appended(strategy))


def _give_executors(spark: SparkSession, classes: Any) -> None:
    """Have executors find the classes: once for all sessions of an application, which compile the same ones."""
    context: Any = spark.sparkContext
    jar = Path(context._temp_dir, JAR)
    if jar.exists():
        return
    with ZipFile(jar, "x") as file:
        for name in sorted(classes.keySet()):
            file.writestr(f"{name.replace('.', '/')}.class", classes[name])
    context._jsc.sc().addJar(str(jar))
