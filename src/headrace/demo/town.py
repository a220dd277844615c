"""The town: where its fences are, and where each vehicle is at any moment.

Everything is a function of time and of a seed, so that a run can be repeated. A vehicle goes round a block of the
street grid at a varying speed; distances are metres, speeds km/h. Figures are rounded here, once, because everybody
compares a vehicle's reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final, NamedTuple

import msgspec

WIDTH: Final = 1200
HEIGHT: Final = 600
_BLOCK: Final = 100
"""The distance between streets."""

HOT: Final = 96.0
"""The motor temperature for the workshop."""


class VehicleProtocol(StrEnum):
    """The protocols that take messages, named by the messages' origin; each vehicle uses one."""

    FYREHOSE = "fyrehose"
    SPP = "spp"
    ATTRIBUTE = "attribute"
    TUBE = "tube"


KINDS: Final = {
    VehicleProtocol.FYREHOSE: "taxi",
    VehicleProtocol.SPP: "bus",
    VehicleProtocol.ATTRIBUTE: "van",
    VehicleProtocol.TUBE: "tram",
}
"""The kind of vehicle that uses each protocol."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A part of the town; its edges belong to it."""

    name: str
    west: float
    east: float
    south: float
    north: float

    def holds(self, x: float, y: float) -> bool:
        """Return whether a point is inside."""
        return self.west <= x <= self.east and self.south <= y <= self.north


FENCES: Final = (
    Fence("harbour", 40, 280, 30, 170),
    Fence("old town", 460, 740, 230, 370),
    Fence("station", 920, 1160, 60, 220),
    Fence("stadium", 700, 980, 430, 570),
)


class VehicleMotion(NamedTuple):
    """The position and the speed of a vehicle."""

    x: float
    y: float
    speed: float


@dataclass(frozen=True, slots=True)
class Vehicle:
    """A vehicle: the block it goes round, and how."""

    name: str
    protocol: VehicleProtocol
    west: float
    east: float
    south: float
    north: float
    start: float
    metres_per_second: float
    swell: float
    backwards: bool
    warmth: float

    @property
    def topic(self) -> str:
        """The topic of its messages, where a protocol has topics."""
        return f"vehicle/{self.name}"

    def at(self, seconds: float) -> VehicleMotion:
        """Return its position and speed, ``seconds`` after the beginning."""
        turn = self.swell
        passed = self.metres_per_second * (seconds + 0.3 / turn * (1 - math.cos(turn * seconds)))
        speed = self.metres_per_second * (1 + 0.3 * math.sin(turn * seconds))
        x, y = self._round(self.start + (-passed if self.backwards else passed))
        return VehicleMotion(round(float(x), 1), round(float(y), 1), round(speed * 3.6, 1))

    def position(self, seconds: float) -> dict[str, str | float]:
        """Report its position."""
        x, y, speed = self.at(seconds)
        return {"vehicle": self.name, "x": x, "y": y, "speed": speed}

    def telemetry(self, seconds: float) -> dict[str, str | float]:
        """Report its condition."""
        temperature = 76 + (14 + 1.5 * self.warmth) * math.sin(seconds / 7 + self.warmth)
        battery = max(5.0, 98 - self.warmth * 4 - seconds / 6)
        return {"vehicle": self.name, "battery": round(battery, 1), "temperature": round(temperature, 1)}

    def _round(self, metres: float) -> tuple[float, float]:
        """Return the point ``metres`` along the block, from its south-western corner eastwards."""
        across, up = self.east - self.west, self.north - self.south
        left = metres % (2 * (across + up))
        if left < across:
            return self.west + left, self.south
        left -= across
        if left < up:
            return self.east, self.south + left
        left -= up
        if left < across:
            return self.east - left, self.north
        return self.west, self.north - (left - across)


def fleet(count: int, seed: int = 1) -> tuple[Vehicle, ...]:
    """Make vehicles, sharing the protocols among them.

    >>> [vehicle.name for vehicle in fleet(5)]
    ['taxi-1', 'bus-1', 'van-1', 'tram-1', 'taxi-2']
    """
    random = Random(seed)
    return tuple(_vehicle(number, random) for number in range(count))


def payload(report: dict[str, str | float]) -> bytes:
    """Encode a report as a message's payload, which is the same in every protocol."""
    return msgspec.json.encode(report)


def _vehicle(number: int, random: Random) -> Vehicle:
    protocol = tuple(VehicleProtocol)[number % len(VehicleProtocol)]
    west, east = sorted(random.sample(range(_BLOCK // 2, WIDTH, _BLOCK), 2))
    south, north = sorted(random.sample(range(_BLOCK // 2, HEIGHT, _BLOCK), 2))
    return Vehicle(
        name=f"{KINDS[protocol]}-{number // len(VehicleProtocol) + 1}",
        protocol=protocol,
        west=west,
        east=east,
        south=south,
        north=north,
        start=random.uniform(0, 2 * (east - west + north - south)),
        metres_per_second=random.uniform(9, 17),
        swell=random.uniform(0.2, 0.6),
        backwards=random.random() < 0.5,
        warmth=random.uniform(0, 6),
    )
