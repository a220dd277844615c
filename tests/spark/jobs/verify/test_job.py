"""``verify`` finds every fault that was put in, and none that was not."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.spark.jobs.faults import inject, sound
from tests.spark.jobs.rows import frame, rows

from headrace.spark.jobs.verify import differing_blocks, disagreements, verify
from headrace.spark.jobs.verify.findings import MAX_PUBLISHERS, SequenceChecker
from headrace.spark.jobs.verify.segment_scan import NUMBERS, find_segments, join_segments

pytestmark = pytest.mark.spark


def looked_at(log: pa.Table) -> pa.Table:
    """The columns that tasks look at."""
    times = log.column("time").cast(pa.int64())
    return log.select(["seq", "publisher", "number"]).append_column("time", times)


def judged(
    checker: SequenceChecker, *parts: pa.Table, chunk: int = 100_000, joined: bool = False
) -> set[tuple[str, int, int]]:
    made = pa.Table.from_batches(
        batch
        for index, part in enumerate(parts)
        for batch in find_segments(index, looked_at(part).to_batches(chunk))
    )
    if joined:
        ordered = made.sort_by([(name, "ascending") for name in ("publisher", "what", "part", "at")])
        made = pa.Table.from_batches(join_segments(checker.last, ordered.to_batches(7)))
    return {(found.kind, found.first, found.last) for found in checker.check(made)}


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_faults_are_found_however_the_log_is_cut(seed: int, joined: bool) -> None:
    random = Random(seed)
    log, expected = inject(sound(20_000, publishers=7), 40, random)
    edges = sorted(random.sample(range(1, log.num_rows), 12))
    parts = [
        log.slice(begin, end - begin) for begin, end in zip([0, *edges], [*edges, log.num_rows], strict=True)
    ]
    checker = SequenceChecker()
    assert judged(checker, *parts, chunk=random.randrange(100, 5000), joined=joined) == expected
    assert checker.last == 20_000


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_faults_are_found_from_batch_to_batch(seed: int, joined: bool) -> None:
    """A hole that the next micro-batch fills is told as a hole first, then as disorder: nobody knew better."""
    random = Random(seed)
    log, expected = inject(sound(20_000, publishers=7), 30, random)
    checker, found = SequenceChecker(first=1, last=0), set()
    for begin in range(0, log.num_rows, 1500):
        parts = [log.slice(begin + at, 500) for at in (0, 500, 1000)]
        found |= judged(checker, *parts, joined=joined)
    assert found >= {each for each in expected if each[0] in ("hole", "number", "time")}
    late = {each for each in expected if each[0] == "disorder"}
    assert sum(last - first + 1 for kind, first, last in found if kind == "disorder") == sum(
        last - first + 1 for _, first, last in late
    )


def test_what_many_parts_say_of_a_publisher_is_joined_to_one() -> None:
    """However long a log is, the driver gets a segment for each publisher, and what is wrong."""
    log = sound(20_000, publishers=7)
    parts = [looked_at(log.slice(at, 100)) for at in range(0, 20_000, 100)]
    made = pa.Table.from_batches(
        batch for index, part in enumerate(parts) for batch in find_segments(index, part.to_batches())
    )
    ordered = made.sort_by([(name, "ascending") for name in ("publisher", "what", "part", "at")])
    joined = pa.Table.from_batches(join_segments(0, ordered.to_batches(100)))
    assert made["what"].to_pylist().count(NUMBERS) > 1000
    assert joined["what"].to_pylist().count(NUMBERS) == 7


@given(st.lists(st.integers(1, 12), max_size=30), st.lists(st.integers(0, 30), max_size=3))
def test_runs_against_a_plain_model(seqs: list[int], cuts: list[int]) -> None:
    seen: set[int] = set()
    model: set[tuple[str, int]] = set()
    for seq in seqs:
        if seq in seen:
            model.add(("repeat", seq))
        elif seen and seq < max(seen):
            model.add(("disorder", seq))
        seen.add(seq)
    if seen:
        model |= {("hole", seq) for seq in range(min(seen), max(seen)) if seq not in seen}
    log = rows(1, 12).take(pa.array([seq - 1 for seq in seqs], pa.int64()))
    edges = [0, *sorted(min(cut, len(seqs)) for cut in cuts), len(seqs)]
    parts = [log.slice(begin, end - begin) for begin, end in itertools.pairwise(edges)]
    found = judged(SequenceChecker(), *parts)
    assert {(kind, seq) for kind, first, last in found for seq in range(first, last + 1)} == model


def test_evidence_is_a_sentence() -> None:
    log = rows(1, 9, number=[1, 1, 1, 2, 2, 2, 1, 3, 3], publisher=["a", "b", "c"] * 3)
    log = log.take([0, 1, 2, 3, 5, 4, 6, 8, 8])
    segments = pa.Table.from_batches(find_segments(0, looked_at(log).to_batches()))
    assert [
        (found.kind, found.first, found.last, found.publisher, found.evidence)
        for found in SequenceChecker().check(segments)
    ] == [
        ("disorder", 5, 5, "", "after message 6"),
        ("number", 7, 7, "a", "message 7 has number 1, and 4 before it 2"),
        ("hole", 8, 8, "", "message 7 is followed by 9"),
        ("repeat", 9, 9, "", "again after message 9"),
    ]


def test_a_log_that_should_begin_earlier() -> None:
    assert judged(SequenceChecker(first=3, last=2), rows(5, 9)) == {("hole", 3, 4)}
    assert judged(SequenceChecker(), rows(5, 9)) == set()


class Number(int):
    """Counts how often numbers of its kind are compared: what looking for something costs on any machine."""

    compared = 0

    def _counted(self, other: int, result: bool) -> bool:
        Number.compared += 1
        return result

    def __lt__(self, other: int) -> bool:
        return self._counted(other, super().__lt__(other))

    def __le__(self, other: int) -> bool:
        return self._counted(other, super().__le__(other))

    def __gt__(self, other: int) -> bool:
        return self._counted(other, super().__gt__(other))

    def __ge__(self, other: int) -> bool:
        return self._counted(other, super().__ge__(other))


def test_many_holes_do_not_make_what_follows_slow() -> None:
    """2,000 holes are known; each of 500 late messages, and each hole, is not held against all of them."""
    holes = [(Number(at), Number(at)) for at in range(2, 4002, 2)]
    checker = SequenceChecker(first=1, last=4001, holes=holes)
    late = pa.concat_tables([rows(at, at) for at in range(2, 2002, 4)])
    Number.compared = 0
    assert judged(checker, late, rows(4002, 5000)) == {("disorder", at, at) for at in range(2, 2002, 4)}
    assert len(checker.holes) == 1500
    assert Number.compared < 100_000


def test_publishers_are_forgotten_in_time() -> None:
    checker = SequenceChecker()
    judged(checker, sound(MAX_PUBLISHERS + 10, publishers=MAX_PUBLISHERS + 10))
    assert len(checker.numbers) == MAX_PUBLISHERS
    assert "publisher 1" not in checker.numbers
    assert f"publisher {MAX_PUBLISHERS + 9}" in checker.numbers


def test_millions_of_rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two million rows, two hundred faults of all kinds, four partitions: exactly those are found."""
    log, expected = inject(sound(2_000_000), 200, Random(1))
    part = log.num_rows // 4 + 1
    paths = []
    directory = tmp_path_factory.mktemp("log")
    import pyarrow.feather as feather

    for index in range(4):
        paths.append(str(directory / f"{index}.arrow"))
        feather.write_feather(log.slice(index * part, part), paths[-1], compression="lz4")

    def read(batches: Any) -> Any:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                yield from feather.read_table(paths[index]).to_batches(100_000)

    from headrace.spark.source.reader import SPARK_SCHEMA

    frame = spark.range(0, 4, 1, 4).mapInArrow(read, SPARK_SCHEMA)
    found = {(row.kind, row.first, row.last) for row in verify(frame).collect()}
    assert found == expected
    assert {kind for kind, _, _ in expected} == {"hole", "repeat", "disorder", "number", "time"}


def test_logs_that_disagree(spark: SparkSession) -> None:
    ours = rows(1, 9000, attributes=[[("place", "Bern"), ("kind", "x")]] * 9000)
    payloads = ours.column("payload").to_pylist()
    topics = ours.column("topic").to_pylist()
    attributes = [[("kind", "x"), ("place", "Bern")]] * 9000
    payloads[4999] = b"other"
    topics[7000] = "elsewhere"
    payloads[7000] = b""
    attributes[8999] = [("kind", "x"), ("place", "Basel")]
    theirs = rows(1, 9000, payload=payloads, topic=topics, attributes=attributes)
    here, there = frame(spark, ours), frame(spark, theirs)
    assert {row.block for row in differing_blocks(here, there).collect()} == {1, 2} - {0} | {9000 // 4096}
    found = disagreements(here, there).orderBy("seq").collect()
    assert [(row.seq, row.fields) for row in found] == [
        (5000, "payload"),
        (7001, "topic, payload"),
        (9000, "attributes"),
    ]
    assert found[0].evidence == f"payload is 0x{b'message 5000'.hex().upper()} and 0x{b'other'.hex().upper()}"
    assert "Basel" in found[2].evidence


def test_logs_that_agree(spark: SparkSession) -> None:
    here, there = frame(spark, rows(1, 9000)), frame(spark, rows(1, 9000)).repartition(3)
    assert differing_blocks(here, there).count() == 0
    assert disagreements(here, there).count() == 0
