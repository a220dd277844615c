"""What ``sub`` does: take batches from the hub, print them, stop in time."""

from __future__ import annotations

import asyncio
import sys

from headrace.cli.options import Transport
from headrace.cli.pipes import Outlet
from headrace.cli.rendering import Form, render
from headrace.cli.stderr import speak_briefly
from headrace.client import connect
from headrace.client.backbone import Options
from headrace.errors import LostRangeError


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
    options: Options = {"from_seq": from_seq, "on_lost": lost.append}
    if transport is not None:
        options["transport"] = transport.value
    with outlet.while_read():
        async with connect(url, **options) as client:
            async for batch in client.batches():
                run = batch.run.slice(0, min(left, len(batch)))
                await outlet.write(render(batch.first, run, form))
                left -= len(run)
                if not left:
                    break
    return lost
