"""A message on one line: for people, for programs, or just its bytes.

JSON is ``{"seq":1,"payload":"…"}``, with the whole envelope where that is known. A payload that is not UTF-8 is base64
under ``payload_base64`` instead, so that every message can be restored exactly. Text shows such a payload as hex, and
control characters as escapes: a message must not move a terminal's cursor.
"""

from __future__ import annotations

import functools
import os
import sys
from base64 import b64encode
from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

from headrace.cli.terminal.output import moment
from headrace.errors import UsageError
from headrace.message import Message

_ENCODER: Final = msgspec.json.Encoder()

# The messages of a batch share their time.
_moment = functools.lru_cache(maxsize=16)(moment)


class LineFormat(Enum):
    """How messages are printed."""

    JSON = "json"
    TEXT = "text"
    COLOUR = "colour"
    """Text on a terminal."""
    RAW = "raw"


def choose_format(*, as_json: bool, text: bool, raw: bool) -> LineFormat:
    """Choose the format that was asked for, else text for a terminal and JSON for a program."""
    if as_json + text + raw > 1:
        raise UsageError("--json, --text and --raw exclude one another")
    if raw:
        return LineFormat.RAW
    if as_json or not (text or sys.stdout.isatty()):
        return LineFormat.JSON
    return LineFormat.COLOUR if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else LineFormat.TEXT


def render(first: int, payloads: Iterable[bytes], form: LineFormat) -> bytes:
    """Render the payloads of messages ``first, first + 1, …``, one per line."""
    match form:
        case LineFormat.RAW:
            rendered = [payload + b"\n" for payload in payloads]
        case LineFormat.JSON:
            rendered = [json_line({"seq": seq}, payload) for seq, payload in enumerate(payloads, first)]
        case LineFormat.TEXT:
            rendered = [
                f"{seq}\t{visible(payload)}\n".encode() for seq, payload in enumerate(payloads, first)
            ]
        case LineFormat.COLOUR:
            rendered = [
                f"\x1b[2m{seq:>8}\x1b[0m  {visible(payload)}\n".encode()
                for seq, payload in enumerate(payloads, first)
            ]
    return b"".join(rendered)


def render_messages(messages: Iterable[Message], form: LineFormat) -> bytes:
    """Render messages with their envelope, one per line."""
    match form:
        case LineFormat.RAW:
            rendered = [message.payload + b"\n" for message in messages]
        case LineFormat.JSON:
            rendered = [envelope_line(message) for message in messages]
        case LineFormat.TEXT:
            rendered = [("\t".join(_columns(message)) + "\n").encode() for message in messages]
        case LineFormat.COLOUR:
            rendered = [_coloured(*_columns(message)).encode() for message in messages]
    return b"".join(rendered)


def envelope_line(message: Message) -> bytes:
    """Render a message with its whole envelope as one line of JSON."""
    facts: dict[str, object] = {
        "seq": message.seq,
        "time": _moment(message.time),
        "origin": message.origin,
        "node": message.node,
        "publisher": message.publisher,
        "number": message.number,
        "topic": message.topic,
        "attributes": message.attributes,
        "numbers": message.numbers,
    }
    return json_line(facts, message.payload)


def json_line(facts: dict[str, object], payload: bytes) -> bytes:
    """Render facts about a message and its payload as one line of JSON.

    >>> json_line({"seq": 1}, b"hello"), json_line({"seq": 2}, bytes([255]))
    (b'{"seq":1,"payload":"hello"}\\n', b'{"seq":2,"payload_base64":"/w=="}\\n')
    """
    try:
        facts["payload"] = payload.decode()
    except UnicodeDecodeError:
        facts["payload_base64"] = b64encode(payload).decode()
    return _ENCODER.encode(facts) + b"\n"


def visible(payload: bytes) -> str:
    """Render a payload on one line, as a person reads it.

    >>> visible(b"two\\nlines"), visible(bytes([255, 0]))
    ('two\\\\nlines', '0xff00')
    """
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "0x" + payload.hex()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _columns(message: Message) -> tuple[str, str, str, str, str]:
    """Return the columns that people see: number, time, origin, topic, payload."""
    time = _moment(message.time) or ""
    return str(message.seq), time, message.origin, visible(message.topic.encode()), visible(message.payload)


def _coloured(seq: str, time: str, origin: str, topic: str, payload: str) -> str:
    return f"\x1b[2m{seq:>8}  {time}  {origin:<9}\x1b[0m \x1b[36m{topic:<16}\x1b[0m {payload}\n"
