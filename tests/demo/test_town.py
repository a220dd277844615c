"""The town is a function of time: vehicles stay on their streets, at the speed they say."""

from __future__ import annotations

import doctest
import json
import math

import pytest

from headrace.demo import town
from headrace.demo.town import FENCES, HEIGHT, WIDTH, VehicleProtocol, fleet, payload


def test_examples() -> None:
    assert doctest.testmod(town).failed == 0


def test_every_protocol_has_vehicles_and_every_name_is_one() -> None:
    vehicles = fleet(24)
    assert {vehicle.protocol for vehicle in vehicles} == set(VehicleProtocol)
    assert len({vehicle.name for vehicle in vehicles}) == 24
    assert fleet(24) == vehicles
    assert fleet(24, seed=2) != vehicles


@pytest.mark.parametrize("vehicle", fleet(12), ids=lambda vehicle: vehicle.name)
def test_a_vehicle_goes_round_its_block_as_fast_as_it_says(vehicle: town.Vehicle) -> None:
    step = 0.1
    for tenth in range(2000):
        x, y, speed = vehicle.at(tenth * step)
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
        on_street = x in (vehicle.west, vehicle.east) or y in (vehicle.south, vehicle.north)
        assert on_street
        there = vehicle.at((tenth + 1) * step)
        moved = abs(there.x - x) + abs(there.y - y)
        # Half of it is what rounding may do.
        assert math.isclose(moved, speed / 3.6 * step, abs_tol=0.35)


def test_what_is_said_has_numbers_that_are_numbers_by_every_protocol() -> None:
    for vehicle in fleet(8):
        for said in (vehicle.position(3.0), vehicle.telemetry(3.0)):
            assert all(isinstance(value, float) for name, value in said.items() if name != "vehicle")
            assert json.loads(payload(said)) == said


def test_fences_hold_their_edges_and_are_in_town() -> None:
    for fence in FENCES:
        assert 0 <= fence.west < fence.east <= WIDTH
        assert 0 <= fence.south < fence.north <= HEIGHT
        assert fence.holds(fence.west, fence.south)
        assert fence.holds(fence.east, fence.north)
        assert not fence.holds(fence.east + 0.1, fence.north)
