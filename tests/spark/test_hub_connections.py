"""Connections of Spark's processes: waited for, or not, and kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from time import monotonic

import pytest
from tests.spark.hubs import Hub

from headrace.errors import UnreachableError
from headrace.spark.hub_connections import close_links, link
from headrace.spark.options import HubOptions


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    close_links()
    yield
    close_links()


def test_a_hub_that_is_being_restarted_is_waited_for(hub: Hub) -> None:
    """Also by a process that has no connection yet: which of them has one is Spark's affair."""
    access = HubOptions(hub.servers, patience=60.0)
    hub.kill9()
    tried = threading.Event()
    back = threading.Thread(target=lambda: (tried.wait(), hub.restart()))
    back.start()
    with pytest.raises(UnreachableError), link(access, at_once=True):
        pytest.fail("nobody is there")
    tried.set()
    with link(access) as client:
        assert client.head().head == 0
    back.join()


def test_patience_has_an_end(hub: Hub) -> None:
    hub.kill9()
    begin = monotonic()
    with (
        pytest.raises(UnreachableError, match="nobody listens there"),
        link(HubOptions(hub.servers, patience=0.5)),
    ):
        pytest.fail("nobody is there")
    assert monotonic() - begin >= 0.5


def test_a_connection_is_kept_until_it_disappoints(start: Callable[..., Hub]) -> None:
    access = HubOptions(start().servers)
    with link(access) as first, link(access) as second:
        assert first is not second
    with link(access) as again:
        assert again in (first, second)
    with pytest.raises(ValueError, match="half read"), link(access) as spoilt:
        raise ValueError("half read")
    with link(access) as other:
        assert other is not spoilt
