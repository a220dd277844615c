"""The index of topics: reading with it is reading without it, whatever has happened to it, and far less is read."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.log.content import columns

from headrace.hub.topic_test import TopicTest
from headrace.log import Log, tail
from headrace.log.damage.repair import repair
from headrace.log.damage.verify import Progress, verify
from headrace.log.sealed import sealing
from headrace.log.sealed.segment import SealedSegment
from headrace.log.topics import segment_topics, tail_topics
from headrace.message import Batch, Run

TOPICS = ("", "a", "a/b", "a/b/c", "b", "ü/x", "rare")
CHOICES = [
    *(TopicTest(topic) for topic in (*TOPICS, "missing")),
    TopicTest("a/**"),
    TopicTest("*"),
    TopicTest("**"),
]

appends = st.lists(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=4), max_size=12)
"""The topics of the messages of some batches; a batch whose messages differ has them as a column."""


def append(log: Log, topics: Sequence[str]) -> None:
    payloads = Run.of([f"{log.tail + 1 + place}".encode() for place in range(len(topics))])
    own = columns(topic=list(topics)) if len(set(topics)) > 1 else None
    log.append([Batch(payloads, first=log.tail + 1, origin="tube", topic=topics[0], columns=own)])
    log.commit(log.tail_op)


def seal(log: Log) -> None:
    log.rotate()
    while log.seal_next():
        pass


def found(log: Log, choice: TopicTest, max_bytes: int = 1 << 20, first: int = 1) -> list[int]:
    """The messages of a choice, found by the index."""
    seqs: list[int] = []
    at = first
    while at <= log.head:
        part = log.find(at, None, choice, max_bytes)
        assert part.upto >= at
        for batch in part.batches:
            assert at <= batch.first
            assert batch.last <= part.upto
            rows = batch.to_arrow()
            seqs += rows.filter(pa.array(choice.mask(rows.column("topic")))).column("seq").to_pylist()
        at = part.upto + 1
    return seqs


def expected(log: Log, choice: TopicTest, first: int = 1) -> list[int]:
    """The messages of a choice, found by reading all."""
    return [message.seq for batch in log.scan(first) for message in batch if choice.allows(message.topic)]


def check(log: Log, max_bytes: int = 1 << 20, first: int = 1) -> None:
    for choice in CHOICES:
        assert found(log, choice, max_bytes, first) == expected(log, choice, first), choice.key


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(
    parts=st.lists(appends, min_size=1, max_size=3),
    rows=st.integers(1, 6),
    few=st.booleans(),
    max_bytes=st.sampled_from([1, 1000, 1 << 20]),
    start=st.integers(1, 20),
)
def test_reading_with_the_index_is_reading_without(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[list[list[str]]],
    rows: int,
    few: bool,
    max_bytes: int,
    start: int,
) -> None:
    """Whether there is room for the names or not, before and after a restart, in sealed segments and in the tail."""
    room = 3 if few else 1 << 16
    with (
        mock.patch.object(sealing, "ROWS", rows),
        mock.patch.object(segment_topics, "MAX_NAMES", room),
        mock.patch.object(tail_topics, "MAX_NUMBERS", room),
        mock.patch.object(tail, "FIND_FRAMES", rows),
    ):
        log = Log.open(tmp_path_factory.mktemp("log"))
        for place, part in enumerate(parts):
            for topics in part:
                append(log, topics)
            if place < len(parts) - 1:
                seal(log)
        check(log, max_bytes, start)
        # What readers have learned of the tail is right too.
        check(log, max_bytes)
        log.close()
        log = Log.open(log.directory)
        check(log, max_bytes, start)
        check(log)
        log.close()
        assert all(isinstance(each, Progress) for each in verify(log.directory))


@pytest.fixture
def written(tmp_path: Path) -> Log:
    """A log of two sealed segments and a tail, with a topic that is rare in each."""
    log = Log.open(tmp_path)
    for _ in range(3):
        for number in range(100):
            append(log, ["rare" if number == 50 else f"a/{number % 7}"] * 20)
        if log.head < 6000:
            seal(log)
    return log


def segment_of(log: Log, place: int = 0) -> SealedSegment:
    segment = log.segments[place]
    assert isinstance(segment, SealedSegment)
    return segment


def test_little_is_read_of_what_is_skipped(written: Log) -> None:
    rare, cost, at = TopicTest("rare"), 0, 1
    messages: list[Batch] = []
    while at <= written.head:
        part = written.find(at, None, rare)
        messages += part.batches
        cost, at = cost + part.cost, part.upto + 1
    assert [(batch.first, len(batch)) for batch in messages] == [(1001, 20), (3001, 20), (5001, 20)]
    assert written.find(1, None, TopicTest("missing")).cost == 0
    written.close()


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "gone", "another", "foreign"])
def test_an_index_that_cannot_be_used_is_not_used_and_written_anew(written: Log, harm: str) -> None:
    path = segment_of(written).topics_path
    good, other = path.read_bytes(), segment_of(written, 1).topics_path.read_bytes()
    written.close()
    match harm:
        case "flip":
            middle = len(good) // 2
            path.write_bytes(good[:middle] + bytes([good[middle] ^ 4]) + good[middle + 1 :])
        case "cut":
            path.write_bytes(good[:-9])
        case "empty":
            path.write_bytes(b"")
        case "gone":
            path.unlink()
        case "another":
            path.write_bytes(other)
        case _:
            path.write_bytes(b"this is no index at all" * 10)
    problems = [each for each in verify(written.directory) if not isinstance(each, Progress)]
    if harm == "gone":
        assert problems == []
    else:
        [problem] = problems
        assert str(path) in str(problem)
        assert "no message is in doubt" in str(problem)
    log = Log.open(written.directory)
    check(log)
    assert segment_of(log).topics_wanted
    assert log.index_next() is segment_of(log)
    assert path.read_bytes() == good
    assert log.index_next() is None
    check(log)
    assert log.find(1, None, TopicTest("missing")).cost == 0
    log.close()


def test_a_damaged_segment_is_not_indexed_and_holds_up_no_other(written: Log) -> None:
    first, second = segment_of(written), segment_of(written, 1)
    for segment in (first, second):
        segment.topics_path.unlink()
        segment.topics_wanted = True
    middle = first.index.file_size // 2
    with first.path.open("r+b") as file:
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 1]))
    assert written.index_next() is second
    assert written.index_next() is None
    assert not first.topics_path.exists()
    written.close()


def test_repair_sets_a_bad_index_aside(written: Log) -> None:
    path = segment_of(written).topics_path
    written.close()
    path.write_bytes(b"bad")
    report = repair(written.directory)
    assert (report.lost, report.first, report.last) == ((), 1, 6000)
    assert report.aside is not None
    assert (report.aside / path.name).read_bytes() == b"bad"
    assert all(isinstance(each, Progress) for each in verify(written.directory))


def test_it_goes_with_its_segment(written: Log) -> None:
    path = segment_of(written).topics_path
    written.write_snapshot(written.head_op, written.head, {})
    written.retain(0, retain_bytes=written.size - 1, retain_us=None, holds={})
    assert written.first > 1
    assert not path.exists()
    assert found(written, TopicTest("rare"), first=written.first)
    written.close()


def test_one_that_is_left_alone_is_removed(written: Log) -> None:
    alone = written.directory / f"{77777:016d}.topics"
    written.close()
    alone.write_bytes(b"left by a crash")
    Log.open(written.directory).close()
    assert not alone.exists()


def test_a_million_topics_have_hashes_of_bounded_size() -> None:
    builder = segment_topics.TopicIndexBuilder()
    chance, names = random.Random(5), iter(range(1 << 20))
    batches = [[f"topic/{next(names)}" for _ in range(10_000)] for _ in range(20)]
    for topics in batches:
        builder.add(pa.array(topics, pa.string()))
    table = np.zeros(20, [("count", "<u4")])
    table["count"] = 10_000
    data = builder.finish(table)
    assert len(data) < 20 * 10_000 * 2 + 10_000
    index = segment_topics.TopicIndex(data, table["count"])
    vain = 0
    for number, topics in enumerate(batches):
        chosen = index.chosen(TopicTest(chance.choice(topics)))
        assert chosen is not None
        assert number in chosen.numbers
        vain += len(chosen.numbers) - 1
    assert vain <= 5
    assert index.chosen(TopicTest("topic/*")) is None
    none = index.chosen(TopicTest("missing"))
    assert none is not None
    assert len(none.numbers) <= 1


def test_searches_beside_appends_and_sealing_miss_nothing(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never", segment_bytes=20_000)
    faults: list[str] = []
    over = threading.Event()

    def search() -> None:
        while not over.is_set():
            head = log.head
            seen = [seq for seq in found(log, TopicTest("rare")) if seq <= head]
            if seen != list(range(10, head + 1, 10)):
                faults.append(f"{seen[-5:]} up to {head}")

    def seal_all() -> None:
        while not over.is_set():
            log.seal_next()

    threads = [threading.Thread(target=search) for _ in range(2)] + [threading.Thread(target=seal_all)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 1501):
            topic = "rare" if number % 10 == 0 else f"often/{number % 3}"
            append(log, [topic])
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert faults == []
    assert any(isinstance(segment, SealedSegment) for segment in log.segments)
    log.close()


def test_the_tail_learns_only_what_there_is_room_for() -> None:
    topics = tail_topics.TailTopics()
    numbers = {topics.number("x" * 60_000 + str(each)) for each in range(200)}
    assert tail_topics.UNKNOWN in numbers
    assert len(numbers) < 100
