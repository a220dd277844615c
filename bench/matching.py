"""Matching: a batch of messages against many subscriptions, beside a numpy scan and a DuckDB join, on one core.

Subscriptions have two predicates over 20 attributes, chosen at random, of two kinds: *equality and range* (one of 1,000
values, and 1 % of the domain), and *two ranges* (1 % of the domain each). A message has all 20 attributes. Every way
gets the same batch and must find as many clients; each runs in one thread.

*Audiences* are the two ranges in other forms: circles and hexagons in the same boxes, fences that are such circles, and
names, 100 of them of one client.

Rates are by the clock and by processor time. On a quiet machine the two are the same; on a busy one the second says
what one core would do, about.

The plain way is a scan of all subscriptions with numpy, message by message, with each column an array. DuckDB joins the
batch, as a table of attributes, with the table of subscriptions.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import bench
from headrace.matching import Matcher
from headrace.message import Batch, Run, envelope_rows, map_column
from headrace.wire.sdk.predicate import Between, Equals, Predicate

ATTRIBUTES = 20
VALUES = 1_000
DOMAIN = 1_000.0
WIDTH = 10.0
MESSAGES = 1_024
SCANNED = 8
"""Messages that the numpy scan takes: each costs the same."""

JOINED = 128
"""Messages that DuckDB joins: with a million pairs of ranges, a second or two."""

REPEATS = 10

KINDS = ("equality and range", "two ranges")

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Load:
    """Subscriptions as columns, a matcher that has them, and messages in every form."""

    kind: str
    columns: Columns
    matcher: Matcher
    texts: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float64]
    batch: Batch


def main(argv: Sequence[str]) -> int:
    return bench.run("matching", measure, argv)


def measure(quick: bool) -> list[bench.Table]:
    """Measure rates, how they change with the number of subscriptions, audiences, changes, memory and start."""
    from bench import _audiences

    sizes = (500, 1_000, 2_000) if quick else (10_000, 100_000, 1_000_000)
    rates = [
        bench.Table(
            f"{kind}, {sizes[-1]:,} subscriptions of 2 predicates",
            ("messages/s", "messages/CPU s", "matches/message"),
            note=f"a batch of {MESSAGES:,} messages of {ATTRIBUTES} attributes; one core",
        )
        for kind in KINDS
    ]
    growth = bench.Table(
        "as subscriptions grow", ("messages/s", "messages/CPU s", "CPU µs/message"), note="the same batch"
    )
    changes = bench.Table(
        f"changes while matching, {sizes[-1]:,} subscriptions",
        ("changes/s", "changes/CPU s", "messages/s"),
        note="one thread changes, one matches without a pause, one rebuilds: they share an interpreter",
    )
    single = bench.Table(
        f"one change, {sizes[-1]:,} subscriptions",
        ("median µs", "99.9 % µs", "longest ms"),
        note="nothing else runs; every 1,024th new subscription indexes those since, and some merge the newest",
    )
    memory = bench.Table(f"memory, {sizes[-1]:,} subscriptions", ("bytes/subscription", "rebuild s"))
    for kind, table in zip(KINDS, rates, strict=True):
        for size in sizes:
            load = _load(kind, size)
            took, worked = _best(lambda load=load: load.matcher.match(load.batch), quick)  # type: ignore[misc]
            rate = (MESSAGES / took, MESSAGES / worked)
            growth.add(f"{kind}, {size:,}", *rate, worked / MESSAGES * 1e6)
        _compare(load, rate, table, quick)
        begin = time.perf_counter()
        load.matcher.rebuild(everything=True)
        memory.add(kind, load.matcher.memory().per_subscription, time.perf_counter() - begin)
        changes.add(kind, *_change(load, 2_000 if quick else 100_000))
        for name, figures in _change_alone(load, 2_000 if quick else 20_000).items():
            single.add(f"{kind}: {name}", *figures)
    load.matcher.rebuild(everything=True)
    return [*rates, growth, _audiences.measure(load, quick), changes, single, memory, _start(quick)]


def _ranges(load: Load) -> Iterator[dict[str, Predicate]]:
    columns = {name: column.tolist() for name, column in load.columns.items()}
    for row in range(len(columns["first"])):
        yield {
            _name(columns["first"][row]): Between(columns["low_first"][row], columns["high_first"][row]),
            _name(columns["second"][row]): Between(columns["low"][row], columns["high"][row]),
        }


def _compare(load: Load, rate: tuple[float, float], table: bench.Table, quick: bool) -> None:
    found = np.diff(load.matcher.match(load.batch).offsets)
    assert _scan(load, SCANNED) == found[:SCANNED].tolist(), "numpy and the matcher disagree"
    assert _joining(load)() == found[:JOINED].sum(), "DuckDB and the matcher disagree"
    scanned = _best(lambda: _scan(load, SCANNED), quick)
    joined = _best(_joining(load), quick, repeats=2)
    each = float(found.mean())
    table.add("numpy scan", SCANNED / scanned[0], SCANNED / scanned[1], each)
    table.add("DuckDB join", JOINED / joined[0], JOINED / joined[1], each)
    table.add("headrace", *rate, each, base="numpy scan")
    table.add("headrace, of DuckDB", *rate, each, base="DuckDB join")


def _best(work: Callable[[], object], quick: bool, repeats: int = REPEATS) -> tuple[float, float]:
    """The least seconds that one call took, by the clock and of processor time."""
    took = worked = float("inf")
    for _ in range(1 if quick else repeats):
        begin, used = time.perf_counter(), time.process_time()
        work()
        took, worked = min(took, time.perf_counter() - begin), min(worked, time.process_time() - used)
    return max(took, 1e-9), max(worked, 1e-9)


def _load(kind: str, size: int) -> Load:
    draw = np.random.default_rng(20)
    clients = draw.integers(0, 256, (size, 12), np.uint8)
    low = draw.uniform(0, DOMAIN - WIDTH, (size, 2))
    columns: Columns = {"low": low[:, 1], "high": low[:, 1] + WIDTH}
    half = ATTRIBUTES // 2
    if kind == KINDS[0]:
        columns |= {
            "first": draw.integers(0, half, size),
            "value": draw.integers(0, VALUES, size),
            "second": draw.integers(half, ATTRIBUTES, size),
        }
    else:
        first = draw.integers(0, ATTRIBUTES, size)
        columns |= {
            "first": first,
            "second": (first + draw.integers(1, ATTRIBUTES, size)) % ATTRIBUTES,
            "low_first": low[:, 0],
            "high_first": low[:, 0] + WIDTH,
        }
    matcher = Matcher()
    names = [_name(attribute) for attribute in range(ATTRIBUTES)]
    lists = {name: column.tolist() for name, column in columns.items()}
    for row in range(size):
        first_predicate: Predicate
        if kind == KINDS[0]:
            first_predicate = Equals(_value(lists["value"][row]))
        else:
            first_predicate = Between(lists["low_first"][row], lists["high_first"][row])
        asked: dict[str, Predicate] = {
            names[lists["first"][row]]: first_predicate,
            names[lists["second"][row]]: Between(lists["low"][row], lists["high"][row]),
        }
        matcher.subscribe(clients[row].tobytes(), asked)
        if row % 1_000 == 0 and matcher.rebuild_due:
            matcher.rebuild()
    matcher.rebuild(everything=True)
    texts = draw.integers(0, VALUES, (MESSAGES, half))
    numbers = draw.uniform(0, DOMAIN, (MESSAGES, ATTRIBUTES))
    return Load(kind, columns, matcher, texts, numbers, _batch(kind, texts, numbers))


def _batch(kind: str, texts: npt.NDArray[np.int64], numbers: npt.NDArray[np.float64]) -> Batch:
    half = ATTRIBUTES // 2 if kind == KINDS[0] else 0
    attributes = [{_name(a): _value(row[a]) for a in range(half)} for row in texts.tolist()]
    doubles = [{_name(a): row[a] for a in range(half, ATTRIBUTES)} for row in numbers.tolist()]
    maps = {"attributes": attributes, "numbers": doubles}
    rows = envelope_rows({name: map_column(name, each) for name, each in maps.items()})
    return Batch(Run.of([b"x" * 100] * len(attributes)), first=1, origin="attribute", columns=rows)


def _scan(load: Load, count: int) -> list[int]:
    """How many clients each of the first messages has, by looking at every subscription."""
    columns = load.columns
    found = []
    for texts, numbers in zip(load.texts[:count], load.numbers[:count], strict=True):
        second = numbers[columns["second"]]
        passing = (second >= columns["low"]) & (second <= columns["high"])
        if load.kind == KINDS[0]:
            passing &= texts[columns["first"]] == columns["value"]
        else:
            first = numbers[columns["first"]]
            passing &= (first >= columns["low_first"]) & (first <= columns["high_first"])
        found.append(len(np.flatnonzero(passing)))
    return found


def _joining(load: Load) -> Callable[[], int]:
    """A join of the first messages in DuckDB, which says how many clients it found."""
    base = duckdb.connect(config={"threads": 1})
    messages = np.arange(JOINED)
    half = ATTRIBUTES // 2
    base.register("asked", pa.table({"id": np.arange(len(load.columns["low"])), **load.columns}))
    said = {
        "numbers": (load.numbers, range(ATTRIBUTES)),
        "texts": (load.texts, range(half)),
    }
    for name, (values, attributes) in said.items():
        rows = {
            "message": np.repeat(messages, len(attributes)),
            "attribute": np.tile(np.array(attributes), JOINED),
            "value": values[:JOINED, : len(attributes)].ravel(),
        }
        base.register(name + "_arrow", pa.table(rows))
        base.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_arrow")
    base.execute("CREATE TABLE subscriptions AS SELECT * FROM asked")
    first = (
        "texts f ON f.attribute = s.first AND f.value = s.value"
        if load.kind == KINDS[0]
        else "numbers f ON f.attribute = s.first AND f.value BETWEEN s.low_first AND s.high_first"
    )
    query = (
        f"SELECT f.message, s.id FROM subscriptions s JOIN {first} JOIN numbers n ON n.message = f.message"
        " AND n.attribute = s.second AND n.value BETWEEN s.low AND s.high"
    )
    return lambda: base.sql(query).to_arrow_table().num_rows


def _change(load: Load, count: int) -> tuple[float, float, float]:
    """Changes a second, half of them new subscriptions and half withdrawals, by the clock and by the processor time of
    the thread that makes them; and messages matched meanwhile."""
    matcher, stop = load.matcher, threading.Event()
    matched = [0]

    def match() -> None:
        while True:
            matcher.match(load.batch)
            matched[0] += MESSAGES
            if stop.is_set():
                return

    def rebuild() -> None:
        while not stop.wait(0.01):
            if matcher.rebuild_due:
                matcher.rebuild()

    draw = np.random.default_rng(30)
    clients = [row.tobytes() for row in draw.integers(0, 256, (count, 12), np.uint8)]
    asked: list[dict[str, Predicate]] = [
        {_name(row % 10): Equals(_value(row % VALUES)), _name(10 + row % 10): Between(low, low + WIDTH)}
        for row, low in enumerate(draw.uniform(0, DOMAIN, count).tolist())
    ]
    threads = [threading.Thread(target=work) for work in (match, rebuild)]
    for thread in threads:
        thread.start()
    begin, used = time.perf_counter(), time.thread_time()
    for client, predicates in zip(clients, asked, strict=True):
        matcher.subscribe(client, predicates)
    for client in clients:
        matcher.withdraw(client)
    took, worked = time.perf_counter() - begin, time.thread_time() - used
    stop.set()
    for thread in threads:
        thread.join()
    return 2 * count / took, 2 * count / worked, matched[0] / (time.perf_counter() - begin)


def _change_alone(load: Load, count: int) -> dict[str, tuple[float, float, float]]:
    """How long single changes take while nothing else runs: the median, nearly all, and the longest."""
    matcher = load.matcher
    clients = [(1 << 80 | row).to_bytes(12) for row in range(count)]
    wanted = dict[str, Predicate]({_name(10): Between(0, WIDTH), _name(11): Between(0, WIDTH)})
    works: dict[str, Callable[[bytes], object]] = {
        "subscribe": lambda client: matcher.subscribe(client, wanted),
        "replace": lambda client: matcher.subscribe(client, wanted),
        "withdraw": matcher.withdraw,
    }
    found = {}
    for name, work in works.items():
        took = np.empty(count)
        for place, client in enumerate(clients):
            begin = time.perf_counter()
            work(client)
            took[place] = time.perf_counter() - begin
        median, most = np.quantile(took, (0.5, 0.999)).tolist()
        found[name] = (median * 1e6, most * 1e6, float(took.max()) * 1e3)
    return found


def _start(quick: bool) -> bench.Table:
    """How long it takes until the kernels are there."""
    table = bench.Table(
        "start", ("seconds",), note="a process that imports the matcher and matches one message"
    )
    script = (
        "import time; begin = time.perf_counter()\n"
        "from headrace.matching import warm; warm()\n"
        "print(time.perf_counter() - begin)"
    )

    def timed(environment: dict[str, str]) -> float:
        command = [sys.executable, "-c", script]
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, check=True, text=True
        )
        return float(done.stdout)

    if not quick:
        with tempfile.TemporaryDirectory() as directory:
            table.add("kernels compiled anew", timed({"NUMBA_CACHE_DIR": directory}))
    table.add("kernels from the cache", timed({}))
    return table


def _name(attribute: int) -> str:
    return f"attribute-{attribute}"


def _value(value: int) -> str:
    return f"value-{value}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
