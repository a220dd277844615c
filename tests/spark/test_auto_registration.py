"""The package that PySpark imports to find data sources: it must never fail, whatever is missing."""

from __future__ import annotations

import importlib
import sys

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

import pyspark_headrace
from headrace.spark.datasource import HeadraceDataSource


def test_the_source_is_found() -> None:
    assert pyspark_headrace.DefaultSource is HeadraceDataSource


def test_a_release_that_lacks_something_is_told_where_the_source_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PySpark 4.1 found no Python data source at all, of any package, since ours imported what came with 4.2."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "headrace.spark.datasource", None)
        found = importlib.reload(pyspark_headrace).DefaultSource
        assert issubclass(found, DataSource)
        assert found.name() == "headrace"
        source = found({})
        for use in (
            source.schema,
            lambda: source.writer(StructType(), False),
            lambda: source.streamWriter(StructType(), False),
        ):
            with pytest.raises(RuntimeError, match="cannot be used here: ModuleNotFoundError"):
                use()
    importlib.reload(pyspark_headrace)
