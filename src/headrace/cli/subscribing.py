"""What ``sub`` does: take messages from the hub, all of them or those of which something is true, and print them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping

import typer

from headrace.cli.exits import TERMINATED
from headrace.cli.options import Transport
from headrace.cli.pipes import Outlet
from headrace.cli.rendering import Form, render
from headrace.cli.stderr import speak_briefly
from headrace.client.fyrehose.client import FyrehoseClient, FyrehoseOptions
from headrace.client.sdk.client import SdkClient
from headrace.errors import LostRangeError
from headrace.message import Message
from headrace.wire.sdk.predicate import Predicate

_AT_ONCE = 512
"""Messages that are printed in one go, if they are there."""


def subscribe(
    url: str, transport: Transport | None, from_seq: int | None, count: int | None, form: Form
) -> list[LostRangeError]:
    """Print what is delivered, up to ``count`` messages; return what could not be delivered."""
    speak_briefly()
    return asyncio.run(_subscribe(url, transport, from_seq, count, form))


async def _subscribe(
    url: str, transport: Transport | None, from_seq: int | None, count: int | None, form: Form
) -> list[LostRangeError]:
    outlet = Outlet(sys.stdout.fileno())
    left = sys.maxsize if count is None else count
    lost: list[LostRangeError] = []
    options: FyrehoseOptions = {"from_seq": from_seq, "on_lost": lost.append}
    if transport is not None:
        options["transport"] = transport.value
    with outlet.while_read():
        async with FyrehoseClient.at(url, **options) as client:
            async for batch in client.batches():
                run = batch.run.slice(0, min(left, len(batch)))
                await outlet.write(render(batch.first, run, form))
                left -= len(run)
                if not left:
                    break
    return lost


def subscribe_where(
    url: str,
    predicates: Mapping[str, Predicate],
    client_id: str | None,
    key: str | None,
    from_seq: int | None,
    count: int | None,
    form: Form,
) -> None:
    """Print what satisfies a subscription, up to ``count`` messages."""
    speak_briefly()
    sdk = SdkClient.at(url, client_id=client_id, key=key, from_seq=from_seq)
    try:
        asyncio.run(_subscribe_where(sdk, predicates, count, form))
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None


async def _subscribe_where(
    sdk: SdkClient, predicates: Mapping[str, Predicate], count: int | None, form: Form
) -> None:
    outlet = Outlet(sys.stdout.fileno())
    left = sys.maxsize if count is None else count
    this = asyncio.current_task()
    if this is not None:
        # As Ctrl-C does: the subscription of a made-up client is withdrawn on the way out.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    with outlet.while_read():
        async with sdk:
            await sdk.subscribe(predicates)
            while left and (message := await anext(sdk, None)) is not None:
                some = [message, *_at_hand(sdk, min(left, _AT_ONCE) - 1)]
                await outlet.write(b"".join(render(each.seq, (each.payload,), form) for each in some))
                left -= len(some)


def _at_hand(sdk: SdkClient, most: int) -> list[Message]:
    """What else can be had without waiting."""
    some: list[Message] = []
    while len(some) < most and (message := sdk.at_hand()) is not None:
        some.append(message)
    return some
