"""An authority, a hub whose doors all speak TLS, and the certificates of its clients."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from tests.certificates import Authority, Certificate

from headrace.config import Address
from headrace.testing import Hub

SECONDS = 20.0
"""How long anything may take: much longer than it does."""


@dataclass(frozen=True, slots=True)
class TlsHub:
    """A hub with TLS, and who has signed its certificate."""

    hub: Hub
    authority: Authority
    certificate: Certificate

    @property
    def ca(self) -> str:
        return str(self.authority.ca)

    def endpoint(self, door: str) -> tuple[str, int]:
        """Return a door's host and port."""
        address = Address.parse(self.hub.doors[door])
        return address.host, address.port

    def dial(self, door: str) -> socket.socket:
        """Connect to a door, without TLS so far."""
        return socket.create_connection(self.endpoint(door), SECONDS)

    def refusals(self, door: str, reason: str) -> int:
        """Return how often a door has refused somebody for a reason."""
        return self.hub._running.hub.counters.get("refused", door=door, reason=reason)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "others")


@pytest.fixture(scope="session")
def certificate(authority: Authority) -> Certificate:
    return authority.sign("hub.example")


@pytest.fixture(scope="module")
def tls(authority: Authority, certificate: Certificate) -> Iterator[TlsHub]:
    """A hub with TLS at every door, which asks clients for certificates."""
    settings = {"tls.cert": certificate.cert, "tls.key": certificate.key, "tls.ca": authority.ca}
    with Hub({key: str(path) for key, path in settings.items()}) as hub:
        yield TlsHub(hub, authority, certificate)


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path) -> Iterator[None]:
    """Each test has an environment of its own, which commands may change."""
    with mock.patch.dict(os.environ):
        for name in ("CA", "CERT", "CERT_KEY", "PIN", "CONTEXT"):
            os.environ.pop(f"HEADRACE_{name}", None)
        os.environ["XDG_CONFIG_HOME"] = str(tmp_path / "config")
        yield
