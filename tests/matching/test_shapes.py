"""Regions in a large index: whatever their shape, and whatever else is asked, what a plain loop finds."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from tests.matching import naive
from tests.matching.drawn import batch_of
from tests.matching.test_index import TEXTS

from headrace.matching import Matcher, warm
from headrace.matching.index import shapes
from headrace.matching.index.segment import Segment
from headrace.message import Batch
from headrace.wire.sdk.fence import EVENTS, Fence
from headrace.wire.sdk.predicate import Between, Equals, In, Inside, Predicate
from headrace.wire.sdk.region import Circle, Polygon, Region

PLACES = [0.0, -0.0, 10.0, 10.0, 10.5, 20.0, float("nan"), float("inf"), -1e308, 1e150]
Draw = Callable[[random.Random], Mapping[str, Predicate]]


def region(draw: random.Random) -> Region:
    """Circles and polygons of every kind: points, lines, stars, ears that touch, and some as large as can be."""
    x, y = draw.choice([10.0, draw.uniform(0, 20)]), draw.choice([10.0, draw.uniform(0, 20)])
    if draw.random() < 0.4:
        return Circle(x, y, draw.choice([0.0, 5e-324, 0.5, 10.0, draw.uniform(0, 8), 1e150]))
    count = draw.choice([3, 4, 5, 9, 40])
    kind = draw.randrange(4)
    if kind == 0:
        return Polygon(((x, y),) * count)
    if kind == 1:
        return Polygon(tuple((x + step, y) for step in range(count)))
    corners = [(draw.choice([0.0, 10.0, 20.0]), draw.uniform(0, 20)) for _ in range(count)]
    if kind == 2:
        corners[0] = draw.choice([(1e150, -1e150), corners[-1]])
    return Polygon(tuple(corners))


def one_plane(draw: random.Random) -> Mapping[str, Predicate]:
    return {"x": Inside("y", region(draw))}


def many_planes(draw: random.Random) -> Mapping[str, Predicate]:
    return {draw.choice("xyz"): Inside(draw.choice("xyz"), region(draw))}


def with_a_key(draw: random.Random) -> Mapping[str, Predicate]:
    key = draw.choice([Equals("v1"), Equals("v2"), In(("v1", "v3", 7.0))])
    return {draw.choice(TEXTS[:2]): key, "x": Inside("y", region(draw))}


def with_a_range(draw: random.Random) -> Mapping[str, Predicate]:
    return {"z": Between(0, draw.uniform(0, 20)), "x": Inside("y", region(draw))}


def everything(draw: random.Random) -> Mapping[str, Predicate]:
    return draw.choice([one_plane, many_planes, with_a_key, with_a_range, _ranges])(draw)


def _ranges(draw: random.Random) -> Mapping[str, Predicate]:
    low = draw.uniform(0, 20)
    return {"x": Between(low, low + 1), "y": Between(0, low)}


def _batch(draw: random.Random, count: int, first: int = 1) -> Batch:
    said = []
    for _ in range(count):
        texts = {name: f"v{draw.randrange(4)}" for name in TEXTS[:2] if draw.random() < 0.8}
        numbers = {
            name: draw.choice([draw.choice(PLACES), draw.uniform(0, 20)])
            for name in "xyz"
            if draw.random() < 0.95
        }
        said.append((texts, numbers, b"", ("", "", "")))
    return batch_of(said)


def _indexed(matcher: Matcher) -> Segment:
    matcher.rebuild(everything=True)
    (segment,) = matcher._view.segments
    return segment


@pytest.mark.parametrize("kind", [one_plane, many_planes, with_a_key, with_a_range, everything])
def test_an_index_of_regions_finds_what_a_plain_loop_finds(kind: Draw) -> None:
    warm()
    draw = random.Random(f"shapes {kind.__name__}")
    matcher, asked = Matcher(seed=4), {number.to_bytes(12): kind(draw) for number in range(1500)}
    for client, predicates in asked.items():
        matcher.subscribe(client, predicates)
    segment = _indexed(matcher)
    assert (len(segment.shapes) > 0) == (kind is not with_a_range)
    batch = _batch(draw, 40)
    matches = matcher.match(batch)
    wanted = [
        sorted(client for client, each in asked.items() if naive.matches(each, message)) for message in batch
    ]
    assert [sorted(matches[row]) for row in range(len(batch))] == wanted
    assert sum(map(len, wanted)) > 100
    assert {client: matcher.predicates(client) for client in asked} == asked


def test_an_index_of_fences_finds_what_a_plain_loop_finds() -> None:
    """On one plane, for two kinds of keys, as the same keys come again and again to the same places."""
    warm()
    draw = random.Random("fences")
    matcher, asked = Matcher(seed=4, window=12), dict[bytes, Fence]()
    for number in range(900):
        fence = Fence("y", region(draw), draw.choice(TEXTS[:2]), (draw.choice(EVENTS),), draw.randrange(8))
        asked[number.to_bytes(12)] = fence
        matcher.subscribe(number.to_bytes(12), {"x": fence})
    segment = _indexed(matcher)
    assert (segment.shape[:, 0] >= 0).all()
    batch = _batch(draw, 40)
    messages = list(batch)
    matches = matcher.match(batch)
    wanted = [
        sorted(
            client
            for client, fence in asked.items()
            if naive.event(fence, "x", messages[:row], message, 12) == fence.events[0]
        )
        for row, message in enumerate(messages)
    ]
    assert [sorted(matches[row]) for row in range(len(batch))] == wanted
    assert sum(map(len, wanted)) > 100


def test_shapes_are_made_by_plain_python_as_by_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    warm()

    def made() -> Segment:
        draw = random.Random("plain")
        matcher = Matcher(seed=4)
        for number in range(200):
            matcher.subscribe(number.to_bytes(12), everything(draw))
        return _indexed(matcher)

    compiled = made()
    for name in ("count_numbers", "write_shapes"):
        monkeypatch.setattr(shapes, name, getattr(shapes, name)._plain)
    plain = made()
    for column in ("shape", "shapes", "planes"):
        assert np.array_equal(getattr(compiled, column), getattr(plain, column), equal_nan=True)
    assert len(plain.planes) > 3


def test_a_key_of_many_values_does_not_multiply_its_region() -> None:
    """Each value is an entry of the index; all of them share one shape."""
    matcher = Matcher(seed=4)
    corners = tuple((float(number % 7), float(number)) for number in range(256))
    predicates: dict[str, Predicate] = {
        "t0": In(tuple(f"v{number}" for number in range(16))),
        "x": Inside("y", Polygon(corners)),
    }
    matcher.subscribe(bytes(12), predicates)
    segment = _indexed(matcher)
    assert len(segment.entry) == 16
    assert len(segment.shapes) == shapes.BEFORE_REGION + 512
