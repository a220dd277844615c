from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.net.server.encoded_cache import Chunk, Recent


def chunk(first: int, last: int, size: int = 1) -> Chunk:
    return Chunk(first, last, bytes(size))


def test_nothing_is_found_in_nothing() -> None:
    recent = Recent(1000)
    assert recent.find(0) is None
    assert recent.find(1) is None


def test_the_chunk_that_holds_a_number() -> None:
    recent = Recent(1000)
    chunks = [chunk(5, 9), chunk(10, 10), chunk(11, 20)]
    for each in chunks:
        recent.add(each)
    assert [recent.find(seq) for seq in (4, 21)] == [None, None]
    for each in chunks:
        for seq in range(each.first, each.last + 1):
            assert recent.find(seq) is each


def test_a_hole_forgets_what_was_before_it() -> None:
    recent = Recent(1000)
    recent.add(chunk(1, 5))
    recent.add(chunk(7, 9))
    assert recent.find(5) is None
    assert recent.find(7) == chunk(7, 9)


def test_cleared() -> None:
    recent = Recent(1000)
    recent.add(chunk(1, 5))
    recent.clear()
    assert recent.find(5) is None
    recent.add(chunk(9, 9))
    assert recent.find(9) == chunk(9, 9)


def test_one_chunk_past_the_bound_is_kept_alone() -> None:
    # It was just encoded for all who are waiting for it.
    recent = Recent(1000)
    recent.add(chunk(1, 1, 10))
    recent.add(chunk(2, 2, 10_000))
    assert recent.find(1) is None
    assert recent.find(2) == chunk(2, 2, 10_000)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 600)), max_size=60), st.integers(1, 20_000))
def test_always_the_newest_without_a_hole_and_within_the_bound(
    added: list[tuple[int, int]], most: int
) -> None:
    recent = Recent(most)
    chunks: list[Chunk] = []
    following = 1
    for count, size in added:
        chunks.append(chunk(following, following + count - 1, size))
        recent.add(chunks[-1])
        following += count
        held = [each for each in chunks if recent.find(each.first) is not None]
        assert held == chunks[len(chunks) - len(held) :]
        assert len(held) >= 1
        assert sum(len(each.data) for each in held) <= most or len(held) == 1
        assert recent.find(following) is None
