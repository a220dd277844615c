"""Header and items: the layer that every binary message of the attribute family is made of.

A message is ``command u8, body length u16, extra u8`` and a body of items, each ``id u8, length u16, bytes``.
What a command or an item id means differs from door to door, so a door is a table from command to the
function that reads that command's items, and :class:`DoorDecoder` reads the messages of any such table.

Strategy: a body never passes 2000 bytes, so a decoder waits until a message is whole and reads it in one go.

Invariants:

- Items come in any order, the last of a repeated id wins, unknown ids are skipped. A body that is not exactly
  its items is refused.
- Only the last of a repeated id is looked at.
- An error names the byte of the connection at which its message begins.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Mapping
from enum import IntEnum
from typing import TypeAlias, TypeVar

from headrace.errors import LimitError, MalformedError, WireError
from headrace.wire.receive_buffer import Decoder, ReceiveBuffer

MAX_BODY = 2000
"""MaxBodyLength: bounds the items, not the header in front of them."""

HEADER = struct.Struct("!BHB")
ITEM = struct.Struct("!BH")

UNUSED_EXTRA = 0
"""The value of an "ExtraField" that is "not use now"; on receipt it is ignored."""

Items: TypeAlias = dict[int, bytes]

M = TypeVar("M")
Item = TypeVar("Item", bound=IntEnum)


def serialize_message(command: int, extra: int, items: Mapping[Item, bytes]) -> bytes:
    """A message as its bytes, its items in the mapping's order."""
    length = sum(ITEM.size + len(content) for content in items.values())
    if length > MAX_BODY:
        raise LimitError("attribute", "body length", length, MAX_BODY)
    parts = [HEADER.pack(command, length, extra)]
    for number, content in items.items():
        parts += (ITEM.pack(number, len(content)), content)
    return b"".join(parts)


def whole_message(inbox: ReceiveBuffer, commands: Container[int]) -> tuple[int, int, bytes] | None:
    """The command, extra and body of the next message, unconsumed; ``None`` until it is all here."""
    header = inbox.peek(HEADER.size)
    if len(header) < HEADER.size:
        return None
    command, length, extra = HEADER.unpack(header)
    if command not in commands:
        raise MalformedError("attribute", "command", command, "unknown at this door", offset=inbox.position)
    if length > MAX_BODY:
        raise LimitError("attribute", "body length", length, MAX_BODY, offset=inbox.position)
    if len(inbox) < HEADER.size + length:
        return None
    return command, extra, inbox.peek(length, skip=HEADER.size)


def parse_items(body: bytes) -> Items:
    """Parse the items of a body, by id; the last of a repeated id wins."""
    items: Items = {}
    at = 0
    while at < len(body):
        if len(body) - at < ITEM.size:
            raise MalformedError("attribute", "body", body[at:], "bytes are left over after the last item")
        number, length = ITEM.unpack_from(body, at)
        at += ITEM.size
        left = len(body) - at
        if length > left:
            raise MalformedError(
                "attribute", f"length of item {number}", length, f"only {left} bytes of the body remain"
            )
        items[number] = body[at : at + length]
        at += length
    return items


class DoorDecoder(Decoder[M]):
    """Reads the messages of one door in one direction, by its table of commands."""

    def __init__(self, commands: Mapping[int, Callable[[int, Items], M]]) -> None:
        super().__init__()
        self._commands = commands

    def _next(self) -> M | None:
        whole = whole_message(self.inbox, self._commands)
        if whole is None:
            return None
        command, extra, body = whole
        try:
            message = self._commands[command](extra, parse_items(body))
        except WireError as error:
            raise located(error, self.inbox.position) from None
        self.inbox.skip(HEADER.size + len(body))
        return message


def located(error: WireError, offset: int) -> WireError:
    """The same error, with the byte at which its message begins."""
    return type(error)(error.protocol, error.field, error.value, error.limit, offset=offset)


def required(items: Items, item: IntEnum) -> bytes:
    """An item that must be there."""
    try:
        return items[item]
    except KeyError:
        raise MalformedError("attribute", f"item {item}", "absent", f"{item.name} must be there") from None


def sized(field: str, content: bytes, size: int) -> bytes:
    """Bytes of a fixed length."""
    if len(content) != size:
        raise MalformedError("attribute", field, content, f"exactly {size} bytes, not {len(content)}")
    return content


def entries(field: str, content: bytes, size: int) -> bytes:
    """Entries of a fixed length, side by side."""
    if len(content) % size:
        raise MalformedError(
            "attribute", field, content, f"entries of {size} bytes, not {len(content)} in all"
        )
    return content


def required_text(items: Items, item: IntEnum) -> str:
    """An item that must be there, as UTF-8."""
    content = required(items, item)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise MalformedError("attribute", item.name, content, "UTF-8") from None


def encode_text(field: str, text: str) -> bytes:
    """Text as an item's content."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MalformedError("attribute", field, ascii(text), "UTF-8") from None
