"""A hub to try the kit on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.hubprocess import HubProcess

from headrace.config import Address
from headrace.conform.target import Target

DOOR = {"tube": "tube_tcp", "tube over WebSocket": "tube_ws"}

TargetOf = Callable[..., Target]


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with HubProcess.start(tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture
def target_of(hub: HubProcess) -> TargetOf:
    """Where a door of the hub is; a middleman may stand before it."""

    def target(door: str, *, port: int | None = None, patience: float = 60.0) -> Target:
        place = Address(*hub.address(door))
        return Target(
            place if port is None else Address(place.host, port),
            # Long enough for a matcher that has to be compiled first.
            patience,
            door if door in ("publisher", "dispatcher", "router", "status") else "",
            Address(*hub.address("sdk")),
            Address(*hub.address("publisher")),
            door == "tube_ws",
        )

    return target
