"""The Spark source and sink ``format("headrace")``, and a session that suits them.

    from headrace.spark import session
    spark = session()
    spark.read.format("headrace").option("servers", "127.0.0.1:8081").load().show()

Each name is imported when it is first used: looking for a Java needs no PySpark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.spark.archive_reading import history
    from headrace.spark.datasource import register
    from headrace.spark.query_reports import watch
    from headrace.spark.runtime.session import session
    from headrace.spark.source.range_source import map_in_arrow

__all__ = ["history", "map_in_arrow", "register", "session", "watch"]

_HOMES = {
    "history": "headrace.spark.archive_reading",
    "map_in_arrow": "headrace.spark.source.range_source",
    "register": "headrace.spark.datasource",
    "session": "headrace.spark.runtime.session",
    "watch": "headrace.spark.query_reports",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
