"""A kernel that is not compiled is plain Python, and finds the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tests.matching.drawn import Said, batch_of
from tests.matching.test_index import NUMBERS, TEXTS, everything

from headrace.matching import kernels, message_columns, warm
from headrace.matching.index.build import build
from headrace.matching.index.merging import living
from headrace.matching.index.segment import Segment
from headrace.matching.index.tail import Tail
from headrace.wire.sdk.predicate import Between, Predicate

SEED = np.uint64(12)


def _segment(rows: int, asked: Callable[[random.Random], Mapping[str, Predicate]] = everything) -> Segment:
    draw = random.Random("kernels")
    tail = Tail(SEED, rows)
    for number in range(rows):
        tail.append(number.to_bytes(12), asked(draw))
    return build([tail.segment()], [living(tail.segment())], SEED)


def test_match_in_plain_python() -> None:
    segment = _segment(400)
    segment.died[7] = 3
    draw = random.Random("messages")
    said = [
        (
            {name: draw.choice(["v1", "v5", f"v{draw.randrange(60)}"]) for name in TEXTS},
            {name: draw.choice([7.0, draw.uniform(0, 1000)]) for name in NUMBERS},
            b"",
            ("", "", ""),
        )
        for _ in range(12)
    ]
    _find_the_same(segment, said)


def test_many_messages_walk_a_tree_in_plain_python() -> None:
    """More nodes wait than eight bits can count."""

    def boxes(draw: random.Random) -> dict[str, Predicate]:
        x, y = draw.uniform(0, 500), draw.uniform(0, 500)
        return {"x": Between(x, x + 500), "y": Between(y, y + 500)}

    draw = random.Random("messages")
    said = [({}, {name: draw.uniform(0, 1000) for name in "xy"}, b"", ("", "", "")) for _ in range(250)]
    _find_the_same(_segment(1_000, boxes), said)


def _find_the_same(segment: Segment, said: Sequence[Said]) -> None:
    read, attributes = message_columns.read(batch_of(said), [segment], SEED, json_attributes=False)
    results = []
    warm()
    for match in (kernels.match.compiled, kernels.match.py_func):  # type: ignore[attr-defined]
        rows, counts = np.empty(100_000, np.int32), np.empty(len(said), np.int32)
        with np.errstate(over="ignore"):
            end, used = match(segment, read, attributes[0], SEED, 5, 0, len(said), rows, counts)
        assert end == len(said)
        results.append((counts.tolist(), rows[:used].tolist()))
    assert results[0] == results[1]
    assert sum(results[0][0]) > 10


def test_match_stops_before_what_does_not_fit() -> None:
    segment = _segment(400)
    said = [({"t0": "v1"}, dict.fromkeys(NUMBERS, 7.0), b"", ("", "", ""))] * 9
    read, attributes = message_columns.read(batch_of(said), [segment], SEED, json_attributes=False)
    counts = np.empty(9, np.int32)
    rows = np.empty(10_000, np.int32)
    _, whole = kernels.match(segment, read, attributes[0], SEED, 5, 0, 9, rows, counts)
    each = whole // 9
    assert each > 1
    for room, stopped in ((0, 0), (each - 1, 0), (each, 1), (4 * each, 4), (4 * each + 1, 4), (9 * each, 9)):
        end, used = kernels.match(
            segment, read, attributes[0], SEED, 5, 0, 9, np.empty(room, np.int32), counts
        )
        assert end <= stopped
        assert used == end * each
        assert end > 0 or stopped == 0
