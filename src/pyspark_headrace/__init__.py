"""Where PySpark looks for data sources: this makes ``format("headrace")`` known without a call.

PySpark imports every ``pyspark_…`` package that is installed, and if one of them fails, it finds no Python data source
at all. So nothing is raised here: if Headrace cannot be imported, whoever uses ``format("headrace")`` is told why.
"""

from typing import NoReturn

from pyspark.sql.datasource import DataSource

try:
    from headrace.spark.datasource import HeadraceDataSource as DefaultSource
except Exception as error:  # noqa: BLE001 - whatever it is, other packages' sources must not suffer from it.
    REASON = f"format('headrace') cannot be used here: {type(error).__name__}: {error}"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Says why there is no ``format("headrace")``."""

        @classmethod
        def name(cls) -> str:
            """Return the name for ``format``."""
            return "headrace"

        def schema(self) -> NoReturn:
            """Fail; called first by a reader."""
            raise RuntimeError(REASON)

        def writer(self, *_: object) -> NoReturn:
            """Fail."""
            raise RuntimeError(REASON)

        streamWriter = writer  # type: ignore[assignment]  # noqa: N815


__all__ = ["DefaultSource"]
