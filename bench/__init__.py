"""Benchmarks: what they share.

A benchmark is a module ``bench/<name>.py`` with ``main(argv) -> int``. It measures, fills :class:`Table`
objects and hands them to :func:`run`, which gives every benchmark the same options:

``--quick``
    runs everything once, with too little time for figures to mean anything: what the tests use;
``--json FILE``
    also writes the figures under the benchmark's name, beside what the file already holds;
``--charts DIRECTORY``
    also draws tables with key ratios;
``--check FILE``
    compares key ratios with those in a file that ``--json`` wrote: one that is a fifth worse fails.

A rate alone says little about another machine, so a table names its ``base`` row (a peer, or the plain way)
measured in the same run, and prints each row's ratio to it. Where a row says how much that is to be at
``least``, the ratio decides: a benchmark that measured less ends with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from bench._charts import write_charts

TOLERANCE: Final = 0.2
"""How much worse a key ratio may be than the recorded one: repeats differ by half of that."""

W = TypeVar("W")
R = TypeVar("R")

settle_seconds = 1.0
"""How long each server is left alone after its first connection: a server at work is measured, not its start."""

Measure = Callable[[bool], "Iterable[Table]"]
"""A table is printed when it is there, so one that takes long had better yield them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured: a value for each column that applies, the name of the row it is compared with, and the least
    ratio that is good enough."""

    name: str
    values: tuple[float | None, ...]
    base: str | None = None
    least: float | None = None
    key: bool = False
    """Whether ``make bench-check`` compares its ratio with the recorded one."""


@dataclass(slots=True)
class Table:
    """Rows under a title; ``columns`` name the values and their units. Ratios are of the first column."""

    title: str
    columns: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    note: str = ""
    less_is_better: bool = False

    def add(
        self,
        name: str,
        *values: float | None,
        base: str | None = None,
        least: float | None = None,
        key: bool = False,
    ) -> None:
        if len(values) != len(self.columns):
            raise ValueError(f"{self.title}: {name} has {len(values)} values for {len(self.columns)} columns")
        self.rows.append(Row(name, values, base, least, key))

    def ratio(self, row: Row) -> float | None:
        """How many times the base row's first value this row's is."""
        if row.base is None:
            return None
        base = next(other for other in self.rows if other.name == row.base)
        mine, theirs = row.values[0], base.values[0]
        return None if mine is None or theirs is None else mine / theirs

    def short(self) -> list[str]:
        """The rows whose ratio is less than it is to be, each with both."""
        compared = ((row, self.ratio(row)) for row in self.rows if row.least is not None)
        return [
            f"{row.name}: {ratio:.2f}x, not {row.least}x"
            for row, ratio in compared
            if ratio is not None and row.least is not None and ratio < row.least
        ]

    def text(self) -> str:
        """The table as plain text, figures to the right."""
        ratios = [self.ratio(row) for row in self.rows]
        compared = any(ratio is not None for ratio in ratios)
        lines = [["", *self.columns, *(["ratio", ""] if compared else [])]]
        for row, ratio in zip(self.rows, ratios, strict=True):
            line = [row.name, *(_figure(value) for value in row.values)]
            if compared:
                least = "" if row.least is None else f" (at least {row.least}x)"
                line += ["", ""] if ratio is None else [f"{ratio:.2f}x", f"of {row.base}{least}"]
            lines.append(line)
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        left = {0, len(widths) - 1} if compared else {0}
        shown = [
            "  ".join(
                cell.ljust(w) if i in left else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        return "\n".join(
            [
                self.title,
                *(f"  {line}".rstrip() for line in shown),
                *([f"  {self.note}"] if self.note else []),
            ]
        )

    def json(self) -> dict[str, Any]:
        rows = [
            {
                "name": row.name,
                **dict(zip(self.columns, row.values, strict=True)),
                "base": row.base,
                "ratio": self.ratio(row),
                **({} if row.least is None else {"least": row.least}),
                **({"key": True} if row.key else {}),
            }
            for row in self.rows
        ]
        return {
            "title": self.title,
            "note": self.note,
            "less_is_better": self.less_is_better,
            "rows": rows,
        }


def warm_memory(directory: Path, size: int) -> None:
    """Have memory ready for what is measured next to grow into.

    A virtual machine's free memory is often its host's, who gives it back page by page when it is touched, at ten times
    the price of using it. Whoever writes files or grows a heap would be measured by that, and whoever comes next not.
    """
    block = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(size // len(block)):
            file.write(block)


def in_turns(ways: Iterable[W], once: Callable[[W], R], rounds: int) -> dict[W, list[R]]:
    """Measure each way once a round, so that what else the machine does for a while befalls all alike."""
    found: dict[W, list[R]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, results in found.items():
            results.append(once(way))
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every benchmark has."""
    parser.add_argument("--quick", action="store_true", help="run everything once; the figures mean nothing")
    parser.add_argument("--json", type=Path, help="write the figures to this file too, beside what it holds")
    parser.add_argument("--charts", type=Path, help="draw the key figures into this directory")
    parser.add_argument("--check", type=Path, help="compare key ratios with those in this file")


def fallen(tables: Iterable[Table], recorded: Sequence[dict[str, Any]]) -> list[str]:
    """The key ratios that are worse than recorded by more than :data:`TOLERANCE`, each with both."""
    known = {
        (table["title"], row["name"]): row["ratio"]
        for table in recorded
        for row in table["rows"]
        if row.get("key")
    }
    found = []
    for table in tables:
        for row in table.rows:
            now, then = table.ratio(row), known.get((table.title, row.name))
            if not row.key or now is None or then is None:
                continue
            change = then / now if table.less_is_better else now / then
            if change < 1 - TOLERANCE:
                found.append(f"{table.title}: {row.name}: {now:.2f}x of {row.base}, recorded {then:.2f}x")
    return found


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Have SIGTERM end this process as Ctrl-C does: what it has started is stopped, what it has written is removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(name: str, measure: Measure, argv: Sequence[str]) -> int:
    """The command line of one benchmark: measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=measure.__doc__)
    add_options(parser)
    options = parser.parse_args(argv)
    if options.check and not options.check.exists():
        parser.error(
            f"{options.check} has no ratios to compare with: --json writes them, as `make bench` does"
        )
    global settle_seconds
    settle_seconds = 0.0 if options.quick else settle_seconds
    tables = []
    with ending_in_order():
        for table in measure(options.quick):
            print(table.text(), end="\n\n", flush=True)
            tables.append(table)
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        known[name] = {
            "machine": {
                "python": platform.python_version(),
                "system": platform.platform(),
                "cpus": os.cpu_count(),
            },
            "quick": options.quick,
            "tables": [table.json() for table in tables],
        }
        options.json.write_text(json.dumps(known, indent=2) + "\n")
    if options.charts:
        write_charts(name, [table.json() for table in tables], options.charts)
    short = [] if options.quick else [f"{table.title}: {row}" for table in tables for row in table.short()]
    for row in short:
        print(f"too little: {row}", file=sys.stderr)
    worse = []
    if options.check:
        recorded = json.loads(options.check.read_text())
        worse = fallen(tables, recorded[name]["tables"] if name in recorded else [])
    for row in worse:
        print(f"worse than recorded: {row}", file=sys.stderr)
    return 1 if short or worse else 0


def best(function: Callable[[], object], *, quick: bool, seconds: float = 0.5, repeats: int = 5) -> float:
    """The least time one call took, in seconds.

    Calls are grouped so that each of the ``repeats`` groups lasts long enough for the clock; the best group
    is the one least disturbed by whatever else the machine did.
    """
    function()
    if quick:
        return max(_timed(function, 1), 1e-9)
    calls = 1
    while (took := _timed(function, calls)) < seconds / repeats / 4:
        calls *= 2
    calls = max(1, round(calls * seconds / repeats / took))
    return min(_timed(function, calls) for _ in range(repeats)) / calls


def _timed(function: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return time.perf_counter() - begin


def _figure(value: float | None) -> str:
    """Three significant digits or more, and thousands apart."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
