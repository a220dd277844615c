"""The vehicles' radios: one client per protocol, which sends the reports of all vehicles that use it.

Each turn a vehicle reports its position, and every tenth turn its condition. A report is the same JSON in every
protocol; where a protocol has attributes or a topic, it carries them too. Turns are counted from the beginning of the
play: a radio that was held up continues with the turn that is due, and repeats none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from headrace.client import connect
from headrace.client.base import Row
from headrace.demo.town import Vehicle, VehicleProtocol, payload

TURN: Final = 0.1
"""Seconds from turn to turn."""
_TELEMETRY: Final = 10
"""Turns between two reports of a vehicle's condition."""

DOORS: Final = {
    VehicleProtocol.FYREHOSE: "fyrehose",
    VehicleProtocol.SPP: "spp",
    VehicleProtocol.ATTRIBUTE: "publisher",
    VehicleProtocol.TUBE: "tube_tcp",
}
"""The door of each protocol."""

Reports = list[tuple[Vehicle, dict[str, str | float]]]
Send = Callable[[Reports], Awaitable[None]]


class Fleet:
    """All vehicles, and the messages each protocol has carried."""

    def __init__(self, vehicles: Sequence[Vehicle], doors: Mapping[str, str]) -> None:
        self.vehicles = vehicles
        self.sent: dict[VehicleProtocol, int] = dict.fromkeys(VehicleProtocol, 0)
        """Messages sent, by protocol."""
        self._doors = doors
        self._radios: dict[VehicleProtocol, tuple[list[Vehicle], Send]] = {}

    async def connect_radios(self, stack: AsyncExitStack) -> None:
        """Connect every radio; when the stack is left, the hub has read everything that was sent."""
        for protocol in VehicleProtocol:
            vehicles = [vehicle for vehicle in self.vehicles if vehicle.protocol is protocol]
            if vehicles:
                self._radios[protocol] = vehicles, await self._radio(protocol, vehicles, stack)

    async def drive(self, begun: float, seconds: float) -> None:
        """Send for this many seconds from ``begun`` on."""
        async with asyncio.TaskGroup() as group:
            for protocol, (vehicles, send) in self._radios.items():
                group.create_task(self._send_reports(protocol, vehicles, send, begun, seconds))

    async def _send_reports(
        self, protocol: VehicleProtocol, vehicles: list[Vehicle], send: Send, begun: float, seconds: float
    ) -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        while turn * TURN < seconds:
            await asyncio.sleep(begun + turn * TURN - loop.time())
            turn = max(turn, int((loop.time() - begun) / TURN))
            reports = _reports(vehicles, turn)
            await send(reports)
            self.sent[protocol] += len(reports)
            turn += 1

    async def _radio(self, protocol: VehicleProtocol, vehicles: list[Vehicle], stack: AsyncExitStack) -> Send:
        """Open a client until the stack is left; return a function that sends with it."""
        where = self._doors[DOORS[protocol]]
        match protocol:
            case VehicleProtocol.FYREHOSE:
                backbone = await stack.enter_async_context(connect("fyrehose://", where, subscribe=False))

                async def send(reports: Reports) -> None:
                    await backbone.publish([payload(report) for _, report in reports])

            case VehicleProtocol.SPP:
                spp = await stack.enter_async_context(connect("spp://", where))

                async def send(reports: Reports) -> None:
                    for vehicle, report in reports:
                        await spp.publish(payload(report), topic=vehicle.topic)

            case VehicleProtocol.ATTRIBUTE:
                publisher = await stack.enter_async_context(connect("publisher://", where))

                async def send(reports: Reports) -> None:
                    await publisher.publish(
                        [{"payload": payload(report), "attributes": report} for _, report in reports]
                    )

            case VehicleProtocol.TUBE:
                link = await stack.enter_async_context(connect("tube://", where, name="demo trams"))
                # A message whose topic is a service's id changes the service, whichever door it comes through.
                for vehicle in vehicles:
                    await link.create_service(vehicle.topic)

                async def send(reports: Reports) -> None:
                    await link.publish([_row(vehicle, report) for vehicle, report in reports])

        return send


def _reports(vehicles: Sequence[Vehicle], turn: int) -> Reports:
    """Return the reports of a turn; vehicles take turns in reporting their condition."""
    now = turn * TURN
    reports = [(vehicle, vehicle.position(now)) for vehicle in vehicles]
    for number, vehicle in enumerate(vehicles):
        if turn % _TELEMETRY == number % _TELEMETRY:
            reports.append((vehicle, vehicle.telemetry(now)))
    return reports


def _row(vehicle: Vehicle, report: dict[str, str | float]) -> Row:
    return {
        "topic": vehicle.topic,
        "attributes": {"vehicle": vehicle.name},
        "numbers": {name: value for name, value in report.items() if isinstance(value, float)},
        "payload": payload(report),
    }
