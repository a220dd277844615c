"""Messages for people, cut to what is looked at."""

from __future__ import annotations

from base64 import b64decode

import pytest
from tests.web.logs import append

from headrace.hub.state import entry
from headrace.log import Log
from headrace.message import Batch, Message, Run
from headrace.web.api import messages


def test_of_an_empty_log(log: Log) -> None:
    assert messages.one(log, 1) is None
    assert messages.one(log, 0) is None


def test_one(log: Log) -> None:
    kept = entry("holds", "h", b"{}")
    append(log, kept, Batch(Run.of([b"a"]), origin="spp"), kept, Batch(Run.of([b"b"]), origin="spp"), kept)
    second = messages.one(log, 2)
    assert second is not None
    assert second["payload"] == "b"
    assert messages.one(log, 3) is None


def test_text_and_bytes() -> None:
    assert messages.shown(Message(1, "žluť".encode()))["payload"] == "žluť"
    assert b64decode(messages.shown(Message(1, b"\xff\x00"))["payload_base64"]) == b"\xff\x00"


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_cut_through_a_character_is_still_text(limit: int) -> None:
    shown = messages.shown(Message(1, "aěšč€x😀".encode()), limit)
    assert "aěšč€x😀".startswith(shown["payload"])
    assert shown["size"] == len("aěšč€x😀".encode())


def test_infinities_are_words() -> None:
    shown = messages.shown(Message(1, b"", numbers={"a": float("inf"), "b": float("nan"), "c": 1.5}))
    assert shown["numbers"] == {"a": "inf", "b": "nan", "c": 1.5}
