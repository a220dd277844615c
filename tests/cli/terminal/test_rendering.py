from __future__ import annotations

import doctest
import json
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.terminal import help_text, output, positions, rendering
from headrace.cli.terminal.rendering import LineFormat, json_line, render, render_messages, visible
from headrace.cli.use import pub
from headrace.message import Message

payloads = st.lists(st.binary(max_size=40) | st.text(max_size=20).map(str.encode), max_size=5)


@given(payloads)
def test_json_gives_every_payload_back(messages: list[bytes]) -> None:
    lines = render(7, messages, LineFormat.JSON).decode().splitlines()
    facts = [json.loads(line) for line in lines]
    assert [fact["seq"] for fact in facts] == list(range(7, 7 + len(messages)))
    back = [
        fact["payload"].encode() if "payload" in fact else b64decode(fact["payload_base64"]) for fact in facts
    ]
    assert back == messages


def test_json_prefers_text() -> None:
    assert json_line({"seq": 1}, "grüße".encode()) == '{"seq":1,"payload":"grüße"}\n'.encode()
    assert json_line({"seq": 2}, b"\xff") == b'{"seq":2,"payload_base64":"/w=="}\n'


@given(payloads)
def test_text_is_one_printable_line_each(messages: list[bytes]) -> None:
    lines = render(1, messages, LineFormat.TEXT).decode().split("\n")
    assert len(lines) == len(messages) + 1
    for line in lines[:-1]:
        seq, _, shown = line.partition("\t")
        assert seq.isdigit()
        assert shown.isprintable()


def test_a_payload_cannot_move_the_cursor() -> None:
    assert visible(b"\x1b[2J\r\n\x07") == r"\x1b[2J\r\n\x07"
    assert visible("\u202etxt".encode()) == r"\u202etxt"


def test_raw_is_the_bytes() -> None:
    assert render(1, [b"\xff\x00", b"", b"x"], LineFormat.RAW) == b"\xff\x00\n\nx\n"


def test_colour_marks_the_number() -> None:
    assert render(12, [b"hello"], LineFormat.COLOUR) == b"\x1b[2m      12\x1b[0m  hello\n"


WHOLE = Message(seq=7, payload=b"a\tb", time=1_700_000_000_000_001, origin="tube", topic="t\x1b[2J")


@pytest.mark.parametrize(
    ("form", "line"),
    [
        (LineFormat.RAW, b"a\tb\n"),
        (LineFormat.TEXT, b"7\t2023-11-14T22:13:20.000001Z\ttube\tt\\x1b[2J\ta\\tb\n"),
        (
            LineFormat.JSON,
            (
                b'{"seq":7,"time":"2023-11-14T22:13:20.000001Z","origin":"tube","node":0,"publisher":"",'
                b'"number":null,"topic":"t\\u001b[2J","attributes":{},"numbers":{},"payload":"a\\tb"}\n'
            ),
        ),
    ],
)
def test_a_message_with_its_envelope(form: LineFormat, line: bytes) -> None:
    assert render_messages([WHOLE], form) == line


def test_colours_keep_a_topic_in_its_place() -> None:
    shown = render_messages([WHOLE], LineFormat.COLOUR).decode()
    assert shown.startswith("\x1b[2m       7  2023-11-14T22:13:20.000001Z  tube ")
    assert "\\x1b[2J" in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize(
    "module", [help_text, output, positions, pub, rendering], ids=lambda module: module.__name__
)
def test_docstrings(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted
    assert not results.failed
