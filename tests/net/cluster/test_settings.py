"""Which of the configured addresses is a node's own."""

from __future__ import annotations

import socket

import pytest

from headrace.config import Address
from headrace.net.cluster.settings import is_own


@pytest.mark.parametrize(
    ("peer", "door", "own"),
    [
        ("127.0.0.1:7878", "127.0.0.1:7878", True),
        ("localhost:7878", "127.0.0.1:7878", True),
        ("localhost:7879", "127.0.0.1:7878", False),
        ("127.0.0.2:7878", "127.0.0.1:7878", False),
        # A door on all addresses leaves no room for another one with its port.
        ("127.0.0.2:7878", "0.0.0.0:7878", True),
        ("localhost:7878", "0.0.0.0:7878", True),
        ("203.0.113.9:7878", "0.0.0.0:7878", False),
    ],
)
def test_own(peer: str, door: str, own: bool) -> None:
    assert is_own(Address.parse(peer), Address.parse(door)) == own


@pytest.mark.parametrize("error", [socket.gaierror("not known"), UnicodeError("label too long")])
def test_a_name_that_leads_nowhere_is_somebody_elses(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert not is_own(Address("gone", 7878), Address("0.0.0.0", 7878))
