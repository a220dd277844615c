"""A master or a worker of a standalone Spark cluster, from the pip package alone.

    python -m headrace.spark.runtime.standalone master --host 10.0.0.1
    python -m headrace.spark.runtime.standalone worker --host 10.0.0.2 --cores 8 --memory 16g spark://10.0.0.1:7077

The pip package of PySpark has what a cluster needs, but no scripts that start it, and it needs a Java. This module
provides both and becomes Spark's own process: arguments are Spark's, signals reach it, and its exit code is Spark's. A
worker keeps the executors' files in the folder ``spark-work`` of its working directory, unless ``--work-dir`` is given.

``--with-parent`` is ours: it ends the process when the one that started it ends, however that ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from headrace.errors import HeadraceError, UsageError
from headrace.platforms import end_with_parent
from headrace.spark.runtime.java import java_home
from headrace.spark.runtime.session import NO_PYSPARK

CLASSES: Final = {
    "master": "org.apache.spark.deploy.master.Master",
    "worker": "org.apache.spark.deploy.worker.Worker",
}

WITH_PARENT: Final = "--with-parent"

USAGE: Final = (
    "python -m headrace.spark.runtime.standalone master|worker [Spark's own arguments: --host, --port, --webui-port; "
    "for a worker --cores, --memory, --work-dir and the master's URL] [--with-parent]"
)


def command(arguments: Sequence[str]) -> list[str]:
    """Return Spark's command line for ``arguments``."""
    try:
        import pyspark
    except ImportError:
        raise UsageError(NO_PYSPARK) from None
    if not arguments or arguments[0] not in CLASSES:
        raise UsageError(f"expected master or worker: {USAGE}")
    role, *rest = (each for each in arguments if each != WITH_PARENT)
    if role == "worker" and not any(each.startswith("spark://") for each in rest):
        raise UsageError("a worker needs its master's URL: spark://HOST:7077")
    if role == "worker" and not {"-d", "--work-dir"} & set(rest):
        # Spark's default is a folder in the package, which may not be writable.
        rest = ["--work-dir", str(Path("spark-work").absolute()), *rest]
    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    return [str(script), CLASSES[role], *rest]


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of Spark's processes: a Java, and by default our Python for executors."""
    return {"PYSPARK_PYTHON": sys.executable, **environ, "JAVA_HOME": str(java_home())}


def main(arguments: Sequence[str] | None = None) -> None:
    """Become a master or a worker."""
    try:
        given = sys.argv[1:] if arguments is None else arguments
        line = command(given)
        if WITH_PARENT in given:
            end_with_parent()
        os.execve(line[0], line, environment())  # noqa: S606 - no shell is wanted
    except HeadraceError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
