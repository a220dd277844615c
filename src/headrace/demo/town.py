"""The town: where its fences are, and where each vehicle is at any moment.

Everything is a function of time and of a seed, so that a run can be repeated, and a place can be asked for twice. A
vehicle goes round a block of the street grid at a speed that swells and falls; distances are metres, speeds km/h.
Figures are rounded here, once: what a vehicle says is what everybody compares.
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
"""Streets are so far apart."""

HOT: Final = 96.0
"""A motor of so many degrees is one for the workshop."""


class Way(StrEnum):
    """How a vehicle's messages come in; each is a protocol that takes messages, under the name of its origin."""

    FYREHOSE = "fyrehose"
    SPP = "spp"
    ATTRIBUTE = "attribute"
    TUBE = "tube"


KINDS: Final = {Way.FYREHOSE: "taxi", Way.SPP: "bus", Way.ATTRIBUTE: "van", Way.TUBE: "tram"}
"""What kind of vehicle speaks which protocol."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A part of the town; its edges belong to it."""

    name: str
    west: float
    east: float
    south: float
    north: float

    def holds(self, x: float, y: float) -> bool:
        """Whether a place is inside."""
        return self.west <= x <= self.east and self.south <= y <= self.north


FENCES: Final = (
    Fence("harbour", 40, 280, 30, 170),
    Fence("old town", 460, 740, 230, 370),
    Fence("station", 920, 1160, 60, 220),
    Fence("stadium", 700, 980, 430, 570),
)


class Place(NamedTuple):
    """Where a vehicle is, and how fast."""

    x: float
    y: float
    speed: float


@dataclass(frozen=True, slots=True)
class Vehicle:
    """A vehicle: the block it goes round, and how."""

    name: str
    way: Way
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
        """What its messages are about, where a protocol can say so."""
        return f"vehicle/{self.name}"

    def at(self, seconds: float) -> Place:
        """Where it is so long after the beginning."""
        turn = self.swell
        passed = self.metres_per_second * (seconds + 0.3 / turn * (1 - math.cos(turn * seconds)))
        speed = self.metres_per_second * (1 + 0.3 * math.sin(turn * seconds))
        x, y = self._round(self.start + (-passed if self.backwards else passed))
        return Place(round(float(x), 1), round(float(y), 1), round(speed * 3.6, 1))

    def position(self, seconds: float) -> dict[str, str | float]:
        """What it says of where it is."""
        x, y, speed = self.at(seconds)
        return {"vehicle": self.name, "x": x, "y": y, "speed": speed}

    def telemetry(self, seconds: float) -> dict[str, str | float]:
        """What it says of itself."""
        temperature = 76 + (14 + 1.5 * self.warmth) * math.sin(seconds / 7 + self.warmth)
        battery = max(5.0, 98 - self.warmth * 4 - seconds / 6)
        return {"vehicle": self.name, "battery": round(battery, 1), "temperature": round(temperature, 1)}

    def _round(self, metres: float) -> tuple[float, float]:
        """The place so many metres along the block, from its south-western corner eastwards."""
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
    """So many vehicles, the protocols shared out among them.

    >>> [vehicle.name for vehicle in fleet(5)]
    ['taxi-1', 'bus-1', 'van-1', 'tram-1', 'taxi-2']
    """
    random = Random(seed)
    return tuple(_vehicle(number, random) for number in range(count))


def payload(said: dict[str, str | float]) -> bytes:
    """What a vehicle says, as its message's payload: the same bytes by every protocol."""
    return msgspec.json.encode(said)


def _vehicle(number: int, random: Random) -> Vehicle:
    way = tuple(Way)[number % len(Way)]
    west, east = sorted(random.sample(range(_BLOCK // 2, WIDTH, _BLOCK), 2))
    south, north = sorted(random.sample(range(_BLOCK // 2, HEIGHT, _BLOCK), 2))
    return Vehicle(
        name=f"{KINDS[way]}-{number // len(Way) + 1}",
        way=way,
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
