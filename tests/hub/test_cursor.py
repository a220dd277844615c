"""The cursor over the log and its cache, without a log: each message comes once, whatever happens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DamagedError, TrimmedError
from headrace.hub.cursor import Cursor, EncodedCache, EncodedChunk, Lost, RequestedRange, Step
from headrace.message import Batch, Run


def chunk(first: int, last: int, size: int = 1) -> EncodedChunk:
    return EncodedChunk(first, last, bytes(size))


def cache(max_bytes: int, max_chunks: int = 1 << 30) -> EncodedCache[EncodedChunk]:
    return EncodedCache(encoded, max_bytes=max_bytes, max_chunks=max_chunks)


def encoded(batches: Sequence[Batch]) -> EncodedChunk | None:
    if any(payload == b"too long" for batch in batches for payload in batch.run):
        return None
    return EncodedChunk(batches[0].first, batches[-1].last, b"".join(b"".join(each.run) for each in batches))


def batch(first: int, *payloads: bytes) -> Batch:
    return Batch(Run.of(list(payloads)), origin="test", first=first)


def test_nothing_is_found_in_nothing() -> None:
    kept = cache(1000)
    assert kept.find(0) is None
    assert kept.find(1) is None


def test_the_chunk_that_holds_a_number() -> None:
    kept = cache(1000)
    chunks = [chunk(5, 9), chunk(10, 10), chunk(11, 20)]
    for each in chunks:
        kept.add(each)
    assert [kept.find(seq) for seq in (4, 21)] == [None, None]
    for each in chunks:
        for seq in range(each.first, each.last + 1):
            assert kept.find(seq) is each


def test_a_hole_forgets_what_was_before_it() -> None:
    kept = cache(1000)
    kept.add(chunk(1, 5))
    kept.add(chunk(7, 9))
    assert kept.find(5) is None
    assert kept.find(7) == chunk(7, 9)


def test_cleared() -> None:
    kept = cache(1000)
    kept.add(chunk(1, 5))
    kept.clear()
    assert kept.find(5) is None
    kept.add(chunk(9, 9))
    assert kept.find(9) == chunk(9, 9)


def test_one_chunk_past_the_bound_is_kept_alone() -> None:
    # It was just encoded for all who are waiting for it.
    kept = cache(1000)
    kept.add(chunk(1, 1, 10))
    kept.add(chunk(2, 2, 10_000))
    assert kept.find(1) is None
    assert kept.find(2) == chunk(2, 2, 10_000)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 600)), max_size=60), st.integers(1, 20_000))
def test_always_the_newest_without_a_hole_and_within_the_bound(
    added: list[tuple[int, int]], most: int
) -> None:
    kept = cache(most)
    chunks: list[EncodedChunk] = []
    following = 1
    for count, size in added:
        chunks.append(chunk(following, following + count - 1, size))
        kept.add(chunks[-1])
        following += count
        held = [each for each in chunks if kept.find(each.first) is not None]
        assert held == chunks[len(chunks) - len(held) :]
        assert len(held) >= 1
        assert sum(len(each.data) for each in held) <= most or len(held) == 1
        assert kept.find(following) is None


def test_no_more_chunks_than_it_may_have() -> None:
    kept = cache(1 << 20, max_chunks=3)
    for seq in range(1, 8):
        kept.add(chunk(seq, seq))
    assert [seq for seq in range(1, 8) if kept.find(seq)] == [5, 6, 7]


def test_batches_committed_together_are_one_chunk_unless_they_are_long() -> None:
    kept = cache(1 << 30)
    kept.encode([batch(1, b"a", b"b"), batch(3, b"c")])
    assert kept.find(2) == EncodedChunk(1, 3, b"abc")
    long = bytes(600_000)
    kept.encode([batch(4, long), batch(5, long), batch(6, long)])
    found = [kept.find(seq) for seq in (4, 5, 6)]
    assert [each and (each.first, each.last) for each in found] == [(4, 5), (4, 5), (6, 6)]


def test_what_is_not_encoded_leaves_no_hole() -> None:
    kept = cache(1 << 20)
    kept.encode([batch(1, b"a")])
    kept.encode([batch(2, b"too long")])
    assert kept.find(1) is None
    kept.encode([batch(3, b"c")])
    assert kept.find(3) == EncodedChunk(3, 3, b"c")


def test_discarded_once_every_reader_is_past_it() -> None:
    kept = cache(1 << 20)
    for first in (1, 3, 5):
        kept.add(chunk(first, first + 1))
    kept.discard(5)
    assert [seq for seq in range(1, 7) if kept.find(seq)] == [5, 6]
    kept.discard(6)
    kept.add(chunk(9, 9))
    assert kept.find(9) is not None


WAIT: Step[EncodedChunk] = Step(None, None)


class TestCursor:
    def test_at_the_head_it_waits(self) -> None:
        cursor = Cursor(5, cache(1000).find)
        assert cursor.step(4) == WAIT
        assert cursor.behind(4) == 0

    def test_a_chunk_that_is_at_hand_stays_ready_until_it_is_taken(self) -> None:
        kept = cache(1000)
        kept.add(chunk(1, 3))
        cursor = Cursor(1, kept.find)
        assert cursor.step(3) == Step(chunk(1, 3), None)
        kept.clear()
        assert cursor.step(3) == Step(chunk(1, 3), None)
        cursor.advance()
        assert cursor.next == 4
        assert cursor.step(3) == WAIT

    def test_it_expects_the_next_message_only_if_nothing_comes_before_it(self) -> None:
        cursor = Cursor(5, cache(1000).find)
        assert cursor.expects(5)
        assert not cursor.expects(4)
        assert not cursor.expects(6)
        cursor.ranges.append(RequestedRange(1, 2))
        assert not cursor.expects(5)
        cursor.step(4)
        cursor.ranges.clear()
        assert not cursor.expects(5)  # A read is under way,
        cursor.was_read(chunk(1, 2))
        assert not cursor.expects(5)  # and what it brought is to be taken first.
        cursor.close()
        assert not cursor.expects(5)

    def test_one_read_at_a_time(self) -> None:
        cursor = Cursor(1, cache(1000).find)
        assert cursor.step(9) == Step(None, (1, 9))
        assert cursor.reading
        assert cursor.step(9) == WAIT
        cursor.was_read(chunk(1, 4))
        assert cursor.step(9) == Step(chunk(1, 4), None)
        cursor.advance()
        assert cursor.step(9) == Step(None, (5, 9))

    def test_reading_ahead(self) -> None:
        cursor = Cursor(1, cache(1000).find, read_ahead=True)
        cursor.step(9)
        cursor.was_read(chunk(1, 4))
        assert cursor.step(9) == Step(chunk(1, 4), (5, 9))
        assert cursor.step(9) == Step(chunk(1, 4), None)

    def test_it_ends_where_it_was_told_to(self) -> None:
        cursor = Cursor(3, cache(1000).find, last=4)
        assert cursor.step(9) == Step(None, (3, 4))
        cursor.was_read(chunk(3, 4))
        cursor.step(9)
        cursor.advance()
        assert cursor.step(9) == WAIT

    def test_from_the_middle_of_a_chunk_the_log_has_the_rest(self) -> None:
        kept = cache(1000)
        kept.add(chunk(1, 6))
        kept.add(chunk(7, 9))
        assert Cursor(4, kept.find).step(9) == Step(None, (4, 6))

    def test_what_retention_removed_from_a_range_is_passed_over(self) -> None:
        cursor = Cursor[EncodedChunk]()
        cursor.ranges.append(RequestedRange(2, 8))
        assert cursor.step(9) == Step(None, (2, 8))
        assert cursor.read_failed(TrimmedError(2, 8, 5)) == Lost(2, 4, ended=False)
        assert cursor.step(9) == Step(None, (5, 8))

    @pytest.mark.parametrize("error", [TrimmedError(2, 9, 5), DamagedError("0001.arrow", 7, 2, 9, "torn")])
    def test_in_the_sequence_itself_it_ends_the_cursor(self, error: TrimmedError | DamagedError) -> None:
        cursor = Cursor[EncodedChunk](2)
        cursor.step(9)
        assert cursor.read_failed(error) == Lost(2, 9, ended=True)
        assert cursor.closed
        assert cursor.step(9) == WAIT

    def test_skipping_ahead(self) -> None:
        cursor = Cursor[EncodedChunk](3)
        assert cursor.behind(9) == 7
        assert cursor.skip_to(8) == (3, 7)
        assert (cursor.next, cursor.behind(9)) == (8, 2)
