"""The conversion table."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hub.conversion_table import FIELDS, WAYS_IN, WAYS_OUT, By, enters, sees, tables, text_of

from headrace.config import DOORS
from headrace.message import SCHEMA, Message
from headrace.wire.sdk.commands import ClientDecoder, Push, serialize

PAGE = Path(__file__).parents[2] / "docs" / "bridging.md"

IN = {way.name: way for way in WAYS_IN}
OUT = {way.name: way for way in WAYS_OUT}


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

    @given(st.binary())
    def test_an_sdk_client_gets_the_payload_back(self, payload: bytes) -> None:
        seen = sees(OUT["SDK push"], Message(seq=5, payload=payload))
        wire = serialize(Push(5, payload))
        assert list(ClientDecoder().feed(wire)) == [Push(5, payload)]
        text, kind = text_of(payload)
        assert seen == {"seq": 5, "payload": text}
        assert b'"type":%d' % kind in wire
