"""The conversion table, and what the backbone shows of what the log holds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hub.conversion_table import FIELDS, WAYS_IN, WAYS_OUT, By, enters, sees, tables, text_of

from headrace.config import DOORS
from headrace.hub.conversion import backbone_run, entries
from headrace.message import NOT_A_MESSAGE, SCHEMA, Batch, Message, Run, merge
from headrace.wire.sdk.commands import ClientDecoder, Push, serialize

PAGE = Path(__file__).parents[2] / "docs" / "bridging.md"

IN = {way.name: way for way in WAYS_IN}
OUT = {way.name: way for way in WAYS_OUT}


def message(*payloads: bytes, first: int = 1, origin: str = "fyrehose") -> Batch:
    return Batch(Run.of(payloads), first=first, origin=origin, topic="a/b")


def mixed(*rows: tuple[str, bytes], first: int = 1) -> Batch:
    """A batch whose rows have origins of their own, as sealed segments have them."""
    batches = [message(payload, first=first + at, origin=origin) for at, (origin, payload) in enumerate(rows)]
    return Batch.over(merge(batches))


def test_messages_pass_as_they_are() -> None:
    batch = message(b"a", b"", b"ccc")
    assert backbone_run(batch) is batch.run
    assert list(entries(batch)) == []


def test_a_batch_of_entries_is_hollow() -> None:
    batch = message(b"secret", b"state", origin=NOT_A_MESSAGE, first=7)
    assert list(backbone_run(batch)) == [b"", b""]
    assert [(each.seq, each.topic, each.payload) for each in entries(batch)] == [
        (7, "a/b", b"secret"),
        (8, "a/b", b"state"),
    ]


def test_entries_among_messages() -> None:
    batch = mixed(
        ("spp", b"one"), (NOT_A_MESSAGE, b"two"), ("tube", b""), (NOT_A_MESSAGE, b""), ("spp", b"five")
    )
    assert list(backbone_run(batch)) == [b"one", b"", b"", b"", b"five"]
    assert [(each.seq, each.payload) for each in entries(batch)] == [(2, b"two"), (4, b"")]


def test_a_part_of_a_batch() -> None:
    # A slice shares its parent's buffer, and so does not begin at its offset 0.
    batch = mixed(("spp", b"one"), (NOT_A_MESSAGE, b"two"), ("tube", b"three")).slice(1, 3)
    assert list(backbone_run(batch)) == [b"", b"three"]
    whole = message(b"one", b"two", b"three", origin=NOT_A_MESSAGE).slice(1, 3)
    assert list(backbone_run(whole)) == [b"", b""]
    assert [each.seq for each in entries(whole)] == [2, 3]


def test_columns_without_an_origin() -> None:
    topics = pa.record_batch({"topic": pa.array(["x", "y"])})
    batch = Batch(Run.of([b"a", b"b"]), first=1, origin=NOT_A_MESSAGE, columns=topics)
    assert list(backbone_run(batch)) == [b"", b""]
    assert [each.topic for each in entries(batch)] == ["x", "y"]


@pytest.mark.parametrize("origin", ["", "logs", "Log", "fyrehose"])
def test_only_the_one_origin_is_no_message(origin: str) -> None:
    assert list(backbone_run(message(b"a", origin=origin))) == [b"a"]


@given(
    st.lists(st.tuples(st.sampled_from(["spp", NOT_A_MESSAGE, "tube"]), st.binary(max_size=9)), min_size=1),
    st.data(),
)
def test_whatever_is_mixed(rows: list[tuple[str, bytes]], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(begin + 1, len(rows)))
    batch = mixed(*rows).slice(begin, end)
    part = rows[begin:end]
    assert list(backbone_run(batch)) == [
        b"" if origin == NOT_A_MESSAGE else payload for origin, payload in part
    ]
    assert [(each.seq, each.payload) for each in entries(batch)] == [
        (seq, payload) for seq, (origin, payload) in enumerate(part, begin + 1) if origin == NOT_A_MESSAGE
    ]


class TestTable:
    def test_the_page_shows_it(self) -> None:
        assert tables() in PAGE.read_text(), (
            "put the output of `python -c 'from tests.hub.conversion_table import tables; print(tables())'` there"
        )

    def test_every_way_says_something_of_every_field(self) -> None:
        for way in (*WAYS_IN, *WAYS_OUT):
            assert tuple(way.fields) == FIELDS == tuple(SCHEMA.names), way.name
            assert way.door in (*DOORS, ""), way.name

    def test_the_hub_numbers_and_stamps_whatever_comes(self) -> None:
        for way in WAYS_IN:
            filled = {name for name, each in way.fields.items() if each.by is By.HUB}
            assert filled == {"seq", "time", "node"}, way.name

    def test_a_publisher_that_says_nothing(self) -> None:
        nothing = {"topic": "", "attributes": {}, "numbers": {}, "payload": b"", "number": None}
        peer = "10.0.0.1:4"
        origins = {way.name: enters(way, {}, peer) for way in WAYS_IN}
        assert origins["link `publish`"] == {**nothing, "origin": "tube", "publisher": peer}
        assert origins["SPP PUBLISH"] == {**nothing, "origin": "spp", "publisher": peer}
        spark = enters(IN["Spark sink (`stage`, `commit`)"], {"publisher": "query"}, peer)
        assert spark == {**nothing, "origin": "spark", "publisher": "query"}

    def test_what_a_protocol_has_no_place_for_is_not_said(self) -> None:
        said = {"topic": "t", "attributes": {"a": "b"}, "payload": b"x", "origin": "spark", "number": 7}
        assert enters(IN["fyrehose PUSH, TCP"], said, "p") == {
            "origin": "fyrehose",
            "publisher": "p",
            "number": None,
            "topic": "",
            "attributes": {},
            "numbers": {},
            "payload": b"x",
        }
        assert enters(IN["link `publish`"], said, "p") == {**said, "publisher": "p", "numbers": {}}

    @pytest.mark.parametrize(("transport", "most"), [("UDP", 65_498), ("TCP", 65_526)])
    def test_what_is_too_long_for_the_backbone_is_hollow(self, transport: str, most: int) -> None:
        way = OUT[f"fyrehose DELIVER, {transport}"]
        assert sees(way, Message(seq=3, payload=bytes(most))) == {"seq": 3, "payload": bytes(most)}
        assert sees(way, Message(seq=3, payload=bytes(most + 1))) == {"seq": 3, "payload": b""}

    def test_entries_that_are_no_messages(self) -> None:
        entry = Message(seq=9, payload=b"{}", origin=NOT_A_MESSAGE, topic="service/a")
        assert sees(OUT["fyrehose DELIVER, UDP"], entry) == {"seq": 9, "payload": b""}
        assert sees(OUT["SPP update"], entry) is None
        assert sees(OUT["SDK push"], entry) is None
        read = sees(OUT["link `read`, `follow`"], entry)
        assert read is not None
        assert (read["origin"], read["topic"], read["payload"]) == (NOT_A_MESSAGE, "service/a", b"{}")

    @given(st.binary())
    def test_an_sdk_client_gets_the_payload_back(self, payload: bytes) -> None:
        seen = sees(OUT["SDK push"], Message(seq=5, payload=payload))
        wire = serialize(Push(5, payload))
        assert list(ClientDecoder().feed(wire)) == [Push(5, payload)]
        text, kind = text_of(payload)
        assert seen == {"seq": 5, "payload": text}
        assert b'"type":%d' % kind in wire
