from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from headrace.hub.access.addresses import Addresses


def listed(*networks: str) -> Addresses:
    return Addresses([IPv4Network(network) for network in networks])


@pytest.mark.parametrize(
    "address",
    ["10.0.0.0", "10.1.2.3", "10.255.255.255", "192.0.2.7", "::ffff:10.1.2.3", "::ffff:10.1.2.3%eth0"],
)
def test_in_a_network_or_alone(address: str) -> None:
    assert address in listed("10.0.0.0/8", "192.0.2.7")


@pytest.mark.parametrize("address", ["11.0.0.0", "9.255.255.255", "192.0.2.8", "127.0.0.1"])
def test_not_listed(address: str) -> None:
    assert address not in listed("10.0.0.0/8", "192.0.2.7")


def test_nothing_is_in_an_empty_list() -> None:
    assert "127.0.0.1" not in Addresses([])


def test_everyone() -> None:
    assert "203.0.113.9" in listed("0.0.0.0/0")


@pytest.mark.parametrize("what", ["", "::1", "localhost", "10.0.0", "10.0.0.1:80", 1, None, b"10.0.0.1"])
def test_what_is_no_address_is_not_listed(what: object) -> None:
    assert what not in listed("0.0.0.0/0")
