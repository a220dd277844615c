"""The listeners: each is one ordinary client, and remembers what it received.

A :class:`Watch` subscribes by content: a fence by ranges of ``x`` and ``y``, the workshop by a temperature. It receives
the reports of a vehicle while they match, and raises an alert for a vehicle that was silent for a while.
:class:`SequenceChecker` takes the whole sequence, over UDP, and checks that no number is missing.
:class:`SparkResults` keeps the services that the Spark job publishes. :class:`Neighbour` speaks parcels, as a hub of
another town would: it introduces itself, and asks each second how far the sequence is.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec

from headrace.client import connect
from headrace.client.spp.client import SppClient
from headrace.config import Address
from headrace.demo.town import FENCES, HOT, Fence
from headrace.errors import HeadraceError, LostRangeError
from headrace.wire.parcel.body import Body, DscReq, DscRes, Mode, NodeInfo, ProtoError, SeqReq, SeqRes
from headrace.wire.parcel.stream import Parcel, ParcelDecoder, serialize
from headrace.wire.sdk.predicate import Between

AWAY: Final = 2.0
"""Seconds of silence after which the next report of a vehicle raises an alert."""

_ASK: Final = 1.0
"""Seconds between two questions of a neighbour."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert of a watch, ``seconds`` after the beginning."""

    seconds: float
    watch: str
    vehicle: str
    text: str
    seq: int


AlertHandler = Callable[[str, str, str, int], None]
"""Takes an alert: the watch's name, the vehicle's, the text, and the message's number."""


class Watch:
    """A content subscription, and the vehicles that match it."""

    def __init__(self, name: str, conditions: Mapping[str, Between], text: str) -> None:
        self.name = name
        self.conditions = conditions
        self.received = 0
        self.astray = 0
        """Messages received that do not match; there must be none."""
        self.seen: dict[str, float] = {}
        """When each vehicle last reported, by the event loop's clock."""
        self._text = text

    def inside(self, now: float) -> list[str]:
        """List the vehicles that match now."""
        return sorted(vehicle for vehicle, then in self.seen.items() if now - then < AWAY)

    async def listen(self, where: str, alert: AlertHandler, ready: asyncio.Event) -> None:
        """Receive until cancelled; ``ready`` is set once the hub has taken the subscription."""
        loop = asyncio.get_running_loop()
        async with connect("sdk://", where) as sdk:
            await sdk.subscribe(self.conditions)
            ready.set()
            async for message in sdk:
                now = loop.time()
                report = msgspec.json.decode(message.payload, type=dict[str, Any])
                vehicle = str(report["vehicle"])
                if now - self.seen.get(vehicle, -AWAY) >= AWAY:
                    alert(self.name, vehicle, self._text.format(**report), message.seq)
                self.seen[vehicle] = now
                self.received += 1
                self.astray += not satisfies(report, self.conditions)


def satisfies(report: dict[str, Any], conditions: Mapping[str, Between]) -> bool:
    """Return whether a report satisfies conditions, all of which are ranges.

    >>> satisfies({"x": 5.0}, {"x": Between(0, 5)}), satisfies({"y": 5.0}, {"x": Between(0, 5)})
    (True, False)
    """
    for name, condition in conditions.items():
        value = report.get(name)
        if not isinstance(value, float) or not condition.low <= value <= condition.high:
            return False
    return True


def fence_watch(fence: Fence) -> Watch:
    """Make a geofence, by ranges of a message's numbers."""
    conditions = {"x": Between(fence.west, fence.east), "y": Between(fence.south, fence.north)}
    return Watch(fence.name, conditions, f"{{vehicle}} is in the {fence.name}")


def watches() -> list[Watch]:
    """Make a watch for each fence, and the workshop."""
    hot = Watch(
        "workshop",
        {"temperature": Between(HOT, sys.float_info.max)},
        "{vehicle} runs hot: {temperature:.0f} °C",
    )
    return [*map(fence_watch, FENCES), hot]


class SequenceChecker:
    """Takes the whole sequence, and checks its numbers."""

    def __init__(self) -> None:
        self.last = 0
        self.wrong = 0
        """Messages that were missing, or whose number was not the next."""

    async def listen(self, where: str) -> None:
        """Receive until cancelled."""
        async with connect("fyrehose+udp://", where, from_seq=1, on_lost=self._lost) as backbone:
            async for batch in backbone.batches():
                if batch.first != self.last + 1:
                    self.wrong += 1
                self.last = batch.first + len(batch.run) - 1

    def _lost(self, error: LostRangeError) -> None:
        self.wrong += error.last - error.first + 1
        self.last = error.last


class SparkResults:
    """Spark's results, from its services."""

    def __init__(self, vehicles: Sequence[str]) -> None:
        self.fleet: dict[str, Any] = {}
        """``spark/fleet``: the whole fleet."""
        self.vehicles: dict[str, dict[str, Any]] = {}
        """``spark/vehicle/…``: each vehicle."""
        self._names = vehicles

    async def listen(self, where: str) -> None:
        """Keep them until cancelled."""
        async with connect("spp://", where) as spp, asyncio.TaskGroup() as group:
            group.create_task(self._keep(spp, "spark/fleet", self.fleet))
            for name in self._names:
                kept = self.vehicles.setdefault(name, {})
                group.create_task(self._keep(spp, f"spark/vehicle/{name}", kept))

    async def _keep(self, spp: SppClient, service: str, kept: dict[str, Any]) -> None:
        async with spp.subscribe(service, "json") as live:
            kept.update(live.value or {})
            async for _ in live:
                kept.update(live.value or {})


class Neighbour:
    """A node outside the cluster: it may ask, and has no vote."""

    def __init__(self, name: str = "next town") -> None:
        self.name = name
        self.asked = 0
        self.seq = 0
        """The last answer."""
        self.backwards = 0
        """Answers below an earlier one; there must be none."""
        self._id = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:2], "big")
        self._decoder = ParcelDecoder()

    async def listen(self, where: str) -> None:
        """Ask each second until cancelled."""
        address = Address.parse(where)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            host, port = writer.get_extra_info("sockname")[:2]
            me = NodeInfo(self._id, Mode.WRK, self.name, f"{host}:{port}")
            await self._exchange(reader, writer, DscReq(me), DscRes)
            while True:
                answer = await self._exchange(reader, writer, SeqReq(), SeqRes)
                self.asked += 1
                self.backwards += answer.seq_number < self.seq
                self.seq = answer.seq_number
                await asyncio.sleep(_ASK)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: Body, expected: type[Any]
    ) -> Any:
        """Send a request, and wait for the answer."""
        writer.write(serialize(Parcel(self._id, body)))
        await writer.drain()
        while True:
            data = await reader.read(4096)
            if not data:
                raise ConnectionError("the hub has closed the parcel connection")
            for parcel in self._decoder.feed(data):
                if isinstance(parcel.body, ProtoError):
                    raise ConnectionError(f"the hub refuses its neighbour: {parcel.body.reason}")
                if isinstance(parcel.body, expected):
                    return parcel.body


class ListenerTask:
    """A task that listens, and the error that ended it, if one did."""

    def __init__(self, name: str, work: Any) -> None:
        self.name = name
        self.failure: str | None = None
        self._task = asyncio.ensure_future(self._run(work))

    async def _run(self, work: Any) -> None:
        try:
            await work
        except* (HeadraceError, OSError) as errors:
            self.failure = str(errors.exceptions[0])

    async def stop(self) -> Self:
        """Cancel it, and wait for its end."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        return self
