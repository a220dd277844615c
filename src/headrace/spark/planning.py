"""How Spark plans a read of the source: without making each row twice.

Spark makes rows of the Arrow batches that a source in Python gives, and then, by a projection that is there for sources
of other kinds, the same rows again. ``RowsAsTheyAre.java`` is a strategy for the planner that leaves the projection
out. Only a class in the driver's JVM can be one, and no other JVM needs it. It is compiled where it is used, by the
compiler that Spark brings along for the code it makes of queries. Where that fails, as it may with a release of Spark
whose planner is another, all is as Spark would have it, and somewhat slower.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE: Final = "headrace"
"""What ``format`` takes."""

STRATEGY: Final = "headrace.spark.RowsAsTheyAre"
JAVA: Final = Path(__file__).with_name("RowsAsTheyAre.java")

logger = logging.getLogger("headrace.spark")


def make_rows_once(spark: SparkSession) -> None:
    """Have a session read the source so; one that does already goes on as it is."""
    try:
        _add_strategy(spark)
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs speed alone.
        logger.info("rows of the source are made twice: %s", error)


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
    getattr(methods, "extraStrategies_$eq")(before.appended(strategy))
