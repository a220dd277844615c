"""Run benchmarks: ``python -m bench [--list] [OPTION…] [NAME…]``, all of them by default.

Of several, each runs in a process of its own: none measures what another has warmed or left behind, and one that
fails does not keep the others from running.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import add_options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks one after another; the exit status is 1 when one fails."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all of: {', '.join(benchmarks())}")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and what they measure")
    add_options(parser)
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in benchmarks()]:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(benchmarks())}")
    names = options.names or benchmarks()
    if options.list:
        for name in names:
            told = importlib.import_module(f"bench.{name}").__doc__ or ""
            print(f"{name:<12} {told.splitlines()[0] if told else ''}")
        return 0
    arguments = ["--quick"] if options.quick else []
    for option in ("json", "charts", "check"):
        if (path := getattr(options, option)) is not None:
            arguments += [f"--{option}", str(path.resolve())]
    if len(names) == 1:
        status: int = importlib.import_module(f"bench.{names[0]}").main(arguments)
        return status
    failed = [name for name in names if _apart(name, arguments)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def benchmarks() -> list[str]:
    """The names of all benchmarks there are."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def _apart(name: str, arguments: Sequence[str]) -> int:
    """Run one benchmark in a process of its own; return its exit status."""
    command = [sys.executable, "-m", "bench", name, *arguments]
    return subprocess.run(command, cwd=Path(__file__).parents[1], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
