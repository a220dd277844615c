"""Three nodes of a cluster on this machine: ``python examples/cluster/run.py [--data DIR]``.

Each node has every door, on ports of its own; what it says is printed behind its name. Ctrl-C ends them all. To see the
cluster go on without its primary, kill that process (its pid is printed) while something is published, and start it
again: run this program's ``--only NAME``.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

NODES = ("a", "b", "c")
DOORS = (
    "fyrehose",
    "spp",
    "sdk",
    "router",
    "dispatcher",
    "publisher",
    "status",
    "tube_ws",
    "tube_tcp",
    "http",
    "parcel",
)


def port(base: int, node: str, door: str) -> int:
    """Where a node's door is: the nodes are a hundred apart."""
    return base + 100 * NODES.index(node) + DOORS.index(door)


def command(base: int, data: Path, node: str) -> list[str]:
    """How to start one node."""
    peers = ",".join(f"127.0.0.1:{port(base, each, 'parcel')}" for each in NODES)
    settings = [f"listen.{door}=127.0.0.1:{port(base, node, door)}" for door in DOORS]
    sets = [word for setting in [f"node.name={node}", *settings] for word in ("--set", setting)]
    program = [sys.executable, "-m", "headrace", "serve"]
    return [*program, "--data", str(data / node), "--cluster", "example", "--peers", peers, *sets]


def start(base: int, data: Path, node: str) -> subprocess.Popen[str]:
    """Start one node, and pass on what it says."""
    process = subprocess.Popen(
        command(base, data, node),
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # Ctrl-C is for this program, which stops the nodes: told twice, they would not take their time.
        start_new_session=True,
    )
    assert process.stderr is not None
    threading.Thread(target=pass_on, args=(node, process.stderr), daemon=True).start()
    return process


def pass_on(node: str, said: IO[str]) -> None:
    """Print a node's lines, each behind its name."""
    for line in said:
        print(f"{node}: {line}", end="", file=sys.stderr, flush=True)


def main() -> int:
    """Start the nodes, and wait for them."""
    parser = argparse.ArgumentParser(description="Three nodes of a cluster on this machine.")
    parser.add_argument(
        "--data", type=Path, default=Path("headrace-cluster"), help="where the nodes keep their logs"
    )
    parser.add_argument("--port", type=int, default=17000, help="the first port")
    parser.add_argument("--only", choices=NODES, help="start this node alone, after it was killed")
    options = parser.parse_args()
    nodes = [options.only] if options.only else list(NODES)
    running = {node: start(options.port, options.data, node) for node in nodes}
    links = ",".join(f"127.0.0.1:{port(options.port, node, 'tube_tcp')}" for node in NODES)
    for node, process in running.items():
        print(
            f"node {node}: pid {process.pid}, dashboard http://127.0.0.1:{port(options.port, node, 'http')}/"
        )
    print(f"try: headrace pub --url tube://{links} hello")
    print(f"     headrace cluster status --url tube://{links}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # One that is killed leaves the others running: that is what there is to see.
        while any(process.poll() is None for process in running.values()):
            time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    return stop([process for process in running.values() if process.poll() is None])


def stop(running: list[subprocess.Popen[str]]) -> int:
    """Have nodes end in good order; return 0 if all of them did."""
    for process in running:
        process.terminate()
    try:
        return max((abs(process.wait()) for process in running), default=0)
    except KeyboardInterrupt:
        for process in running:
            process.kill()
        return 1


if __name__ == "__main__":
    sys.exit(main())
