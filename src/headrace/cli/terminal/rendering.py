"""A message on one line: for people, for programs, or just its bytes.

JSON is ``{"seq":1,"payload":"…"}``, with the whole envelope where that is known. A payload that is not UTF-8 is base64
under ``payload_base64`` instead, so that every message can be restored exactly. Text shows such a payload as hex, and
control characters as escapes: a message must not move a terminal's cursor.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from base64 import b64encode
from collections.abc import AsyncIterable, Iterable
from enum import Enum
from typing import Final

import msgspec
import pyarrow as pa
from rich.cells import cell_len, set_cell_size

from headrace.cli.terminal.output import moment, size
from headrace.cli.terminal.pipes import PipeWriter
from headrace.errors import UsageError
from headrace.message import Message, messages

_ENCODER: Final = msgspec.json.Encoder()

_LEAST: Final = 16
"""Columns that a payload gets in any case; if there are fewer, the terminal folds the line."""

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


def line_width(*, full: bool) -> int | None:
    """Return the columns to cut lines to: those of the terminal, which may be resized at any time, if there is one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() and not full else None


async def print_rows(
    output: PipeWriter,
    found: AsyncIterable[pa.RecordBatch],
    form: LineFormat,
    *,
    count: int | None,
    full: bool,
) -> None:
    """Print messages, a line each, until ``count`` of them are."""
    left = sys.maxsize if count is None else count
    async for rows in found:
        some = rows.slice(0, left)
        await output.write(render_messages(messages(some), form, line_width(full=full)))
        left -= some.num_rows
        if not left:
            break


def render(first: int, payloads: Iterable[bytes], form: LineFormat, width: int | None = None) -> bytes:
    """Render the payloads of messages ``first, first + 1, …``, one per line; text is cut to a ``width``, if any."""
    match form:
        case LineFormat.RAW:
            rendered = [payload + b"\n" for payload in payloads]
        case LineFormat.JSON:
            rendered = [json_line({"seq": seq}, payload) for seq, payload in enumerate(payloads, first)]
        case LineFormat.TEXT:
            rendered = [_line(f"{seq}\t", payload, width) for seq, payload in enumerate(payloads, first)]
        case LineFormat.COLOUR:
            rendered = [
                _line(f"{seq:>8}  ", payload, width, f"\x1b[2m{seq:>8}\x1b[0m  ")
                for seq, payload in enumerate(payloads, first)
            ]
    return b"".join(rendered)


def render_messages(messages: Iterable[Message], form: LineFormat, width: int | None = None) -> bytes:
    """Render messages with their envelope, one per line; text is cut to a ``width``, if there is one."""
    match form:
        case LineFormat.RAW:
            rendered = [message.payload + b"\n" for message in messages]
        case LineFormat.JSON:
            rendered = [envelope_line(message) for message in messages]
        case LineFormat.TEXT:
            rendered = [_line("\t".join((*_columns(each), "")), each.payload, width) for each in messages]
        case LineFormat.COLOUR:
            rendered = [_coloured(message, width) for message in messages]
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
    return json_line(facts | _events(message), message.payload)


def pushed_line(message: Message, form: LineFormat, width: int | None = None) -> bytes:
    """Render what a content subscription brings: number, payload and, in JSON, the events of fences."""
    if form is LineFormat.JSON and message.events:
        return json_line({"seq": message.seq} | _events(message), message.payload)
    return render(message.seq, (message.payload,), form, width)


def _events(message: Message) -> dict[str, object]:
    """The events of the one subscription that a command has."""
    return {"events": message.events[""]} if "" in message.events else {}


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


def fitting(payload: bytes, room: int | None) -> str:
    """Render as much of a payload as there is room for, in columns; one that is cut says how long it is.

    >>> fitting(b"hello, world", 12), fitting(b"hello, world", None)
    ('hello, world', 'hello, world')
    >>> fitting(b"a very, very long message", 20)
    'a very, very l… 25 B'
    """
    if room is None:
        return visible(payload)
    room = max(room, _LEAST)
    # No character has more than four bytes: anything after this cannot be shown in any case.
    text = visible(_whole_characters(payload[: 4 * room]))
    if len(payload) <= 4 * room and cell_len(text) <= room:
        return text
    rest = f"… {size(len(payload))}"
    return set_cell_size(text, room - len(rest)).rstrip() + rest


def _whole_characters(cut: bytes) -> bytes:
    """Leave out the character that a cut went through."""
    for end in range(len(cut), max(len(cut) - 4, 0), -1):
        try:
            cut[:end].decode()
        except UnicodeDecodeError:
            continue
        return cut[:end]
    return cut


def _columns(message: Message) -> tuple[str, str, str, str]:
    """Return the columns that people see before the payload: number, time, origin, topic."""
    time = _moment(message.time) or ""
    return str(message.seq), time, message.origin, visible(message.topic.encode())


def _line(before: str, payload: bytes, width: int | None, styled: str | None = None) -> bytes:
    """Render what stands before a payload, perhaps with styles, and as much of the payload as fits."""
    room = None if width is None else width - cell_len(before.expandtabs())
    return f"{before if styled is None else styled}{fitting(payload, room)}\n".encode()


def _coloured(message: Message, width: int | None) -> bytes:
    seq, time, origin, topic = _columns(message)
    if width is not None:
        # Whole seconds leave more room for what people look at.
        time = f"{time[:19]}Z"
    numbers, topic = f"{seq:>8}  {time}  {origin:<9}", f"{topic:<16}"
    styled = f"\x1b[2m{numbers}\x1b[0m \x1b[36m{topic}\x1b[0m "
    return _line(f"{numbers} {topic} ", message.payload, width, styled)
