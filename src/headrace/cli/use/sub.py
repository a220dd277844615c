"""``sub``: print messages as the hub delivers them: all of them, or those whose attributes match."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Final, Self
from urllib.parse import urlsplit

import typer

from headrace.cli.hubs.access import HubAccess, run_client
from headrace.cli.hubs.contexts import make_context
from headrace.cli.terminal.exits import FAILED, TERMINATED
from headrace.cli.terminal.options import (
    HUB_PANEL,
    ClientId,
    Count,
    DoorScheme,
    Either,
    FullLines,
    HubTransport,
    JsonLines,
    RawLines,
    TextLines,
    Transport,
    door_of,
    find_key,
    hub_access,
    hub_url,
    position_option,
    url_option,
)
from headrace.cli.terminal.positions import (
    HubLog,
    SequenceEnd,
    SequencePosition,
    first_number,
    parse_position,
)
from headrace.config.sources import CLIENT_VARIABLE
from headrace.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from headrace.cli.terminal.rendering import LineFormat
    from headrace.client.base import Start
    from headrace.client.conditions import AnyConditions
    from headrace.client.link.client import LinkClient
    from headrace.client.sdk.client import SdkClient
    from headrace.errors import LostRangeError
    from headrace.hub.sequence_ranges import Range
    from headrace.message import Message, Run

EXAMPLES: Final = (
    ("Watch:", "headrace sub"),
    ("Everything that is kept:", "headrace sub --from earliest"),
    ("The payloads of the next ten:", "headrace sub --count 10 | jq -r .payload"),
    ("Just the bytes, a line each:", "headrace sub --raw > messages.txt"),
    ("Those that are too long for fyrehose as well:", "headrace sub --fetch tube://127.0.0.1:8081"),
    ("Only messages that match:", "headrace sub --where 'x=0..10' --where city=Praha"),
    ("Either of two conditions:", "headrace sub --where city=Praha --or 'x>100'"),
)

_AT_ONCE: Final = 512
"""Messages that are printed in one go, if they are there."""


def sub(
    begin: Annotated[str, position_option("--from")] = "now",
    count: Count = None,
    wheres: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            "-w",
            metavar="CONDITION",
            help="Only messages whose attributes match. Repeatable: all conditions must hold.",
        ),
    ] = None,
    either: Either = None,
    as_json: JsonLines = False,
    text: TextLines = False,
    raw: RawLines = False,
    full: FullLines = False,
    fetch: Annotated[
        str | None,
        typer.Option(
            "--fetch",
            metavar="URL",
            help="The hub's link, such as tube://127.0.0.1:8081: messages that fyrehose brings without data are"
            " fetched from there.",
            rich_help_panel=HUB_PANEL,
        ),
    ] = None,
    url: Annotated[
        str | None, url_option("door", "fyrehose://127.0.0.1:2323, or sdk://127.0.0.1:7253 with --where")
    ] = None,
    transport: HubTransport = None,
    translated: Annotated[
        bool,
        typer.Option(
            "--translated",
            help="Over UDP, an address translator stands between this machine and the hub.",
            rich_help_panel=HUB_PANEL,
        ),
    ] = False,
    client_id: ClientId = None,
) -> None:
    """Print the hub's messages as they are delivered, in order and without gaps.

    It begins with the next message, or where --from says, and runs until --count, Ctrl-C or until nobody reads its
    output. Messages that can no longer be delivered are named on stderr, and make it exit with 1. On a terminal it
    prints text, and cuts payloads to the terminal's width unless --full is given; in a pipe, one JSON object a line:
    {"seq":1,"payload":"hello"}, with "payload_base64" in place of "payload" where it is not UTF-8.

    A message that is too long for fyrehose, over 65,526 bytes on TCP and 65,498 on UDP, comes without data, just as an
    empty one does. Such messages are named on stderr; with --fetch they are read over the link, and printed whole.

    With --where it prints only messages whose attributes match: city=Praha a value, kind=a|b one of several, x=0..10 a
    range (0.. and ..10 too), name^=pre a prefix, kind!=a any other value or none, city and !city that the attribute
    exists or does not; inside(lon, lat, circle(14.42, 50.09, 0.05)) a place, fence(taxi, lon, lat, circle(...)) that a
    taxi enters or leaves it. With several conditions, all must hold; --or adds one that is enough by itself. These
    messages come from the sdk door.
    """
    from headrace.cli.terminal.rendering import choose_format

    form = choose_format(as_json=as_json, text=text, raw=raw)
    position = parse_position("--from", begin)
    if wheres or either:
        if transport is not None or translated or fetch is not None:
            raise UsageError(
                "--transport, --translated and --fetch are fyrehose's: leave them out, or --where"
            )
        from headrace.cli.terminal.attribute_syntax import parse_alternatives

        wanted = parse_alternatives(wheres or (), either)
        address = hub_url(url, DoorScheme.SDK)
        start = _start(position, url, client_id)
        _print_matching(address, wanted, client_id, start, count, form, full=full)
        return
    if client_id is not None and fetch is None:
        raise UsageError("--client-id is for --where and --fetch: the backbone knows no clients")
    if url is not None and door_of(url) is DoorScheme.SDK:
        raise UsageError("the sdk door needs --where: conditions on attributes")
    if url is not None and door_of(url) is DoorScheme.TUBE:
        raise UsageError(f"{url!r}: expected fyrehose://host:port; headrace tail reads from the link")
    address = hub_url(url, DoorScheme.FYREHOSE)
    link = None if fetch is None else hub_access(fetch, DoorScheme.TUBE, client_id)
    start = _start(position, url, client_id, link)
    hollow = _HollowMessages(link, url)
    if run_client(_print_all(address, transport, translated, start, count, form, hollow, full=full)):
        raise typer.Exit(FAILED)


def _start(
    position: SequencePosition, url: str | None, client_id: str | None, link: HubAccess | None = None
) -> Start:
    """Return where a client begins; a time is looked up at ``link``, else at the link of the hub at ``url``."""
    match position:
        case int():
            return position
        case SequenceEnd():
            return "now" if position is SequenceEnd.NOW else "earliest"
    if link is None:
        beside = None if url is None else make_context(url).url_of("tube")
        link = hub_access(beside, DoorScheme.TUBE, client_id)
    return link.ask("headrace sub", lambda hub: first_number(HubLog(hub), position))


async def _print_all(
    url: str,
    transport: Transport | None,
    translated: bool,
    start: Start,
    count: int | None,
    form: LineFormat,
    hollow: _HollowMessages,
    *,
    full: bool,
) -> list[LostRangeError]:
    """Print what the backbone delivers; return what could not be delivered."""
    from headrace.cli.terminal.pipes import PipeWriter
    from headrace.cli.terminal.rendering import line_width, render
    from headrace.client.fyrehose.client import FyrehoseClient, FyrehoseOptions

    output = PipeWriter(sys.stdout.fileno())
    left = sys.maxsize if count is None else count
    lost: list[LostRangeError] = []
    options: FyrehoseOptions = {
        "from_seq": start,
        "on_lost": lost.append,
        "on_hollow": hollow.came,
        "translated": translated,
    }
    if transport is not None:
        options["transport"] = transport.value
    with output.while_read():
        async with hollow, FyrehoseClient.at(url, **options) as client:
            async for batch in client.batches():
                run = batch.run.slice(0, min(left, len(batch)))
                async for first, payloads in hollow.filled(batch.first, run):
                    await output.write(render(first, payloads, form, line_width(full=full)))
                left -= len(run)
                if not left:
                    break
    return lost


class _HollowMessages:
    """Messages that came without data: fetched over the link, or else named on stderr."""

    def __init__(self, link: HubAccess | None, url: str | None) -> None:
        self._access = link
        self._url = url
        self._link: LinkClient | None = None
        self._seqs: list[int] = []
        self._explained = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._link is not None:
            await self._link.close()

    def came(self, seq: int) -> None:
        """Note one of the messages that are about to be printed."""
        self._seqs.append(seq)

    async def filled(self, first: int, run: Run) -> AsyncIterator[tuple[int, Iterable[bytes]]]:
        """Yield messages in order, some at a time, each part with the number of its first."""
        seqs, self._seqs = self._seqs, []
        end = first + len(run)
        ranges = _ranges([seq for seq in seqs if seq < end])
        if self._access is None:
            if ranges:
                self._explain(ranges)
            yield first, run
            return
        at = first
        for begin, last in ranges:
            if begin > at:
                yield at, run.slice(at - first, begin - first)
            at = begin
            try:
                async for seq, payloads in self._fetch(self._access, begin, last):
                    yield seq, payloads
                    at = seq + len(payloads)
            except HeadraceError as error:
                self._say(f"{_named([(at, last)])} came without data, and cannot be fetched: {error}")
            if at <= last:
                yield at, [b""] * (last - at + 1)
            at = last + 1
        if at < end:
            yield at, run.slice(at - first, len(run))

    async def _fetch(
        self, access: HubAccess, first: int, last: int
    ) -> AsyncIterator[tuple[int, list[bytes]]]:
        if self._link is None:
            link = access.link("headrace sub")
            self._link = await link.open()
        async with self._link.read(first, last) as stream:
            async for rows in stream:
                yield rows.column("seq")[0].as_py(), rows.column("payload").to_pylist()

    def _explain(self, ranges: list[Range]) -> None:
        text = f"{_named(ranges)} came without data"
        if not self._explained:
            self._explained = True
            first = ranges[0][0]
            host = None if self._url is None else urlsplit(self._url).hostname
            where = "" if host is None else f" --url tube://{host}"
            command = f"headrace tail --from {first} --count 1 --raw{where}"
            text += f": empty, or too long for fyrehose; {command} prints it, and sub --fetch does so at once"
        self._say(text)

    @staticmethod
    def _say(text: str) -> None:
        print(f"headrace: {text}", file=sys.stderr)


def _ranges(seqs: list[int]) -> list[Range]:
    """Join ascending numbers to ranges."""
    ranges: list[Range] = []
    for seq in seqs:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = ranges[-1][0], seq
        else:
            ranges.append((seq, seq))
    return ranges


def _named(ranges: list[Range]) -> str:
    shown = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in ranges[:10])
    more = sum(last - first + 1 for first, last in ranges[10:])
    several = len(ranges) > 1 or ranges[0][0] < ranges[0][1]
    return f"message{'s' if several else ''} {shown}{f' and {more} more' if more else ''}"


def _print_matching(
    url: str,
    wanted: AnyConditions,
    client_id: str | None,
    start: Start,
    count: int | None,
    form: LineFormat,
    *,
    full: bool,
) -> None:
    import asyncio

    from headrace.client.sdk.client import SdkClient

    client_id = client_id or os.environ.get(CLIENT_VARIABLE) or None
    key = None if client_id is None else find_key(client_id)
    sdk = SdkClient.at(url, client_id=client_id, key=key, from_seq=start)
    try:
        run_client(_print_subscription(sdk, wanted, count, form, full=full))
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None


async def _print_subscription(
    sdk: SdkClient, wanted: AnyConditions, count: int | None, form: LineFormat, *, full: bool
) -> None:
    import asyncio
    import signal

    from headrace.cli.terminal.pipes import PipeWriter
    from headrace.cli.terminal.rendering import line_width, pushed_line

    output = PipeWriter(sys.stdout.fileno())
    left = sys.maxsize if count is None else count
    this = asyncio.current_task()
    if this is not None:
        # As Ctrl-C does: a client whose id was made up for this run unsubscribes on the way out.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    with output.while_read():
        async with sdk:
            await sdk.subscribe(wanted)
            while left and (message := await anext(sdk, None)) is not None:
                some: list[Message] = [message]
                while len(some) < min(left, _AT_ONCE) and (message := sdk.at_hand()) is not None:
                    some.append(message)
                width = line_width(full=full)
                await output.write(b"".join(pushed_line(each, form, width) for each in some))
                left -= len(some)
