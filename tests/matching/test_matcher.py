"""The matcher against a plain loop: every kind of predicate, and every order of changes."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.matching import naive
from tests.matching.drawn import batch_of, clients, messages, subscriptions

from headrace.errors import LimitError, MalformedError, UsageError
from headrace.matching import Matcher
from headrace.message import Batch, Run
from headrace.wire.sdk.predicate import Between, Equals, Predicate


def expected(
    asked: Mapping[bytes, Mapping[str, Predicate]], batch: Batch, *, json_attributes: bool = False
) -> list[list[bytes]]:
    return [
        sorted(
            c for c, each in asked.items() if naive.matches(each, message, json_attributes=json_attributes)
        )
        for message in batch
    ]


def found(matcher: Matcher, batch: Batch) -> list[list[bytes]]:
    matches = matcher.match(batch)
    return [sorted(matches[index]) for index in range(len(batch))]


@given(
    st.dictionaries(clients, subscriptions, max_size=31),
    st.lists(messages, min_size=1, max_size=8).map(batch_of),
    st.booleans(),
    st.booleans(),
)
def test_it_finds_what_a_plain_loop_finds(
    asked: dict[bytes, Mapping[str, Predicate]], batch: Batch, indexed: bool, json_attributes: bool
) -> None:
    matcher = Matcher(json_attributes=json_attributes, seed=1)
    for client, each in asked.items():
        matcher.subscribe(client, each)
    if indexed:
        matcher.rebuild(everything=True)
    assert len(matcher) == len(asked)
    wanted = expected(asked, batch, json_attributes=json_attributes)
    assert found(matcher, batch) == wanted
    for client, each in asked.items():
        assert client in matcher
        assert matcher.predicates(client) == each
        alone = matcher.matches(client, batch)
        assert alone.tolist() == [client in some for some in wanted]


class Changes(RuleBasedStateMachine):
    """Subscriptions come, change, go and are indexed in any order; after each step, all is as a dictionary has it."""

    def __init__(self) -> None:
        super().__init__()
        self.matcher = Matcher(seed=2)
        self.asked: dict[bytes, Mapping[str, Predicate]] = {}

    @rule(client=clients, predicates=subscriptions)
    def subscribe(self, client: bytes, predicates: Mapping[str, Predicate]) -> None:
        self.matcher.subscribe(client, predicates)
        self.asked[client] = predicates

    @rule(some=st.dictionaries(clients, subscriptions, min_size=5, max_size=20))
    def subscribe_many(self, some: dict[bytes, Mapping[str, Predicate]]) -> None:
        for client, predicates in some.items():
            self.subscribe(client, predicates)

    @rule(client=clients, empty=st.booleans())
    def withdraw(self, client: bytes, empty: bool) -> None:
        had = self.asked.pop(client, None) is not None
        if empty:
            self.matcher.subscribe(client, {})
        else:
            assert self.matcher.withdraw(client) == had

    @rule()
    def index_what_is_new(self) -> None:
        with self.matcher._changing:
            self.matcher._index_tail()

    @rule()
    def rebuild(self) -> None:
        self.matcher.rebuild()

    @rule()
    def rebuild_everything(self) -> None:
        assert self.matcher.rebuild(everything=True)
        assert len(self.matcher._view.segments) <= 1

    @rule(batch=st.lists(messages, min_size=1, max_size=4).map(batch_of), most=st.integers(1, 20))
    def match(self, batch: Batch, most: int) -> None:
        wanted = expected(self.asked, batch)
        assert found(self.matcher, batch) == wanted
        at = 0
        for begin, piece in self.matcher.pieces(batch, most):
            assert begin == at
            assert len(piece.clients) <= most or len(piece) == 1
            assert [sorted(piece[index]) for index in range(len(piece))] == wanted[begin : begin + len(piece)]
            at += len(piece)
        assert at == len(batch)

    @rule(client=clients)
    def ask(self, client: bytes) -> None:
        assert (client in self.matcher) == (client in self.asked)
        assert self.matcher.predicates(client) == self.asked.get(client)

    @rule()
    def carry_over(self) -> None:
        table = self.matcher.table()
        assert sorted(table.column("client").to_pylist()) == sorted(self.asked)
        other = Matcher(seed=3)
        other.load(table)
        assert {client: other.predicates(client) for client in self.asked} == self.asked
        assert len(other) == len(self.asked)

    @invariant()
    def counts(self) -> None:
        assert len(self.matcher) == len(self.asked)


TestChanges = Changes.TestCase
TestChanges.settings = settings(stateful_step_count=30)


def _one(**said: str) -> Batch:
    return batch_of([(said, {}, b"", ("", "", ""))])


def test_limits() -> None:
    matcher = Matcher(max_subscriptions=2, max_predicates=3)
    asked = {"a": Equals("x")}
    matcher.subscribe(b"a" * 12, asked)
    matcher.subscribe(b"b" * 12, asked)
    with pytest.raises(LimitError, match="subscriptions 3 is over the limit: 2"):
        matcher.subscribe(b"c" * 12, asked)
    matcher.subscribe(b"b" * 12, {"a": Equals("y")})
    assert matcher.withdraw(b"a" * 12)
    matcher.subscribe(b"c" * 12, asked)
    with pytest.raises(LimitError, match="4 is over the limit: 3"):
        matcher.subscribe(b"b" * 12, {name: Equals("x") for name in "abcd"})
    assert matcher.predicates(b"b" * 12) == {"a": Equals("y")}
    assert found(matcher, _one(a="x")) == [[b"c" * 12]]


def test_what_a_client_could_not_say_is_refused() -> None:
    matcher = Matcher()
    with pytest.raises(UsageError, match="11 bytes"):
        matcher.subscribe(b"a" * 11, {"a": Equals("x")})
    with pytest.raises(UsageError, match="13 bytes"):
        matcher.withdraw(b"a" * 13)
    for bad in (Between(1, 0), Between(float("nan"), 0), Between(0, float("inf")), Between(float("-inf"), 0)):
        with pytest.raises(MalformedError):
            matcher.subscribe(b"a" * 12, {"a": bad})
    with pytest.raises(UsageError, match="UTF-8"):
        matcher.subscribe(b"a" * 12, {"a": Equals("\ud800")})
    with pytest.raises(UsageError, match="UTF-8"):
        matcher.subscribe(b"a" * 12, {"\ud800": Between(0, 1)})
    assert len(matcher) == 0
    assert b"a" * 11 not in matcher
    assert matcher.predicates(b"a" * 12) is None
    matcher.subscribe(b"a" * 12, {"a": Between(-1e308, 1e308)})
    assert matcher.predicates(b"a" * 12) == {"a": Between(-1e308, 1e308)}


def test_without_subscriptions_nobody_is_found() -> None:
    matcher = Matcher()
    batch = _one(a="x")
    assert len(matcher.match(batch)) == 1
    assert found(matcher, batch) == [[]]
    assert not matcher.matches(b"a" * 12, batch).any()
    assert not matcher.rebuild_due
    assert not matcher.rebuild()
    assert matcher.table().num_rows == 0
    assert matcher.memory() == (0, 0)
    matcher.subscribe(b"a" * 12, {"a": Equals("x")})
    matcher.withdraw(b"a" * 12)
    matcher.rebuild(everything=True)
    assert found(matcher, batch) == [[]]


def test_rows_are_matched_wherever_they_lie() -> None:
    matcher = Matcher()
    matcher.subscribe(b"a" * 12, {"topic": Equals("x"), "a": Equals("y")})
    matcher.subscribe(b"b" * 12, {"n": Between(2, 3)})
    said = [
        ({"a": "y" if i % 2 else "z"}, {"n": float(i)}, b"p", ("x" if i > 2 else "", "spp", ""))
        for i in range(6)
    ]
    whole = batch_of(said)
    wanted = [[], [], [b"b" * 12], [b"a" * 12, b"b" * 12], [], [b"a" * 12]]
    assert found(matcher, whole) == wanted
    assert found(matcher, whole.slice(2, 5)) == wanted[2:5]
    rows = whole.to_arrow()
    matches = matcher.match_rows(rows.slice(3, 3))
    assert [sorted(matches[index]) for index in range(3)] == wanted[3:]
    large = rows.set_column(6, "topic", rows.column("topic").cast(pa.large_string()))
    assert len(matcher.match_rows(large).clients) == len(matcher.match_rows(rows).clients) == 4
    assert len(matcher.match_rows(rows.slice(0, 0))) == 0
    shared = Batch(
        whole.run, topic="x", origin="spp", columns=whole.columns.select(["attributes", "numbers"])
    )  # type: ignore[union-attr]
    assert found(matcher, shared)[1] == [b"a" * 12]
    with pytest.raises(IndexError):
        matches[3]


def test_a_null_value_is_not_said() -> None:
    matcher = Matcher()
    matcher.subscribe(b"a" * 12, {"a": Equals("x")})
    kind = pa.map_(pa.string(), pa.string())
    columns = pa.RecordBatch.from_arrays(
        [pa.array([[("a", "x"), ("a", None)], [("a", None)]], kind)], ["attributes"]
    )
    assert found(matcher, Batch(Run.of([b"", b""]), columns=columns)) == [[b"a" * 12], []]


def test_a_message_for_everybody_comes_in_bounded_pieces() -> None:
    matcher = Matcher()
    for number in range(3000):
        matcher.subscribe(number.to_bytes(12), {"size": Between(0, 1e6)})
    batch = batch_of([({}, {}, b"x", ("", "", ""))] * 50)
    pieces = list(matcher.pieces(batch, most=7000))
    assert [len(piece.clients) for _, piece in pieces] == [6000] * 25
    assert [begin for begin, _ in pieces] == list(range(0, 50, 2))
    assert len(matcher.match(batch).clients) == 150_000
    assert [len(piece) for _, piece in matcher.pieces(batch, most=10)] == [1] * 50


def test_segments_stay_few_without_a_rebuild_and_fewer_with_one() -> None:
    matcher = Matcher(seed=10)
    for number in range(20_000):
        matcher.subscribe(number.to_bytes(12), {"a": Equals(str(number % 100))})
    assert len(matcher._view.segments) < 12
    due = 0
    while matcher.rebuild_due:
        assert matcher.rebuild()
        due += 1
        assert due < 10
    assert len(matcher._view.segments) < 5
    for number in range(15_000):
        matcher.withdraw(number.to_bytes(12))
    assert matcher.rebuild_due, "most rows are dead"
    assert matcher.rebuild()
    assert sum(segment.rows for segment in matcher._view.segments) < 6100
    assert len(matcher.match(_one(a="7")).clients) == 50
