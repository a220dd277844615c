"""Regions, fences and many names of a client, beside as many plain pairs of ranges: the same boxes in every form.

All ways are measured in turn, each time with other messages, so that none has the processor's caches to itself. Of each
the best turn counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import cos, pi, sin

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

import bench
from bench.matching import DOMAIN, MESSAGES, REPEATS, SCANNED, WIDTH, Load, _batch, _name, _ranges
from headrace.matching import Matcher, Matches
from headrace.matching.owners import merge_owners
from headrace.message import Batch
from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import Inside, Predicate
from headrace.wire.sdk.region import Circle, Polygon

NAMES = 100
"""Named subscriptions of one client."""

CORNERS = tuple((1 + cos(side * pi / 3), 1 + sin(side * pi / 3)) for side in range(6))
"""A hexagon in a square whose sides are 2."""

LEAST, GATED = 0.8, ("names", "circles")
"""How fast these must be matched, compared with pairs of ranges."""

Matching = Callable[[Batch], Matches]


def measure(load: Load, quick: bool) -> bench.Table:
    """Measure every form of a load of pairs of ranges."""
    count = len(load.columns["low"])
    table = bench.Table(
        f"audiences, {count:,} subscriptions",
        ("messages/CPU s", "messages/s", "matches/message", "bytes/subscription"),
        note="in turn, each time with other messages; a plane is one pair of attributes, else there are 190",
    )
    ways: dict[str, Matching] = {"two ranges": load.matcher.match}
    matchers = {"two ranges": load.matcher}
    for name, subscriptions in _forms(load).items():
        matchers[name] = matcher = _matcher(subscriptions)
        ways[name] = matcher.match
    named = _matcher(_ranges(load), owner=lambda row: (1 << 40 | row // NAMES).to_bytes(12))
    matchers["names"], ways["names"] = named, lambda batch: merge_owners(named.match(batch))
    turns = list(_turns(load, 1 if quick else REPEATS))
    _check(load, ways, turns[0])
    best = {name: (float("inf"), float("inf"), 0.0) for name in ways}
    for batch in turns[1:]:
        for name, match in ways.items():
            begin, used = time.perf_counter(), time.process_time()
            found = match(batch)
            worked, took = time.process_time() - used, time.perf_counter() - begin
            least = best[name]
            best[name] = min(worked, least[0]), min(took, least[1]), len(found.clients) / MESSAGES
    for name in _ORDER:
        worked, took, mean = best[name]
        plane = name.endswith("of one plane")
        base = "two ranges of one plane" if plane else "two ranges"
        table.add(
            name,
            *(MESSAGES / max(worked, 1e-9), MESSAGES / max(took, 1e-9), mean),
            matchers[name].memory().per_subscription,
            base=None if name == base else base,
            least=LEAST if name in GATED and not quick else None,
        )
    return table


_ORDER = (
    *("two ranges", "names", "circles", "hexagons"),
    *("two ranges of one plane", "circles of one plane", "hexagons of one plane", "fences of one plane"),
)


def _forms(load: Load) -> Mapping[str, Iterable[dict[str, Predicate]]]:
    columns = load.columns
    places = list(zip(columns["low_first"].tolist(), columns["low"].tolist(), strict=True))
    pairs = list(zip(columns["first"].tolist(), columns["second"].tolist(), strict=True))
    one = [(0, 1)] * len(pairs)
    radius = WIDTH / 2

    def inside(
        region: Callable[[float, float], Circle | Polygon], planes: Iterable[tuple[int, int]]
    ) -> Iterator[dict[str, Predicate]]:
        for (x, y), place in zip(planes, places, strict=True):
            yield {_name(x): Inside(_name(y), region(*place))}

    def circle(west: float, south: float) -> Circle:
        return Circle(west + radius, south + radius, radius)

    def hexagon(west: float, south: float) -> Polygon:
        return Polygon(tuple((west + x * radius, south + y * radius) for x, y in CORNERS))

    def fences() -> Iterator[dict[str, Predicate]]:
        for row, place in enumerate(places):
            yield {_name(0): Fence(_name(1), circle(*place), _name(2), ("enter",) if row % 2 else ("exit",))}

    return {
        "circles": inside(circle, pairs),
        "hexagons": inside(hexagon, pairs),
        "two ranges of one plane": (
            dict(zip((_name(0), _name(1)), each.values(), strict=True)) for each in _ranges(load)
        ),
        "circles of one plane": inside(circle, one),
        "hexagons of one plane": inside(hexagon, one),
        "fences of one plane": fences(),
    }


def _matcher(
    subscriptions: Iterable[dict[str, Predicate]], owner: Callable[[int], bytes] = lambda _row: b""
) -> Matcher:
    matcher = Matcher()
    for row, wanted in enumerate(subscriptions):
        matcher.subscribe(row.to_bytes(12), wanted, owner(row) or None)
        if row % 1_000 == 0 and matcher.rebuild_due:
            matcher.rebuild()
    matcher.rebuild(everything=True)
    return matcher


def _turns(load: Load, count: int) -> Iterator[Batch]:
    """A batch of messages for each turn: keys that move about as far as a circle is wide."""
    draw = np.random.default_rng(21)
    numbers = load.numbers.copy()
    places = numbers[:, :2]
    for turn in range(count + 1):
        numbers[:, :2], numbers[:, 2] = places, np.arange(MESSAGES)
        yield replace(_batch(load.kind, load.texts, numbers), first=1 + turn * MESSAGES)
        angles = draw.uniform(0, 2 * np.pi, MESSAGES)
        places = (numbers[:, :2] + WIDTH * np.stack([np.cos(angles), np.sin(angles)], axis=1)) % DOMAIN
        numbers = draw.uniform(0, DOMAIN, numbers.shape)


def _check(load: Load, ways: Mapping[str, Matching], batch: Batch) -> None:
    """Compare what is found in the first messages with a look at every subscription."""
    columns, radius = load.columns, WIDTH / 2
    numbers = load.numbers[:SCANNED].copy()
    numbers[:, 2] = np.arange(SCANNED)
    circles, names = [], []
    for each in numbers:
        across = each[columns["first"]] - columns["low_first"] - radius
        up = each[columns["second"]] - columns["low"] - radius
        boxed: npt.NDArray[np.bool_] = np.maximum(np.abs(across), np.abs(up)) <= radius
        names.append(len(np.unique(np.flatnonzero(boxed) // NAMES)))
        circles.append(int((across * across + up * up <= radius * radius).sum()))
    for name, wanted in (("circles", circles), ("names", names)):
        found = np.diff(ways[name](batch).offsets)[:SCANNED].tolist()
        assert found == wanted, f"numpy and the matcher disagree about {name}"
    # What is first seen inside has entered: half of all circles tell.
    entered = np.diff(ways["fences of one plane"](batch).offsets).sum()
    inside = np.diff(ways["circles of one plane"](batch).offsets).sum()
    assert 0 < entered < inside, "nothing was entered"
