"""Reading through a filter finds what a plain loop finds, however the log is cut and however little is read at once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.hub.filtered_read import LEAST_COST, read_passing
from headrace.hub.filters import Filter
from headrace.log import Log
from headrace.message import Batch, Message, Run, envelope_rows, map_column, messages
from headrace.wire.sdk.predicate import Equals

TOPICS = ("a", "a/b", "b", "rare")

FILTERS = [
    Filter("a"),
    Filter("rare"),
    Filter("a/**"),
    Filter("missing"),
    Filter(origins=["spp"]),
    Filter("b", ["tube"], {"city": Equals("Praha")}),
    Filter(where={"city": Equals("Brno")}),
    Filter(readable=["a", "b"]),
    Filter("**", denied=["a/*"]),
    Filter(),
]


@st.composite
def appended(draw: st.DrawFn) -> Batch:
    """Messages that share their topic, have one each, or have attributes."""
    count = draw(st.integers(1, 4))
    shared: dict[str, Any] = {"origin": draw(st.sampled_from(["tube", "spp"]))}
    columns = {}
    if draw(st.booleans()):
        shared["topic"] = draw(st.sampled_from(TOPICS))
    else:
        topics = draw(st.lists(st.sampled_from(TOPICS), min_size=count, max_size=count))
        columns["topic"] = pa.array(topics, pa.string())
    if draw(st.booleans()):
        cities = draw(st.lists(st.sampled_from(["Praha", "Brno"]), min_size=count, max_size=count))
        columns["attributes"] = map_column("attributes", [{"city": city} for city in cities])
    own = envelope_rows(columns) if columns else None
    return Batch(Run.of([b"%d" % n for n in range(count)]), columns=own, **shared)


def plainly(log: Log, wanted: Filter) -> list[Message]:
    every = [message for batch in log.scan(1) for message in messages(batch.to_arrow())]
    rows = [batch.to_arrow() for batch in log.scan(1)]
    passing = [flag for each in rows for flag in wanted.mask(each).tolist()]
    return [message for message, passes in zip(every, passing, strict=True) if passes]


@settings(deadline=None, max_examples=25)
@given(
    parts=st.lists(st.lists(appended(), max_size=8), min_size=1, max_size=3),
    max_bytes=st.sampled_from([1, 800, 3000, 1 << 20]),
    room=st.sampled_from([None, 1, 2000]),
    wanted=st.sampled_from(FILTERS),
)
def test_it_finds_what_a_plain_loop_finds(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[list[Batch]],
    max_bytes: int,
    room: int | None,
    wanted: Filter,
) -> None:
    log = Log.open(tmp_path_factory.mktemp("log"), fsync="never")
    for place, part in enumerate(parts):
        for batch in part:
            log.append([batch.numbered(log.tail_op + 1, log.tail + 1, 1, 7)])
            log.commit(log.tail_op)
        if place < len(parts) - 1:
            log.rotate()
            log.seal_next()
    found: list[Message] = []
    at = 1
    while at <= log.head:
        passing = read_passing(log, at, log.head, wanted, max_bytes, room)
        assert passing.upto >= at
        assert passing.cost >= LEAST_COST
        for rows in passing.rows:
            assert rows.num_rows
            found += messages(rows)
        assert not found or found[-1].seq <= passing.upto
        at = passing.upto + 1
    assert found == plainly(log, wanted)
    log.close()
