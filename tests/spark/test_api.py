"""The public names of ``headrace.spark``: each has a docstring with an example, which does what it says."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest
from pyspark.sql import SparkSession

import headrace.spark


@pytest.mark.parametrize("name", headrace.spark.__all__)
def test_the_example_does_what_it_says(spark: SparkSession, name: str) -> None:
    public = getattr(headrace.spark, name)
    home = import_module(public.__module__)
    [example] = doctest.DocTestFinder(recurse=False).find(public, name, home, globs=vars(home).copy())
    assert example.examples
    report: list[str] = []
    assert not doctest.DocTestRunner().run(example, out=report.append).failed, "".join(report)
    assert spark.range(3).count() == 3, "the example has left everybody's session as it was"
