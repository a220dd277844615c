from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.history import MAX_SPANS, History
from headrace.errors import MalformedError


def test_a_view_that_wrote_nothing_leaves_no_span() -> None:
    history = History().began(1, 1).began(2, 1).began(5, 1).began(6, 9).began(8, 9)
    assert history == History([(5, 1), (8, 9)])
    assert history.start == 9
    assert History().start == 1


def test_a_shorter_log_has_a_shorter_history() -> None:
    history = History([(1, 1), (3, 5), (4, 8)])
    assert history.upto(7) == history
    assert history.upto(6) == History([(1, 1), (3, 5)])
    assert history.upto(4) == History([(1, 1), (3, 5)])
    assert history.upto(3) == History([(1, 1)])
    assert history.upto(0) == History([(1, 1)])


@pytest.mark.parametrize("spans", [[(1, 0)], [(2, 1), (1, 2)], [(1, 1), (1, 2)], [(1, 5), (2, 4)]])
def test_what_is_none_is_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(MalformedError):
        History(spans)


def test_the_oldest_spans_are_forgotten_and_then_nothing_is_known() -> None:
    long = History()
    for view in range(1, MAX_SPANS + 3):
        long = long.began(view, view)
    assert len(long.spans) == MAX_SPANS
    assert History([(2, 1)]).agreement(5, long, 2_000) is None
    assert History([(MAX_SPANS, 1)]).agreement(5_000, long, 2_000) == MAX_SPANS


@given(st.integers(0, 2**32))
def test_logs_agree_just_as_far_as_their_histories_say(seed: int) -> None:
    """Against the logs themselves: branches of branches, each view started from some log, in order."""
    random = Random(seed)
    logs: list[tuple[History, list[int]]] = [(History(), [])]
    for view in range(1, 12):
        history, log = random.choice(logs)
        tail = random.randint(0, len(log))
        log, history = log[:tail], history.upto(tail).began(view, tail + 1)
        logs.append((history, log + [view] * random.randint(0, 4)))
    (mine, a), (theirs, b) = random.choice(logs[1:]), random.choice(logs[1:])
    cut = random.randint(0, len(a))
    a, mine = a[:cut], mine.upto(cut)
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    assert mine.agreement(len(a), theirs, len(b)) == same
    assert theirs.agreement(len(b), mine, len(a)) == same
