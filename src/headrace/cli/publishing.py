"""What ``pub`` does: take messages from where they are, and send them in batches.

Over the link it sends ahead of the answers, and looks at each of them: a message that is refused ends the command, even
if more could be sent. Over fyrehose, and at the publisher door, there are no answers to look at.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final

from headrace.cli.access import Access
from headrace.cli.attributes import value_of
from headrace.cli.options import Transport
from headrace.cli.pipes import lines
from headrace.cli.stderr import speak_briefly
from headrace.client.fyrehose.client import FyrehoseClient, FyrehoseOptions
from headrace.client.link.publisher import Ack, Acknowledged
from headrace.client.publisher.client import PublisherClient, max_payload
from headrace.errors import UsageError
from headrace.message import Run
from headrace.wire.fyrehose.stream import MAX_DATA, MAX_PUSH_DATAGRAM

_BATCH: Final = 4096
_BATCH_BYTES: Final = 1 << 20
"""Messages go out about this many, or this many bytes, at a time."""

_LONGEST: Final = 7 << 20
"""The link takes :data:`~headrace.wire.link.message.MAX_MESSAGE` with the topic, the attributes and their framing."""


@dataclass(slots=True)
class Sent:
    """What the connection took."""

    messages: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Described:
    """What all messages of a ``pub`` share."""

    topic: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def together(self) -> dict[str, str | float]:
        """Attributes and numbers, as the publisher door takes them."""
        return {**self.attributes, **self.numbers}


def described(topic: str, attributes: Sequence[str]) -> Described:
    """A topic and ``NAME=VALUE`` attributes: a number where the value is one.

    >>> described("t", ["celsius=21.5", "place=Bern", 'zip="3011"'])
    Described(topic='t', attributes={'place': 'Bern', 'zip': '3011'}, numbers={'celsius': 21.5})
    """
    shared = Described(topic)
    for given in attributes:
        name, equals, value = given.partition("=")
        if not (name and equals):
            raise UsageError(f"--attr {given}: expected NAME=VALUE")
        if name in shared.attributes or name in shared.numbers:
            raise UsageError(f"--attr {given}: {name} is given twice")
        match value_of(value):
            case str() as text:
                shared.attributes[name] = text
            case number:
                if not isfinite(number):
                    raise UsageError(f"--attr {given}: {name} is no number that can be sent: it is too large")
                shared.numbers[name] = number
    return shared


def publish(hub: Access, batches: AsyncIterator[Run], shared: Described) -> tuple[int | None, int | None]:
    """Publish every batch over the link; return the first and the last number, once all is committed."""
    speak_briefly()
    return asyncio.run(_publish(hub, batches, shared))


def push(url: str, transport: Transport | None, batches: AsyncIterator[Run]) -> Sent:
    """Send every batch over fyrehose."""
    speak_briefly()
    return asyncio.run(_push(url, transport, batches))


def publish_attributes(url: str, batches: AsyncIterator[Run], shared: Described) -> Sent:
    """Send every batch to a publisher door; everything is read there once this returns without a warning."""
    speak_briefly()
    return asyncio.run(_publish_attributes(url, batches, shared))


def longest(url: str, transport: Transport | None, shared: Described) -> int:
    """The most bytes a message may have."""
    scheme = url.partition(":")[0].lower()
    if scheme == "tube":
        return _LONGEST
    if scheme == "publisher":
        most = max_payload(shared.together)
        if most < 0:
            raise UsageError(
                "the attributes alone have more bytes than a message at the publisher door may have"
            )
        return most
    by_datagram = transport is Transport.UDP or url.startswith("fyrehose+udp:")
    return MAX_PUSH_DATAGRAM if by_datagram else MAX_DATA


def payloads(typed: Sequence[str], files: Sequence[Path], most: int) -> list[bytes]:
    """Messages given on the command line: the arguments' own bytes, then the files'."""
    messages = [(f"message {place}", os.fsencode(text)) for place, text in enumerate(typed, 1)]
    for path in files:
        with path.open("rb") as file:
            messages.append((str(path), file.read(most + 1)))
    for name, payload in messages:
        if len(payload) > most:
            raise UsageError(f"{name} has more than {most} bytes, the most a message may have")
    return [payload for _, payload in messages]


async def repeated(messages: Sequence[bytes], count: int) -> AsyncIterator[Run]:
    """The messages, in order, ``count`` times."""
    size = max(1, sum(map(len, messages)))
    at_once = max(1, min(count, _BATCH // len(messages), _BATCH_BYTES // size))
    whole = Run.of(list(messages) * at_once)
    for _ in range(count // at_once):
        yield whole
    if rest := count % at_once:
        yield whole.slice(0, rest * len(messages))


async def from_stdin(most: int) -> AsyncIterator[Run]:
    """The lines of stdin as they come: one that is alone does not wait for company."""
    if sys.stdin.isatty():
        print("one message a line; Ctrl-D ends", file=sys.stderr)
    async for some in lines(sys.stdin.fileno(), most):
        yield Run.of(some)


async def _publish(
    hub: Access, batches: AsyncIterator[Run], shared: Described
) -> tuple[int | None, int | None]:
    first: int | None = None
    last: int | None = None
    async with hub.link("headrace pub") as link:
        publisher = link.publisher()
        waiting: deque[Ack] = deque()

        def look(ack: Acknowledged) -> None:
            nonlocal first, last
            first = ack.first if first is None else first
            last = ack.last

        async for run in batches:
            for payloads in _pieces(run):
                waiting.append(
                    await publisher.send(
                        payloads, topic=shared.topic, attributes=shared.attributes, numbers=shared.numbers
                    )
                )
            while waiting and waiting[0].done():
                look(waiting.popleft().result())
        while waiting:
            look(await waiting.popleft())
    return first, last


def _pieces(run: Run) -> Iterator[list[bytes]]:
    """A run in lists that a request has room for."""
    piece: list[bytes] = []
    size = 0
    for payload in run:
        if piece and size + len(payload) > _BATCH_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(payload)
        size += len(payload)
    if piece:
        yield piece


async def _publish_attributes(url: str, batches: AsyncIterator[Run], shared: Described) -> Sent:
    sent = Sent()
    attributes = shared.together
    async with PublisherClient.at(url) as publisher:
        async for run in batches:
            await publisher.publish(run, attributes=attributes)
            sent.messages += len(run)
            sent.bytes += run.size
    return sent


async def _push(url: str, transport: Transport | None, batches: AsyncIterator[Run]) -> Sent:
    sent = Sent()
    options: FyrehoseOptions = {"subscribe": False}
    if transport is not None:
        options["transport"] = transport.value
    async with FyrehoseClient.at(url, **options) as client:
        async for run in batches:
            await client.publish(run)
            sent.messages += len(run)
            sent.bytes += run.size
    return sent
