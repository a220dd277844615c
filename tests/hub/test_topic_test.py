"""Topic tests: what a reader asks for, of what it may read."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.topic_test import TopicTest

topics = st.sampled_from(["", "a", "a/b", "a/b/c", "b", "b/c", "a\nb", "ü"])
patterns = st.sampled_from(["a", "a/*", "a/**", "**", "*", "b/c", "**/c", "nothing"])


@given(
    st.none() | patterns,
    st.none() | st.lists(patterns, max_size=3),
    st.lists(patterns, max_size=2),
    st.lists(topics, max_size=8),
)
def test_a_topic_is_allowed_if_it_is_asked_for_and_readable(
    asked: str | None, readable: list[str] | None, denied: list[str], given_topics: list[str]
) -> None:
    test = TopicTest(asked, readable, denied)

    def expected(topic: str) -> bool:
        wanted = asked is None or TopicTest(asked).allows(topic)
        if any(TopicTest(each).allows(topic) for each in denied):
            return False
        return wanted and (readable is None or any(TopicTest(each).allows(topic) for each in readable))

    allowed = [expected(topic) for topic in given_topics]
    assert test.mask(pa.array(given_topics, pa.string())).tolist() == allowed
    assert [test.allows(topic) for topic in given_topics] == allowed
    if test.everything:
        assert all(allowed)
    if test.names is not None:
        assert [topic in test.names for topic in given_topics] == allowed


def test_equal_tests_are_one() -> None:
    assert TopicTest("a", ["x", "y"]) == TopicTest("a", ["y", "x", "x"])
    assert len({TopicTest("a"), TopicTest("a"), TopicTest("b"), TopicTest("a", ["a"])}) == 3


def test_who_may_read_nothing_gets_nothing() -> None:
    assert TopicTest(None, []).names == frozenset()
    assert not TopicTest("**", []).allows("a")


def test_exact_topics_are_known_even_under_patterns_of_rights() -> None:
    assert TopicTest("a/b", ["a/*"]).names == frozenset({"a/b"})
    assert TopicTest("a/*", ["a/b", "c"]).names == frozenset({"a/b"})
    assert TopicTest("a/*").names is None
    assert TopicTest(None, ["a", "b"], ["b"]).names == frozenset({"a"})
