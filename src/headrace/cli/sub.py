"""``sub``: print messages as the hub delivers them: all of them, or those whose attributes match."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.terminal.access import run_client
from headrace.cli.terminal.exits import FAILED, TERMINATED
from headrace.cli.terminal.options import (
    HUB_PANEL,
    ClientId,
    Count,
    DoorScheme,
    HubTransport,
    JsonLines,
    RawLines,
    TextLines,
    Transport,
    door_of,
    find_key,
    hub_url,
    url_option,
)
from headrace.config.sources import CLIENT_VARIABLE
from headrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.cli.terminal.rendering import LineFormat
    from headrace.client.sdk.client import SdkClient
    from headrace.errors import LostRangeError
    from headrace.message import Message
    from headrace.wire.sdk.predicate import Predicate

EXAMPLES: Final = (
    ("Watch:", "headrace sub"),
    ("Everything from the beginning:", "headrace sub --from 1"),
    ("The payloads of the next ten:", "headrace sub --count 10 | jq -r .payload"),
    ("Just the bytes, a line each:", "headrace sub --raw > messages.txt"),
    ("Only messages that match:", "headrace sub --where 'x=0..10' --where city=Praha"),
)

_AT_ONCE: Final = 512
"""Messages that are printed in one go, if they are there."""


def sub(
    from_seq: Annotated[
        int | None,
        typer.Option("--from", min=0, metavar="SEQ", help="Begin with this message, fetching older ones."),
    ] = None,
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
    as_json: JsonLines = False,
    text: TextLines = False,
    raw: RawLines = False,
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
    """Print the hub's messages as they are delivered, in order and without a hole.

    It begins with the first message delivered after it has subscribed, or with --from, and runs until --count, Ctrl-C
    or until nobody reads its output. Messages that can no longer be delivered are named on stderr, and make it exit
    with 1. On a terminal it prints text; in a pipe, one JSON object a line: {"seq":1,"payload":"hello"}, with
    "payload_base64" in place of "payload" where it is not UTF-8.

    With --where it prints only messages whose attributes match: city=Praha a value, kind=a|b one of several, x=0..10 a
    range (0.. and ..10 too), name^=pre a prefix, kind!=a any other value or none, city and !city that the attribute
    exists or does not. With several conditions, all must hold. These messages come from the sdk door.
    """
    from headrace.cli.terminal.rendering import choose_format

    form = choose_format(as_json=as_json, text=text, raw=raw)
    if wheres:
        if transport is not None or translated:
            raise UsageError("--transport and --translated are fyrehose's: leave them out, or --where")
        from headrace.cli.terminal.attribute_syntax import parse_conditions

        address = hub_url(url, DoorScheme.SDK)
        _print_matching(address, parse_conditions(wheres), client_id, from_seq, count, form)
        return
    if client_id is not None:
        raise UsageError("--client-id is for --where: the backbone knows no clients")
    if url is not None and door_of(url) is DoorScheme.SDK:
        raise UsageError("the sdk door needs --where: conditions on attributes")
    if url is not None and door_of(url) is DoorScheme.TUBE:
        raise UsageError(f"{url!r}: expected fyrehose://host:port; headrace tail reads from the link")
    address = hub_url(url, DoorScheme.FYREHOSE)
    if run_client(_print_all(address, transport, translated, from_seq, count, form)):
        raise typer.Exit(FAILED)


async def _print_all(
    url: str,
    transport: Transport | None,
    translated: bool,
    from_seq: int | None,
    count: int | None,
    form: LineFormat,
) -> list[LostRangeError]:
    """Print what the backbone delivers; return what could not be delivered."""
    from headrace.cli.terminal.pipes import PipeWriter
    from headrace.cli.terminal.rendering import render
    from headrace.client.fyrehose.client import FyrehoseClient, FyrehoseOptions

    output = PipeWriter(sys.stdout.fileno())
    left = sys.maxsize if count is None else count
    lost: list[LostRangeError] = []
    options: FyrehoseOptions = {"from_seq": from_seq, "on_lost": lost.append, "translated": translated}
    if transport is not None:
        options["transport"] = transport.value
    with output.while_read():
        async with FyrehoseClient.at(url, **options) as client:
            async for batch in client.batches():
                run = batch.run.slice(0, min(left, len(batch)))
                await output.write(render(batch.first, run, form))
                left -= len(run)
                if not left:
                    break
    return lost


def _print_matching(
    url: str,
    predicates: Mapping[str, Predicate],
    client_id: str | None,
    from_seq: int | None,
    count: int | None,
    form: LineFormat,
) -> None:
    import asyncio

    from headrace.client.sdk.client import SdkClient

    client_id = client_id or os.environ.get(CLIENT_VARIABLE) or None
    key = None if client_id is None else find_key(client_id)
    sdk = SdkClient.at(url, client_id=client_id, key=key, from_seq=from_seq)
    try:
        run_client(_print_subscription(sdk, predicates, count, form))
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None


async def _print_subscription(
    sdk: SdkClient, predicates: Mapping[str, Predicate], count: int | None, form: LineFormat
) -> None:
    import asyncio
    import signal

    from headrace.cli.terminal.pipes import PipeWriter
    from headrace.cli.terminal.rendering import render

    output = PipeWriter(sys.stdout.fileno())
    left = sys.maxsize if count is None else count
    this = asyncio.current_task()
    if this is not None:
        # As Ctrl-C does: a client whose id was made up for this run unsubscribes on the way out.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    with output.while_read():
        async with sdk:
            await sdk.subscribe(predicates)
            while left and (message := await anext(sdk, None)) is not None:
                some: list[Message] = [message]
                while len(some) < min(left, _AT_ONCE) and (message := sdk.at_hand()) is not None:
                    some.append(message)
                await output.write(b"".join(render(each.seq, (each.payload,), form) for each in some))
                left -= len(some)
