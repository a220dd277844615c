"""The Python command of Spark's processes: one that imports the installed PySpark, which is compiled.

Spark puts its archives of PySpark's sources before everything else on the path of the Python processes that it starts.
Python cannot keep what it compiles of an archive, so each process compiles PySpark anew: more than a second, several
times before a query begins. The pip package has the same modules beside its archives, compiled once. So Spark is given
a script of a few lines that takes that package's own archives from the path and becomes Python.

The script is made once, in the user's cache, under a name derived from its text. Where it cannot be made or run, or
where PySpark is not among Python's own packages, the command is Python itself.
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from headrace.spark.runtime.java import user_cache


def python_command(environ: Mapping[str, str] = os.environ) -> str:
    """Return the command for ``PYSPARK_PYTHON``: the script, or this Python."""
    import pyspark

    package = Path(pyspark.__file__).parent
    found = sysconfig.get_paths()
    if os.name != "posix" or str(package.parent) not in (found["purelib"], found["platlib"]):
        return sys.executable
    text = _script(package)
    # Whose home nobody knows has no cache.
    with suppress(OSError, RuntimeError):
        place = user_cache(environ) / "headrace" / f"python-{sha256(text.encode()).hexdigest()[:16]}"
        if not _is_made(place, text):
            _make(place, text)
        if _is_made(place, text):
            return str(place)
    return sys.executable


def _script(package: Path) -> str:
    archives = shlex.quote(str(package / "python" / "lib"))
    return f"""#!/bin/sh
set -f
IFS=:
kept=
for each in $PYTHONPATH; do
    case $each in {archives}/*.zip) ;; *) kept=$kept${{kept:+:}}$each ;; esac
done
export PYTHONPATH="$kept"
exec {shlex.quote(sys.executable)} "$@"
"""


def _is_made(place: Path, text: str) -> bool:
    return place.is_file() and place.read_text() == text and os.access(place, os.X_OK)


def _make(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as directory:
        fresh = Path(directory, place.name)
        fresh.write_text(text)
        fresh.chmod(0o755)
        # Another process may have been quicker; its script is the same.
        fresh.replace(place)
