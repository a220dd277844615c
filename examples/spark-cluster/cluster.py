"""A Spark cluster on this machine: a master and two workers, each a process, from the pip package alone.

    python examples/spark-cluster/cluster.py
    headrace pipeline run --master spark://127.0.0.1:7077

It runs until Ctrl-C. On several machines the same two commands that it starts are run on each, with the machines'
addresses in place of 127.0.0.1, and Headrace with its extra spark installed on all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

START_SECONDS = 120


@contextlib.contextmanager
def cluster(
    port: int = 7077, workers: int = 2, *, cores: int = 1, memory: str = "1g", pinned: bool = False
) -> Iterator[str]:
    """The master's URL, while master and workers run; port 0 takes a free one.

    ``pinned`` gives each worker, with all that it starts, one of this machine's cores and no other.
    """
    if port and not _is_free(port):
        # Spark's master would take the next one, and the workers would go to whoever has this one.
        raise OSError(f"port {port} is taken: python {sys.argv[0]} PORT chooses another")
    port, pages = port or _free_port(), _free_port()
    master = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="spark-cluster-", ignore_cleanup_errors=True)
        )

        def run(*arguments: str) -> None:
            log = stack.enter_context(Path(scratch, f"{arguments[0]}.log").open("ab"))
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "headrace.spark.runtime.standalone",
                    arguments[0],
                    "--with-parent",
                    *arguments[1:],
                ],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(_stop, process)

        run("master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(pages))
        size = ("--cores", str(cores), "--memory", memory)
        for number in range(workers):
            work = str(Path(scratch, f"worker-{number}"))
            with _on_core(number) if pinned else contextlib.nullcontext():
                run("worker", *size, "--host", "127.0.0.1", "--webui-port", "0", "--work-dir", work, master)
        _wait_for(f"http://127.0.0.1:{pages}/json/", workers)
        yield master


@contextlib.contextmanager
def _on_core(number: int) -> Iterator[None]:
    """Start processes on one of this machine's cores; there may be fewer than are asked for."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(allowed)[number % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _wait_for(pages: str, workers: int) -> None:
    """Wait until the master says that so many workers are there."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(pages, timeout=5) as answer:
            if json.load(answer)["aliveworkers"] == workers:
                return
        time.sleep(0.2)
    raise TimeoutError(f"{workers} workers did not come to {pages} within {START_SECONDS} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and those it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    """A free port that the system gives to nobody who asks for any while the JVM starts: such are 32,768 and up."""
    while True:
        port = random.randrange(16_384, 32_768)
        if _is_free(port):
            return port


def main() -> None:
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    try:
        with cluster(*map(int, sys.argv[1:2])) as master:
            print(f"master and two workers run: headrace pipeline run --master {master}", flush=True)
            told.wait()
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
