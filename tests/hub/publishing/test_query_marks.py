"""The marks of queries."""

from __future__ import annotations

import msgspec
import pytest

from headrace.hub.publishing import query_marks
from headrace.hub.publishing.query_marks import MARKS, Marked, Marks, Queries, mark
from headrace.hub.sequencer import Commit
from headrace.hub.state import HubState, entry


def test_only_so_many_queries_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_marks, "MAX_QUERIES", 3)
    queries = Queries()
    for seq, name in enumerate(["a", "b", "c", "a", "d"], 2):
        queries.apply(name, b'{"batch":1,"rows":1}', seq, seq)
    assert list(queries) == ["c", "a", "d"]  # the one not heard of for longest is forgotten
    loaded_queries = Queries()
    loaded_queries.load(queries.dump())
    assert list(loaded_queries) == ["c", "a", "d"]


def test_writes_that_are_no_streams_push_out_each_other_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream may come back after a weekend, in which another query has written a batch every second."""
    monkeypatch.setattr(query_marks, "MAX_QUERIES", 2)
    monkeypatch.setattr(query_marks, "MAX_WRITES", 3)
    queries = Queries()
    names = ["a", *(f"write-{number}" for number in range(9)), "b", "write-6", "write-9"]
    for seq, name in enumerate(names, 2):
        queries.apply(name, b'{"batch":1,"rows":1}', seq, seq)
    assert list(queries) == ["a", "write-8", "b", "write-6", "write-9"]
    queries.apply("c", b'{"batch":1,"rows":1}', 99, 99)
    assert list(queries) == ["write-8", "b", "write-6", "write-9", "c"]
    again = Queries()
    again.load(queries.dump())
    again.apply("write-10", b'{"batch":1,"rows":1}', 100, 100)
    assert list(again) == ["b", "write-6", "write-9", "c", "write-10"]
    monkeypatch.setattr(query_marks, "MAX_WRITES", 1)
    again.load(queries.dump())
    assert list(again) == ["b", "write-9", "c"]


def test_the_last_batches_of_a_query_are_remembered() -> None:
    queries = Queries()
    for batch in range(20):
        queries.apply("q", mark("q", batch, 2, Commit(batch, batch, "me")).run[0], 2 * batch, batch)
    assert queries["q"].client == "me"
    assert [each.batch for each in queries["q"].marks] == list(range(20 - MARKS, 20))
    assert queries["q"].newest == Marked(19, 2, 38, 19, 19)
    again = Queries()
    again.load(queries.dump())
    assert again == queries


@pytest.mark.parametrize("field", ["batch", "rows", "digest", "token"])
def test_a_mark_that_no_snapshot_could_keep_changes_nothing(field: str) -> None:
    queries = Queries()
    state = HubState(queries)
    payload = msgspec.json.encode({"batch": 1, "rows": 0}).decode()
    state.apply(entry("query", "q", payload.encode()).numbered(1, 0, 0, 1))
    wrong = payload[:-1] + f', "{field}": {10**30}}}'
    state.apply(entry("query", "q", wrong.encode()).numbered(2, 0, 0, 1))
    assert state.unread == 1
    assert queries["q"] == Marks("", (Marked(1, 0, 0),))
    assert state.sections()
