"""``pub``: publish messages.

Over the link it sends ahead of the answers, and checks each: a refused message ends the command. Over fyrehose, and at
the publisher door, there are no answers.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.hubs.access import HubAccess, run_client
from headrace.cli.terminal.options import (
    HUB_PANEL,
    ClientId,
    DoorScheme,
    HubTransport,
    Json,
    PublishDoor,
    Transport,
    count_option,
    default_url,
    door_of,
    find_credentials,
    url_option,
)
from headrace.cli.terminal.output import counted, print_result
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.client.link.publisher import Ack, Acknowledged
    from headrace.message import Run

EXAMPLES: Final = (
    ("Two messages:", "headrace pub hello 'and good day'"),
    ("With a topic and attributes:", "headrace pub 21.5 --topic weather/bern --attr celsius=21.5"),
    ("For content subscriptions:", "headrace pub hello --attr x=5 --attr city=Praha"),
    ("One a line, as they come:", "tail -F app.log | headrace pub --topic logs/app"),
    ("A file's bytes as one message:", "headrace pub --file picture.png"),
    ("Through a web proxy:", "headrace pub hello --url ws://hub.example:8080"),
    (
        "The same many times, over the backbone of a hub elsewhere:",
        "headrace pub tick --count 100000 --url fyrehose://10.0.0.7:2323",
    ),
)

_BATCH: Final = 4096
_BATCH_BYTES: Final = 1 << 20
"""Messages go out about this many, or this many bytes, at a time."""

_LONGEST: Final = 7 << 20
"""The link takes :data:`~headrace.wire.link.message.MAX_MESSAGE` with the topic, the attributes and their framing."""

_EXPECTED: Final = "expected tube://host:port, ws://host:port, fyrehose://host:port or publisher://host:port"
_OTHER_DOORS: Final = {
    DoorScheme.SPP: "the spp door changes services: use headrace services put",
    DoorScheme.SDK: "the sdk door only delivers messages: use publisher://host:port",
}


def pub(
    messages: Annotated[
        list[str] | None,
        typer.Argument(metavar="MESSAGE", help="Messages. None, or -, for the lines of stdin."),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", metavar="FILE", help="Send a file's bytes as one message. Repeatable."),
    ] = None,
    count: Annotated[int, count_option("Send it all this many times.")] = 1,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic of the messages.")
    ] = None,
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            "--attr",
            "-a",
            metavar="NAME=VALUE",
            help='An attribute: a number if the value is one, else text; "7" in double quotes is text too.'
            " Repeatable.",
        ),
    ] = None,
    door: Annotated[
        PublishDoor | None,
        typer.Option(
            "--door",
            help="The hub's door; by default the URL's, else tube: the link, which acknowledges.",
            rich_help_panel=HUB_PANEL,
        ),
    ] = None,
    url: Annotated[
        str | None,
        url_option("door (tube://, ws://, fyrehose:// or publisher://)", "tube://127.0.0.1:8081"),
    ] = None,
    transport: HubTransport = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Publish messages: each argument is one, or each line of stdin, or each file.

    It ends when the hub has committed them all, and prints their numbers: 42, or 42-47 for the first and the last
    (other publishers' messages may lie between); in a pipe, {"first":42,"last":47}. It reconnects when the connection
    is lost, and sends no message twice. A frontend that stores messages while its upstream hub is away has no
    numbers for them yet, and the output says so: {"first":null,"last":null,"kept":1}.

    With --door fyrehose, and with --door publisher, nothing is acknowledged: "sent" means that the connection took it.
    """
    address = url or default_url(DoorScheme.TUBE if door is None else DoorScheme(door.value))
    used = _door(door, address, transport)
    if used is DoorScheme.FYREHOSE and (topic is not None or attributes):
        raise UsageError("fyrehose carries no --topic and no --attr: leave out --door fyrehose, or them")
    if used is DoorScheme.PUBLISHER and topic is not None:
        raise UsageError(
            "the publisher door carries no --topic: leave out --door publisher, or give it as --attr"
        )
    if used is not DoorScheme.TUBE and client_id is not None:
        raise UsageError(f"--client-id is for the link: the {used.value} door knows no clients")
    envelope = parse_envelope(topic or "", attributes or [])
    batches = _batches(messages, files, count, _longest(used, address, transport, envelope))
    if used is DoorScheme.TUBE:
        hub = HubAccess(address, find_credentials(client_id, url=url))
        told = run_client(_publish(hub, batches, envelope))
        plainly = len(messages or ()) > 1 and topic is None and not attributes
        hint = f"  ({len(messages or ())} messages without a topic; --topic names one)" if plainly else ""
        print_result(told.facts(), told.sentence() + hint, as_json=as_json)
        return
    if used is DoorScheme.FYREHOSE:
        sent = run_client(_push(address, transport, batches))
    else:
        sent = run_client(_publish_attributes(address, batches, envelope))
    print_result(
        {"url": address, "sent": sent.messages, "bytes": sent.bytes},
        f"sent {counted(sent.messages, 'message')} ({counted(sent.bytes, 'byte')}) to {address}",
        as_json=as_json,
    )


@dataclass(slots=True)
class Told:
    """What the hub has acknowledged."""

    first: int | None = None
    last: int | None = None
    kept: int = 0
    """Messages without numbers: a frontend keeps them until its upstream hub is back."""

    def note(self, ack: Acknowledged, messages: int) -> None:
        """Note the acknowledgement of some messages."""
        if ack.kept:
            self.kept += messages
            return
        self.first = ack.first if self.first is None else self.first
        self.last = ack.last

    def facts(self) -> dict[str, int | None]:
        """Return the result for programs."""
        numbers = {"first": self.first, "last": self.last}
        return {**numbers, "kept": self.kept} if self.kept else numbers

    def sentence(self) -> str:
        """Return the result for people."""
        numbers = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        kept = f"kept {counted(self.kept, 'message')} at the frontend until its upstream hub is back"
        if self.first is None:
            return kept if self.kept else "there was nothing to publish"
        return f"{numbers}, and {kept}" if self.kept else numbers


@dataclass(slots=True)
class Sent:
    """What the connection took."""

    messages: int = 0
    bytes: int = 0

    def add(self, run: Run) -> None:
        """Count a batch."""
        self.messages += len(run)
        self.bytes += run.size


@dataclass(frozen=True, slots=True)
class SharedEnvelope:
    """The parts of the envelope that all messages of a ``pub`` share."""

    topic: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def together(self) -> dict[str, str | float]:
        """Attributes and numbers, as the publisher door takes them."""
        return {**self.attributes, **self.numbers}


def parse_envelope(topic: str, attributes: Sequence[str]) -> SharedEnvelope:
    """Parse ``NAME=VALUE`` attributes, which are numbers where the value is one.

    >>> parse_envelope("t", ["celsius=21.5", "place=Bern", 'zip="3011"'])
    SharedEnvelope(topic='t', attributes={'place': 'Bern', 'zip': '3011'}, numbers={'celsius': 21.5})
    """
    from headrace.cli.terminal.attribute_syntax import parse_value

    shared = SharedEnvelope(topic)
    for given in attributes:
        name, equals, value = given.partition("=")
        if not (name and equals):
            raise UsageError(f"--attr {given}: expected NAME=VALUE")
        if name in shared.attributes or name in shared.numbers:
            raise UsageError(f"--attr {given}: {name} is given twice")
        match parse_value(value):
            case str() as text:
                shared.attributes[name] = text
            case number:
                if not isfinite(number):
                    raise UsageError(f"--attr {given}: {name} is too large a number to send")
                shared.numbers[name] = number
    return shared


def _door(door: PublishDoor | None, url: str, transport: Transport | None) -> DoorScheme:
    """Return the door of a URL, after checking that the options agree with it."""
    used = door_of(url)
    if used not in (DoorScheme.TUBE, DoorScheme.FYREHOSE, DoorScheme.PUBLISHER):
        raise UsageError(f"{url!r}: {_EXPECTED if used is None else _OTHER_DOORS.get(used, _EXPECTED)}")
    if door is not None and door.value != used.value:
        raise UsageError(f"--door {door.value} and --url {url} name different doors")
    if used is not DoorScheme.FYREHOSE and transport is not None:
        raise UsageError("--transport is fyrehose's: add --door fyrehose")
    return used


def _longest(door: DoorScheme, url: str, transport: Transport | None, shared: SharedEnvelope) -> int:
    """Return the maximum bytes of a message."""
    from headrace.client.publisher.client import max_payload
    from headrace.wire.fyrehose.stream import MAX_DATA, MAX_PUSH_DATAGRAM

    if door is DoorScheme.TUBE:
        return _LONGEST
    if door is DoorScheme.PUBLISHER:
        most = max_payload(shared.together)
        if most < 0:
            raise UsageError(
                "the attributes alone have more bytes than a message at the publisher door may have"
            )
        return most
    over_udp = transport is Transport.UDP or url.lower().startswith("fyrehose+udp:")
    return MAX_PUSH_DATAGRAM if over_udp else MAX_DATA


def _batches(
    messages: list[str] | None, files: list[Path] | None, count: int, most: int
) -> AsyncIterator[Run]:
    typed = [] if messages is None or messages == ["-"] else messages
    if typed or files:
        return _repeated(_payloads(typed, files or [], most), count)
    if count == 1:
        return _from_stdin(most)
    raise UsageError("--count repeats messages that are given as arguments or files, not stdin's")


def _payloads(typed: Sequence[str], files: Sequence[Path], most: int) -> list[bytes]:
    """Return the messages on the command line: the arguments' own bytes, then the files'."""
    messages = [(f"message {number}", os.fsencode(text)) for number, text in enumerate(typed, 1)]
    for path in files:
        with path.open("rb") as file:
            messages.append((str(path), file.read(most + 1)))
    for name, payload in messages:
        if len(payload) > most:
            raise UsageError(f"{name} has more than {most} bytes, the most a message may have")
    return [payload for _, payload in messages]


async def _repeated(messages: Sequence[bytes], count: int) -> AsyncIterator[Run]:
    from headrace.message import Run

    size = max(1, sum(map(len, messages)))
    at_once = max(1, min(count, _BATCH // len(messages), _BATCH_BYTES // size))
    whole = Run.of(list(messages) * at_once)
    for _ in range(count // at_once):
        yield whole
    if rest := count % at_once:
        yield whole.slice(0, rest * len(messages))


async def _from_stdin(most: int) -> AsyncIterator[Run]:
    """Read the lines of stdin as they come; no message waits for a batch to fill."""
    from headrace.cli.terminal.pipes import lines
    from headrace.message import Run

    if sys.stdin.isatty():
        print("one message a line; Ctrl-D ends", file=sys.stderr)
    async for some in lines(sys.stdin.fileno(), most):
        yield Run.of(some)


async def _publish(hub: HubAccess, batches: AsyncIterator[Run], shared: SharedEnvelope) -> Told:
    """Publish over the link; return the first and the last number once everything is committed."""
    told = Told()
    async with hub.link("headrace pub") as link:
        publisher = link.publisher()
        waiting: deque[tuple[Ack, int]] = deque()
        async for run in batches:
            for payloads in _requests(run):
                ack = await publisher.send(
                    payloads, topic=shared.topic, attributes=shared.attributes, numbers=shared.numbers
                )
                waiting.append((ack, len(payloads)))
            while waiting and waiting[0][0].done():
                ack, messages = waiting.popleft()
                told.note(ack.result(), messages)
        for ack, messages in waiting:
            told.note(await ack, messages)
    return told


def _requests(run: Run) -> Iterator[list[bytes]]:
    """Split a run into lists that fit a request."""
    some: list[bytes] = []
    size = 0
    for payload in run:
        if some and size + len(payload) > _BATCH_BYTES:
            yield some
            some, size = [], 0
        some.append(payload)
        size += len(payload)
    if some:
        yield some


async def _publish_attributes(url: str, batches: AsyncIterator[Run], shared: SharedEnvelope) -> Sent:
    """Send to a publisher door, which has read everything once this returns without a warning."""
    from headrace.client.publisher.client import PublisherClient

    sent = Sent()
    attributes = shared.together
    async with PublisherClient.at(url) as publisher:
        async for run in batches:
            await publisher.publish(run, attributes=attributes)
            sent.add(run)
    return sent


async def _push(url: str, transport: Transport | None, batches: AsyncIterator[Run]) -> Sent:
    """Send over fyrehose."""
    from headrace.client.fyrehose.client import FyrehoseClient, FyrehoseOptions

    sent = Sent()
    options: FyrehoseOptions = {"subscribe": False}
    if transport is not None:
        options["transport"] = transport.value
    async with FyrehoseClient.at(url, **options) as client:
        async for run in batches:
            await client.publish(run)
            sent.add(run)
    return sent
