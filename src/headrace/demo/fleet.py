"""The vehicles' radios: for each protocol one client, which sends what all vehicles of that protocol have to say.

Each turn a vehicle says where it is, and every tenth turn how it is. What it says is the same JSON by every protocol;
where a protocol has attributes or a topic, it says them there too. Turns are counted from the beginning of the play: a
radio that was held up goes on with the turn that is due, and sends none twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from headrace.client import connect
from headrace.client.base import Row
from headrace.demo.town import Vehicle, Way, payload

TURN: Final = 0.1
"""Seconds from turn to turn."""
_TELEMETRY: Final = 10
"""Turns from one word about itself to a vehicle's next."""

DOORS: Final = {Way.FYREHOSE: "fyrehose", Way.SPP: "spp", Way.ATTRIBUTE: "publisher", Way.TUBE: "tube_tcp"}
"""Which door takes what comes by which protocol."""

Said = list[tuple[Vehicle, dict[str, str | float]]]
Send = Callable[[Said], Awaitable[None]]


class Fleet:
    """All vehicles, and how much each protocol has carried."""

    def __init__(self, vehicles: Sequence[Vehicle], doors: Mapping[str, str]) -> None:
        self.vehicles = vehicles
        self.sent: dict[Way, int] = dict.fromkeys(Way, 0)
        """Messages, by the protocol they went by."""
        self._doors = doors
        self._radios: dict[Way, tuple[list[Vehicle], Send]] = {}

    async def tune(self, stack: AsyncExitStack) -> None:
        """Connect every radio; when the stack is left, the hub has read all that was sent."""
        for way in Way:
            vehicles = [vehicle for vehicle in self.vehicles if vehicle.way is way]
            if vehicles:
                self._radios[way] = vehicles, await self._radio(way, vehicles, stack)

    async def drive(self, begun: float, seconds: float) -> None:
        """Speak for so long from ``begun`` on."""
        async with asyncio.TaskGroup() as group:
            for way, (vehicles, send) in self._radios.items():
                group.create_task(self._speak(way, vehicles, send, begun, seconds))

    async def _speak(
        self, way: Way, vehicles: list[Vehicle], send: Send, begun: float, seconds: float
    ) -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        while turn * TURN < seconds:
            await asyncio.sleep(begun + turn * TURN - loop.time())
            turn = max(turn, int((loop.time() - begun) / TURN))
            said = _said(vehicles, turn)
            await send(said)
            self.sent[way] += len(said)
            turn += 1

    async def _radio(self, way: Way, vehicles: list[Vehicle], stack: AsyncExitStack) -> Send:
        """A client that sends, open until the stack is left."""
        where = self._doors[DOORS[way]]
        match way:
            case Way.FYREHOSE:
                backbone = await stack.enter_async_context(connect("fyrehose://", where, subscribe=False))

                async def send(said: Said) -> None:
                    await backbone.publish([payload(words) for _, words in said])

            case Way.SPP:
                spp = await stack.enter_async_context(connect("spp://", where))

                async def send(said: Said) -> None:
                    for vehicle, words in said:
                        await spp.publish(payload(words), topic=vehicle.topic)

            case Way.ATTRIBUTE:
                publisher = await stack.enter_async_context(connect("publisher://", where))

                async def send(said: Said) -> None:
                    await publisher.publish(
                        [{"payload": payload(words), "attributes": words} for _, words in said]
                    )

            case Way.TUBE:
                link = await stack.enter_async_context(connect("tube://", where, name="demo trams"))
                # A message whose topic is a service's id changes the service, by whatever door it comes.
                for vehicle in vehicles:
                    await link.create_service(vehicle.topic)

                async def send(said: Said) -> None:
                    await link.publish([_row(vehicle, words) for vehicle, words in said])

        return send


def _said(vehicles: Sequence[Vehicle], turn: int) -> Said:
    """What there is to say in a turn; vehicles take turns in speaking of themselves."""
    now = turn * TURN
    said = [(vehicle, vehicle.position(now)) for vehicle in vehicles]
    for number, vehicle in enumerate(vehicles):
        if turn % _TELEMETRY == number % _TELEMETRY:
            said.append((vehicle, vehicle.telemetry(now)))
    return said


def _row(vehicle: Vehicle, words: dict[str, str | float]) -> Row:
    """A message of the link's, with all that its envelope has room for."""
    return {
        "topic": vehicle.topic,
        "attributes": {"vehicle": vehicle.name},
        "numbers": {name: value for name, value in words.items() if isinstance(value, float)},
        "payload": payload(words),
    }
