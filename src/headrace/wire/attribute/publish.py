"""The publisher door of the attribute family: messages with attributes and a payload.

A publish is a message of :mod:`headrace.wire.attribute.items` with two items: attributes, a JSON object of names to
strings or numbers, and the payload, any bytes. There is no other message at this door and no answer, so
publishes follow one another directly. Strategy: a compiled scan finds all that are here, and they are
handed over as one :class:`Publishes`, with the payloads side by side in one buffer.

Invariants:

- Attributes are decoded here, once, as they are checked: a publish whose attributes are bad is refused where it
  stands, however its bytes were cut.
- How many runs a stream makes depends on how it was cut; the publishes in them do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, TypeAlias

import msgspec
import numpy as np

from headrace.errors import LimitError, MalformedError, UsageError, WireError
from headrace.message import Run
from headrace.wire.attribute.items import (
    HEADER,
    ITEM,
    MAX_BODY,
    UNUSED_EXTRA,
    located,
    parse_items,
    whole_message,
)
from headrace.wire.receive_buffer import Decoder

RUN_BYTES = 1 << 16
"""How many received bytes one run may cover. Decoded attributes take up to some thirty times their JSON, and
only those of one run exist at a time; runs beyond a few hundred messages do not get any faster."""

_SHORTEST = HEADER.size + ITEM.size
"""The bytes of the shortest publish: "one or more items"."""

_RULE = "a JSON object of names to strings and finite numbers"

Attributes: TypeAlias = Mapping[str, str | float]
"""A message's attributes: strings and numbers by name."""


class PublishItem(IntEnum):
    """Item ids at the publisher door."""

    ATTRIBUTES = 1
    PAYLOAD = 2


@dataclass(frozen=True, slots=True)
class Publish:
    """One message of a publisher."""

    COMMAND: ClassVar[int] = 1

    attributes: Attributes
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Publishes:
    """Consecutive publishes: number ``i`` has ``attributes[i]`` and ``payloads[i]``."""

    attributes: Sequence[Attributes]
    payloads: Run

    def __post_init__(self) -> None:
        if len(self.attributes) != len(self.payloads):
            raise UsageError(f"attributes of {len(self.attributes)} messages, {len(self.payloads)} payloads")

    def __len__(self) -> int:
        return len(self.attributes)

    def __iter__(self) -> Iterator[Publish]:
        return map(Publish, self.attributes, self.payloads)


def serialize(publish: Publish) -> bytes:
    """One publish as its bytes.

    >>> serialize(Publish({"n": 1}, b"hi")).hex(" ")
    '01 00 0f 00 01 00 07 7b 22 6e 22 3a 31 7d 02 00 02 68 69'
    """
    return serialize_all(_publishes(publish))


def serialize_all(publishes: Publishes) -> bytes:
    """Many publishes as their bytes, one after the other."""
    parts: list[bytes] = []
    for attributes, payload in zip(publishes.attributes, publishes.payloads, strict=True):
        text = serialize_attributes(attributes)
        length = 2 * ITEM.size + len(text) + len(payload)
        if length > MAX_BODY:
            raise LimitError("attribute", "body length of a publish", length, MAX_BODY)
        parts += (
            HEADER.pack(Publish.COMMAND, length, UNUSED_EXTRA),
            ITEM.pack(PublishItem.ATTRIBUTES, len(text)),
            text,
            ITEM.pack(PublishItem.PAYLOAD, len(payload)),
            payload,
        )
    return b"".join(parts)


def parse_publish(body: bytes) -> Publish:
    """One publish out of the body of its message."""
    if not body:
        # "Message body contains one or more items".
        raise MalformedError("attribute", "body of a publish", body, "one or more items")
    items = parse_items(body)
    attributes = parse_attributes(items.get(PublishItem.ATTRIBUTES, b""))
    return Publish(attributes, items.get(PublishItem.PAYLOAD, b""))


def serialize_attributes(attributes: Attributes) -> bytes:
    """Attributes as JSON that :func:`parse_attributes` takes."""
    try:
        text = msgspec.json.encode(attributes)
        # The encoder knows more than we may send (true, lists) and writes NaN as null; the decoder is strict.
        _DECODER.decode(text)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise MalformedError("attribute", "attributes", attributes, _RULE) from None
    return text


def parse_attributes(text: bytes) -> Attributes:
    """Parse attributes from their JSON; the last of a repeated name wins, and no text means no attributes.

    >>> parse_attributes(b'{"city": "Oslo", "degrees": -3}')
    {'city': 'Oslo', 'degrees': -3.0}
    """
    if not text:
        return {}
    try:
        return _DECODER.decode(text)
    except ValueError:
        raise MalformedError("attribute", "attributes", text, _RULE) from None


def separate(attributes: Attributes) -> tuple[dict[str, str], dict[str, float]]:
    """Separate strings and numbers, as the envelope has them.

    >>> separate({"city": "Oslo", "degrees": -3.0})
    ({'city': 'Oslo'}, {'degrees': -3.0})
    """
    texts: dict[str, str] = {}
    numbers: dict[str, float] = {}
    for name, value in attributes.items():
        if isinstance(value, str):
            texts[name] = value
        else:
            numbers[name] = value
    return texts, numbers


class PublisherDecoder(Decoder[Publishes]):
    """Reads the publisher door."""

    def _next(self) -> Publishes | None:
        whole = whole_message(self.inbox, (Publish.COMMAND,))
        if whole is None:
            return None
        _, _, body = whole
        following = len(self.inbox) - HEADER.size - len(body)
        if following >= _SHORTEST and (run := self._many()) is not None:
            return run
        return self._one(body)

    def _one(self, body: bytes) -> Publishes:
        """Read the first publish, which alone is quicker without the kernels, or refuse it."""
        try:
            publish = parse_publish(body)
        except WireError as error:
            raise located(error, self.inbox.position) from None
        self.inbox.skip(HEADER.size + len(body))
        return _publishes(publish)

    def _many(self) -> Publishes | None:
        """Read the publishes that are here, up to a bad one; ``None`` if the first is bad."""
        # Numba takes long to load, and an occasional publish does not need it.
        from headrace.wire.attribute import kernels

        data = self.inbox.peek(RUN_BYTES)
        content = np.frombuffer(data, np.uint8)
        edges = np.empty((len(data) // _SHORTEST, kernels.COLUMNS), np.int32)
        edges = edges[: kernels.scan_publishes(content, edges)]
        attributes: list[Attributes] = []
        try:
            for begin, end in edges[:, [kernels.TEXT_BEGIN, kernels.TEXT_END]].tolist():
                attributes.append(parse_attributes(data[begin:end]))
        except MalformedError:
            edges = edges[: len(attributes)]
        if not attributes:
            return None
        size = int((edges[:, kernels.PAYLOAD_END] - edges[:, kernels.PAYLOAD_BEGIN]).sum())
        payloads = Run(np.empty(size, np.uint8), np.empty(len(edges) + 1, np.int32))
        kernels.gather_payloads(content, edges, payloads.data, payloads.offsets)
        self.inbox.skip(int(edges[-1, kernels.END]))
        return Publishes(attributes, payloads)


def _publishes(publish: Publish) -> Publishes:
    return Publishes([publish.attributes], Run.one(publish.payload))


_DECODER = msgspec.json.Decoder(dict[str, float | str])
