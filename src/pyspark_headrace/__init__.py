"""Where PySpark looks for data sources: this makes ``format("headrace")`` known without a call."""

from headrace.spark.datasource import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
