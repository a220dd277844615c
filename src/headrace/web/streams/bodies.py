"""Bodies of reads: the bytes of a stream's messages one after another, or the values of JSON messages as one array."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from typing import Final

import msgspec

from headrace.hub.streams.stream import Shape
from headrace.message import Message

NO_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of reading JSON: also for bytes that are not text, and for values that are nested too deeply."""

_LINE_END: Final = re.compile("\r\n|\r|\n")


def joined(shape: Shape, messages: Sequence[Message]) -> bytes:
    """Return messages as one body."""
    if not shape.is_json:
        return b"".join(message.payload for message in messages)
    return b"[" + b",".join(filter(None, (_values(message) for message in messages))) + b"]"


def event_lines(shape: Shape, messages: Sequence[Message]) -> list[str]:
    """Return messages as the lines of an event's data."""
    body = joined(shape, messages)
    if is_encoded(shape):
        return [b64encode(body).decode()]
    # A line end in the content must not end the event or begin another.
    return _LINE_END.split(body.decode(errors="replace"))


def is_encoded(shape: Shape) -> bool:
    """Return whether events carry base64, since their lines are text and the stream's bytes need not be."""
    return not (shape.is_json or shape.media_type.startswith("text/"))


def json_values(body: bytes) -> list[msgspec.Raw]:
    """Parse the JSON values of an append: an array's elements, or the one value.

    >>> [bytes(value) for value in json_values(b'[{"a": 1}, [2, 3]]')], len(json_values(b'"x"'))
    ([b'{"a": 1}', b'[2, 3]'], 1)
    """
    # Decode everything once, since raw values are not checked.
    value = msgspec.json.decode(body)
    return (
        msgspec.json.decode(body, type=list[msgspec.Raw]) if isinstance(value, list) else [msgspec.Raw(body)]
    )


def _values(message: Message) -> bytes:
    """Return the JSON values of a message, with commas between them."""
    payload = message.payload
    try:
        msgspec.json.decode(payload)
    except NO_JSON:
        # Other doors publish anything on the topic, so a payload that is not JSON is shown as text.
        return msgspec.json.encode(payload.decode(errors="replace"))
    payload = payload.strip()
    return payload[1:-1].strip() if payload.startswith(b"[") else payload
