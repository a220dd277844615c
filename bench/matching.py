"""Matching: a batch of messages against many subscriptions, beside a numpy scan and a DuckDB join, on one core.

Subscriptions have two predicates over 20 attributes, chosen at random, of two kinds: *equality and range* (one of 1,000
values, and 1 % of the domain), and *two ranges* (1 % of the domain each). *Circles* are regions of a plane whose boxes
are such ranges, *fences* are circles that a moving key enters or leaves, and *names* are two ranges each, 100 of them
of one client. A message has all 20 attributes. Every way
gets the same batch and must find as many clients; each runs in one thread.

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
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import bench
from headrace.hub.routing.local_matcher import LocalMatcher
from headrace.hub.routing.subscription_parts import (
    serialize_fields,
)
from headrace.hub.routing.subscriptions import (
    Subscriptions,
    change,
)
from headrace.matching import Matcher
from headrace.message import Batch, Run, envelope_rows, map_column
from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import Between, Equals, Inside, Predicate
from headrace.wire.sdk.region import Circle

ATTRIBUTES = 20
VALUES = 1_000
DOMAIN = 1_000.0
WIDTH = 10.0
MESSAGES = 1_024
SCANNED = 8
"""Messages that the numpy scan takes: each costs the same."""

REPEATS = 10

NAMES = 100
"""Named subscriptions of one client."""

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
    """Measure rates, how they change with the number of subscriptions, changes while matching, memory and start."""
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
    audiences = bench.Table(
        f"audiences, {sizes[-1]:,} subscriptions",
        ("messages/CPU s", "messages/s", "clients/message"),
        note="regions, and many named subscriptions of a client, beside two ranges in the same run; by CPU time",
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
    _add_audiences(audiences, sizes[-1], quick)
    return [*rates, growth, audiences, changes, memory, _start(quick)]


def _add_audiences(table: bench.Table, size: int, quick: bool) -> None:
    """Measure two ranges, circles and names, one after the other."""
    least = None if quick else 0.8
    plain = _load(KINDS[1], size)
    plain_clients = float(np.diff(plain.matcher.match(plain.batch).offsets).mean())
    took, worked = _best(lambda: plain.matcher.match(plain.batch), quick)
    table.add("two ranges", MESSAGES / worked, MESSAGES / took, plain_clients)
    _, named = _named(plain)
    took, worked = _best(lambda: named.clients_of(named.matcher.match(plain.batch)), quick)
    found = float(np.diff(named.clients_of(named.matcher.match(plain.batch)).offsets).mean())
    table.add("names", MESSAGES / worked, MESSAGES / took, found, base="two ranges", least=least)
    circles, inside = _circles(plain)
    matches = np.diff(circles.match(plain.batch).offsets)
    assert inside == matches[:SCANNED].tolist(), "numpy and the matcher disagree"
    took, worked = _best(lambda: circles.match(plain.batch), quick)
    mean = float(matches.mean())
    table.add("circles", MESSAGES / worked, MESSAGES / took, mean, base="two ranges", least=least)
    plane = _plane(plain)
    took, worked = _best(lambda: plane.match(plain.batch), quick)
    mean = float(np.diff(plane.match(plain.batch).offsets).mean())
    table.add("two ranges of one plane", MESSAGES / worked, MESSAGES / took, mean)
    fenced, before, batches = _fences(plain, 1 if quick else REPEATS)
    crossed = fenced.match(before)
    assert len(crossed.clients) > 0, "nothing was entered"
    coming = iter(batches)
    # Each batch is of new messages: what was matched before is remembered.
    took, worked = _best(lambda: fenced.match(next(coming)), quick)
    mean = float(np.diff(crossed.offsets).mean())
    table.add("fences", MESSAGES / worked, MESSAGES / took, mean, base="two ranges", least=least)


def _plane(load: Load) -> Matcher:
    """The same subscriptions, all on the first two attributes."""
    matcher = Matcher()
    for row, wanted in enumerate(_ranges(load)):
        matcher.subscribe(row.to_bytes(12), dict(zip((_name(0), _name(1)), wanted.values(), strict=True)))
        if row % 1_000 == 0 and matcher.rebuild_due:
            matcher.rebuild()
    matcher.rebuild(everything=True)
    return matcher


def _fences(load: Load, count: int) -> tuple[Matcher, Batch, list[Batch]]:
    """A circle as large as each subscription's ranges, entered or left; and keys that move, batch by batch."""
    matcher, columns, radius = Matcher(), load.columns, WIDTH / 2
    centres = zip((columns["low_first"] + radius).tolist(), (columns["low"] + radius).tolist(), strict=True)
    for row, (x, y) in enumerate(centres):
        fence = Fence(_name(1), Circle(x, y, radius), _name(2), ("enter",) if row % 2 else ("exit",))
        matcher.subscribe(row.to_bytes(12), {_name(0): fence})
        if row % 1_000 == 0 and matcher.rebuild_due:
            matcher.rebuild()
    matcher.rebuild(everything=True)
    draw = np.random.default_rng(21)
    numbers, made = load.numbers.copy(), []
    numbers[:, 2] = np.arange(MESSAGES)
    for place in range(count + 1):
        if place:
            # As far as a circle is wide: about half of what is left or entered is far from the edge.
            angles = draw.uniform(0, 2 * np.pi, MESSAGES)
            numbers[:, 0] = (numbers[:, 0] + WIDTH * np.cos(angles)) % DOMAIN
            numbers[:, 1] = (numbers[:, 1] + WIDTH * np.sin(angles)) % DOMAIN
        made.append(replace(_batch(load.kind, load.texts, numbers), first=1 + place * MESSAGES))
    return matcher, made[0], made[1:]


def _named(load: Load) -> tuple[Subscriptions, LocalMatcher]:
    """The same subscriptions as names of a hundredth as many clients."""
    subscriptions = Subscriptions()
    matching = LocalMatcher(subscriptions, lambda *_: True)
    wanted = list(_ranges(load))
    for client, begin in enumerate(range(0, len(wanted), NAMES)):
        some = {f"name-{n}": [serialize_fields(each)] for n, each in enumerate(wanted[begin : begin + NAMES])}
        entry = change(client.to_bytes(12), b"bench001", some)
        subscriptions.apply(client.to_bytes(12).hex(), entry.run[0], 0, client + 1)
        if matching.matcher.rebuild_due:
            matching.matcher.rebuild()
    matching.matcher.rebuild(everything=True)
    return subscriptions, matching


def _circles(load: Load) -> tuple[Matcher, list[int]]:
    """A circle in the box of each subscription's two ranges; and how many contain each of the first messages."""
    matcher, columns, radius = Matcher(), load.columns, WIDTH / 2
    names = [_name(attribute) for attribute in range(ATTRIBUTES)]
    x, y = columns["low_first"] + radius, columns["low"] + radius
    both = zip(columns["first"].tolist(), columns["second"].tolist(), x.tolist(), y.tolist(), strict=True)
    for row, (first, second, centre_x, centre_y) in enumerate(both):
        region = Circle(centre_x, centre_y, radius)
        matcher.subscribe(row.to_bytes(12), {names[first]: Inside(names[second], region)})
        if row % 1_000 == 0 and matcher.rebuild_due:
            matcher.rebuild()
    matcher.rebuild(everything=True)
    found = []
    for numbers in load.numbers[:SCANNED]:
        across, up = numbers[columns["first"]] - x, numbers[columns["second"]] - y
        found.append(int((across * across + up * up <= radius * radius).sum()))
    return matcher, found


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
    assert _joining(load)() == found.sum(), "DuckDB and the matcher disagree"
    scanned = _best(lambda: _scan(load, SCANNED), quick)
    joined = _best(_joining(load), quick, repeats=2)
    each = float(found.mean())
    table.add("numpy scan", SCANNED / scanned[0], SCANNED / scanned[1], each)
    table.add("DuckDB join", MESSAGES / joined[0], MESSAGES / joined[1], each)
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
    """A join of the whole batch in DuckDB, which says how many clients it found."""
    base = duckdb.connect(config={"threads": 1})
    messages = np.arange(MESSAGES)
    half = ATTRIBUTES // 2
    base.register("asked", pa.table({"id": np.arange(len(load.columns["low"])), **load.columns}))
    said = {
        "numbers": (load.numbers, range(ATTRIBUTES)),
        "texts": (load.texts, range(half)),
    }
    for name, (values, attributes) in said.items():
        rows = {
            "message": np.repeat(messages, len(attributes)),
            "attribute": np.tile(np.array(attributes), MESSAGES),
            "value": values[:, : len(attributes)].ravel(),
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
