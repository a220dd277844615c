"""Hubs for tests of the source and the sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.spark.hubs import Hub

from headrace.spark.hub_connections import close_links


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Hub]]:
    """Start hubs, each under a name of its own; they end with the test."""
    hubs: list[Hub] = []

    def begin(*sets: str, name: str = "hub") -> Hub:
        hubs.append(Hub.start(tmp_path / name, *sets))
        return hubs[-1]

    try:
        yield begin
    finally:
        close_links()
        for hub in hubs:
            hub.__exit__(None, None, None)


@pytest.fixture
def hub(start: Callable[..., Hub]) -> Hub:
    return start()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with 400 messages of all kinds."""
    with Hub.start(tmp_path_factory.mktemp("hub")) as hub:
        for number in range(40):
            attributes = {"k": "v" * (number % 5), "other": "x"} if number % 2 else {}
            payloads = [bytes([number]) * (number + each) for each in range(10)]
            hub.publish(payloads, topic="ab"[number % 2], attributes=attributes, numbers={"n": number / 2})
        yield hub
