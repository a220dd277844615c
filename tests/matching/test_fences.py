"""Fences against a plain loop: the same events whatever the batches are, and wherever matching begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.matching import naive
from tests.matching.drawn import Said, batch_of, clients, fences, messages, of_one_attribute

from headrace.errors import MalformedError, UsageError
from headrace.matching import Matcher, tracks
from headrace.matching import sightings as tables
from headrace.message import Batch, Message, Run, column_type, envelope_rows, map_column
from headrace.wire.numba_kernels import load
from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import Predicate, split_events
from headrace.wire.sdk.region import MAX_VERTICES, Circle, Polygon

CIRCLE = Circle(0, 0, 5)
IN, OUT = (1.0, 1.0), (9.0, 9.0)
ALL = ("enter", "inside", "exit")

drawn = st.tuples(fences, st.none() | of_one_attribute).map(
    lambda each: {"b" if each[0].y != "b" else "c": each[0], **({} if each[1] is None else {"d": each[1]})}
)


def sightings(*places: tuple[str | float, tuple[float, float]], first: int = 1, topic: str = "") -> Batch:
    """A batch of messages of a key, at a place."""
    columns = {
        "attributes": map_column(
            "attributes", [{"key": key} if isinstance(key, str) else {} for key, _ in places]
        ),
        "numbers": map_column(
            "numbers",
            [{"x": x, "y": y, **({} if isinstance(key, str) else {"key": key})} for key, (x, y) in places],
        ),
    }
    return Batch(Run.of([b""] * len(places)), first=first, topic=topic, columns=envelope_rows(columns))


def fenced(*events: str, region: Circle | Polygon = CIRCLE, **options: int) -> Matcher:
    """A matcher with a fence for each event, whose client is the event's place in the list."""
    matcher = Matcher(seed=3, **options)
    for place, each in enumerate(split_events(({"x": Fence("y", region, "key", events)},))):
        matcher.subscribe(place.to_bytes(12), each)
    return matcher


def events(matcher: Matcher, batch: Batch) -> list[str]:
    found = matcher.match(batch)
    return ["+".join(ALL[int.from_bytes(each)] for each in found[row]) for row in range(len(batch))]


def whole(said: Sequence[Said]) -> tuple[Batch, list[Message]]:
    batch = batch_of(said)
    return batch, list(batch)


@given(
    st.dictionaries(clients, drawn, min_size=1, max_size=8),
    st.lists(messages, min_size=1, max_size=12),
    st.integers(1, 8),
    st.lists(st.integers(1, 11), max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_the_events_are_those_of_a_plain_loop(
    asked: dict[bytes, Mapping[str, Predicate]],
    said: Sequence[Said],
    window: int,
    cuts: list[int],
    random: object,
    indexed: bool,
) -> None:
    """In order without a log, or in any order with one to read: as after a restart, and for clients that are behind."""
    batch, every = whole(said)

    def wanted(client: bytes, row: int) -> bool:
        ((x, fence),) = ((name, each) for name, each in asked[client].items() if isinstance(each, Fence))
        others = {name: each for name, each in asked[client].items() if not isinstance(each, Fence)}
        happened = naive.event(fence, x, every[:row], every[row], window) == fence.events[0]
        return happened and naive.matches(others, every[row])

    expected = [sorted(client for client in asked if wanted(client, row)) for row in range(len(every))]
    edges = sorted({0, len(every), *(cut for cut in cuts if cut < len(every))})
    chunks = list(pairwise(edges))

    def read(first: int, last: int) -> Iterator[Batch]:
        for seq in range(first, last + 1):
            yield batch.slice(seq - 1, seq)

    in_order, anywhere = Matcher(seed=1, window=window), Matcher(seed=2, window=window, read=read)
    shuffled = chunks * 2
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for matcher, order in ((in_order, chunks), (anywhere, shuffled)):
        for client, each in asked.items():
            matcher.subscribe(client, each)
            assert matcher.predicates(client) == each
        if indexed:
            matcher.rebuild(everything=True)
            assert all(matcher.predicates(client) == each for client, each in asked.items())
        for begin, end in order:
            some = batch.slice(begin, end)
            found = matcher.match(some)
            assert [sorted(found[row]) for row in range(end - begin)] == expected[begin:end]
            for client in asked:
                alone = matcher.matches(client, some)
                assert alone.tolist() == [client in each for each in expected[begin:end]]


def test_a_first_sighting_inside_is_an_enter_and_each_message_is_one_event() -> None:
    matcher = fenced(*ALL)
    batch = sightings(("a", IN), ("b", OUT), ("a", IN), ("b", IN), ("a", OUT), ("a", OUT), ("b", OUT))
    assert events(matcher, batch) == ["enter", "", "inside", "enter", "exit", "", "exit"]


def test_a_key_that_was_not_seen_for_a_window_is_forgotten() -> None:
    matcher = fenced(*ALL, window=3)
    assert events(matcher, sightings(("a", IN), ("b", IN), ("b", IN), ("a", IN))) == [
        "enter", "enter", "inside", "inside",
    ]  # fmt: skip
    quiet = sightings(("b", IN), ("b", IN), ("b", IN), ("a", OUT), first=5)
    assert events(matcher, quiet) == ["inside", "inside", "inside", ""]


def test_a_text_and_a_number_are_different_keys_and_so_are_topics() -> None:
    matcher = fenced("enter")
    assert events(matcher, sightings(("7", IN), (7.0, IN), (-0.0, IN), (0.0, IN))) == ["enter"] * 3 + [""]
    assert events(matcher, sightings(("7", IN), first=5, topic="elsewhere")) == ["enter"]
    assert events(matcher, sightings(("7", IN), first=6)) == [""]


@pytest.mark.parametrize("place", [(math.nan, 1.0), (1.0, math.nan)])
def test_what_has_no_place_is_no_sighting(place: tuple[float, float]) -> None:
    matcher = fenced(*ALL)
    assert events(matcher, sightings(("a", IN), ("a", place), ("a", IN))) == ["enter", "", "inside"]
    assert events(matcher, sightings((math.nan, IN), (math.nan, IN), first=4)) == ["", ""]


def test_infinity_is_outside() -> None:
    far = (math.inf, -math.inf)
    assert events(fenced(*ALL), sightings(("a", IN), ("a", far), ("a", IN))) == ["enter", "exit", "enter"]


def test_nobody_can_publish_what_was_previous() -> None:
    """The attributes under which the matcher has the previous sighting are its own, whatever a message says."""
    fence = Fence("y", CIRCLE, "key", ("exit",))
    forged = dict(zip(fence.track("x").names, (*IN, 1.0), strict=True))
    columns = {
        "attributes": map_column("attributes", [{"key": "a"}]),
        "numbers": map_column("numbers", [{"x": 9.0, "y": 9.0, **forged}]),
    }
    batch = Batch(Run.of([b""]), first=1, columns=envelope_rows(columns))
    assert events(fenced("exit"), batch) == [""]


def test_a_polygon_of_the_most_vertices() -> None:
    angles = [2 * math.pi * n / MAX_VERTICES for n in range(MAX_VERTICES)]
    region = Polygon(tuple((5 * math.cos(angle), 5 * math.sin(angle)) for angle in angles))
    matcher = fenced(*ALL, region=region)
    assert events(matcher, sightings(("a", OUT), ("a", IN), ("a", OUT))) == ["", "enter", "exit"]


def test_a_million_keys_and_long_ones_take_bounded_memory() -> None:
    """What is kept of a key does not depend on its length, and of a million keys those of the window."""
    matcher, count = fenced("enter", window=4096), 65_536
    names = pa.array(["key", "x", "y"] * count)
    for first in range(1, 1_000_000, count):
        values = np.ones((count, 3))
        values[:, 0] = np.arange(first, first + count)
        maps = pa.MapArray.from_arrays(np.arange(0, 3 * count + 1, 3, dtype=np.int32), names, values.ravel())
        rows = envelope_rows({"numbers": maps.cast(column_type("numbers"))})
        batch = Batch(Run.of([b""] * count), first=first, columns=rows)
        assert len(matcher.match(batch).clients) == count
    assert matcher.memory().total < 16 << 20
    long = "k" * (64 << 10)
    many = [(f"{n}{long}", IN) for n in range(32)]
    assert events(matcher, sightings(*many, first=2_000_000)) == ["enter"] * 32
    assert events(matcher, sightings(*many, first=2_000_032)) == [""] * 32
    assert matcher.memory().total < 16 << 20


def test_plain_python_finds_what_compiled_code_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it must until the kernels are compiled; with enough keys that the table grows."""
    draw = np.random.default_rng(7)
    keys = [f"k{n}" if n % 2 else float(-n) for n in draw.integers(0, 1500, 3000).tolist()]
    places = [(x, y) for x, y in draw.uniform(-9, 9, (3000, 2)).tolist()]
    batch = sightings(*zip(keys, places, strict=True))
    load("headrace.matching.sightings")
    compiled = events(fenced(*ALL, window=1000), batch)
    for name in ("find_facts", "follow", "refill"):
        monkeypatch.setattr(tables, name, getattr(tables, name)._plain)
    assert events(fenced(*ALL, window=1000), batch) == compiled
    assert {*compiled} == {"", *ALL}


def test_a_track_lasts_as_long_as_its_fences() -> None:
    matcher = fenced("enter", "exit")
    assert events(matcher, sightings(("a", IN))) == ["enter"]
    kept = matcher.memory().total
    matcher.withdraw(bytes(12))
    assert events(matcher, sightings(("a", OUT), first=2)) == [
        "inside"
    ]  # The second client's event is an exit.
    matcher.subscribe((1).to_bytes(12), {"x": Fence("y", CIRCLE, "other", ("enter",))})
    assert events(matcher, sightings(("a", IN), first=3)) == [""]
    matcher.withdraw((1).to_bytes(12))
    assert matcher.memory().total < kept


def test_a_try_is_not_a_sighting() -> None:
    """The dashboard's question who would get a message leaves no trace."""
    matcher = fenced(*ALL)
    events(matcher, sightings(("a", IN)))
    ((_, tried),) = matcher.pieces(sightings(("a", OUT), first=2), record=False)
    assert tried[0] == [(2).to_bytes(12)]
    assert events(matcher, sightings(("a", IN), first=2)) == ["inside"]


def test_what_cannot_be_matched_is_refused() -> None:
    fence = Fence("y", CIRCLE, "key")
    with pytest.raises(UsageError, match="one event"):
        Matcher().subscribe(bytes(12), {"x": fence})
    two = {"x": fence, "y": Fence("x", CIRCLE, "key")}
    with pytest.raises(MalformedError, match="at most one"):
        split_events((two,))


class Journal:
    """A log of sightings, which counts how much of it is read."""

    def __init__(self, count: int) -> None:
        self.batch = sightings(*((f"taxi {seq % 7}", (IN, OUT)[seq // 7 % 2]) for seq in range(count)))
        self.messages_read = 0
        self.meanwhile: list[Callable[[], None]] = []

    def read(self, first: int, last: int) -> Iterator[Batch]:
        for act in self.meanwhile:
            act()
        self.messages_read += last - first + 1
        for seq in range(first, last + 1, 16):
            yield self.batch.slice(seq - 1, min(seq + 15, last))

    def part(self, first: int, last: int) -> Batch:
        return self.batch.slice(first - 1, last)


def test_clients_that_come_back_to_a_hub_started_again_share_what_is_read() -> None:
    journal, window = Journal(1000), 200
    expected = events(fenced(*ALL, window=window), journal.batch)
    again = fenced(*ALL, window=window, read=journal.read)
    assert events(again, journal.part(901, 950)) == expected[900:950]
    for first in (880, 790, 870, 760, 899, 755, 940, 801):
        # Each reads on a little at a time, as the others do.
        for at in range(first, first + 20, 10):
            assert events(again, journal.part(at, at + 9)) == expected[at - 1 : at + 9]
    # One window for what is live, and two at most for everybody else.
    assert journal.messages_read <= 3 * window
    # Whoever is further behind than that is served all the same, and leaves what is live alone.
    assert events(again, journal.part(401, 450)) == expected[400:450]
    read = journal.messages_read
    assert events(again, journal.part(951, 1000)) == expected[950:]
    assert journal.messages_read == read


def test_a_fence_that_comes_while_the_log_is_read_has_all_it_needs() -> None:
    journal = Journal(100)
    newest = Fence("y", CIRCLE, "key", ("exit",), after=90)
    oldest = replace(newest, after=10)
    matcher = Matcher(seed=3, read=journal.read)
    matcher.subscribe(bytes(12), {"x": newest})
    journal.meanwhile.append(lambda: matcher.subscribe(b"another one.", {"x": oldest}))
    matcher.match(journal.part(93, 93))
    journal.meanwhile.clear()
    alone = Matcher(seed=3, read=journal.read)
    alone.subscribe(b"another one.", {"x": oldest})
    rest = journal.part(94, 100)
    assert matcher.matches(b"another one.", rest).any()
    assert list(matcher.matches(b"another one.", rest)) == list(alone.matches(b"another one.", rest))


def test_a_large_table_is_not_made_anew_on_the_event_loop() -> None:
    matcher = fenced("enter", read=lambda _first, _last: iter(()))
    slots, at, waits = 0, 1, []
    while slots <= 2 * tracks.MOST_AT_HAND:
        batch = sightings(*((f"key {seq}", IN) for seq in range(at, at + 1000)), first=at)
        at_hand, before = matcher.at_hand(batch), slots
        matcher.match(batch)
        assert matcher._tracks is not None
        slots = len(matcher._tracks._trails["key", "x", "y"][0]._table.keys)
        if slots != before:
            waits.append((before > tracks.MOST_AT_HAND, not at_hand))
        at += 1000
    assert all(large == elsewhere for large, elsewhere in waits)
    assert (True, True) in waits
