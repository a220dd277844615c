"""Spark's Python processes import the installed PySpark, not the archive that each of them would have to compile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from headrace.spark.runtime.python_command import python_command
from headrace.spark.runtime.session import _surroundings

INSTALLED = Path(pyspark.__file__).parent
ARCHIVES = sorted(str(each) for each in (INSTALLED / "python" / "lib").glob("*.zip"))


def test_it_is_python_without_the_archives_of_the_package(tmp_path: Path) -> None:
    command = python_command({"XDG_CACHE_HOME": str(tmp_path / "a cache")})
    others = ["/opt/spark/python/lib/pyspark.zip", str(tmp_path / "mine *"), str(tmp_path)]
    told = "import os, sys; print(sys.executable, *sys.argv[1:], os.environ['PYTHONPATH'], sep='\\n')"
    assert len(ARCHIVES) == 2
    for path, kept in (([*ARCHIVES, *others, *ARCHIVES], ":".join(others)), (ARCHIVES, "")):
        done = subprocess.run(
            [command, "-c", told, "two  words:*"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.splitlines() == [sys.executable, "two  words:*", kept]


def test_it_is_made_once_and_again_when_it_was_swept(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    with ThreadPoolExecutor(8) as pool:
        (command,) = set(pool.map(lambda _: python_command(environ), range(32)))
    made = Path(command)
    assert made.parent == tmp_path / "headrace"
    assert list(made.parent.iterdir()) == [made]
    inode = made.stat().st_ino
    assert python_command(environ) == command
    assert made.stat().st_ino == inode
    made.write_text("something else")
    assert python_command(environ) == command
    assert "exec " in made.read_text()


def test_it_is_python_itself_where_there_can_be_no_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert python_command(environ) == sys.executable
    # Another Python may not have this one, which is only on this program's path.
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    assert python_command({"XDG_CACHE_HOME": str(tmp_path)}) == sys.executable


def test_who_names_a_python_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert _surroundings("local[2]", running=True)["PYSPARK_PYTHON"] == python_command()
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    assert "PYSPARK_PYTHON" not in _surroundings("local[2]", running=True)


@pytest.mark.spark
def test_tasks_import_what_is_installed(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark as imported

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [imported.__file__]})

    (row,) = spark.range(1).mapInArrow(where, "file string").collect()
    assert row.file == str(INSTALLED / "__init__.py")
