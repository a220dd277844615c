"""The table of principals: finds a principal by client id, certificate, token or address.

The whole table is made from the settings, and replaced when they change. A peer that proves nothing is ``anonymous``:
it may do everything, unless the settings restrict it; if authentication is required (``auth.required``), it may do
nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from headrace.config import Access, Secret, Settings
from headrace.errors import ConfigError
from headrace.hub.access.addresses import parse_address
from headrace.hub.access.principal import EVERYTHING, Principal

ANONYMOUS: Final = "anonymous"
UNKNOWN: Final = "unknown"
"""The name of a peer that has not proven who it is, where that is required."""

_PLACES: Final = 4096
"""Addresses whose principal is remembered."""


class Principals:
    """All principals of a hub; ``keys`` are those of ``settings.access``, by name, read from their files."""

    def __init__(self, settings: Settings, keys: Mapping[str, Secret]) -> None:
        self._settings = settings
        self.required = settings.auth.required
        self.keys: dict[str, Secret] = dict(settings.auth.clients)
        """Every client's key, by client id."""
        self.anonymous = self._nobody(settings.access.get(ANONYMOUS))
        self._named = {self.anonymous.name: self.anonymous}
        self._clients: dict[str, Principal] = {}
        self._certificates: dict[str, Principal] = {}
        self._tokens: dict[str, Principal] = {}
        for client, key in settings.auth.clients.items():
            principal = Principal(client, EVERYTHING, owner=client, proofs=[(client, key)])
            self._named[client] = self._clients[client] = principal
        for name, entry in settings.access.items():
            if name != ANONYMOUS:
                self._add(name, entry, keys.get(name))
        networks: list[tuple[IPv4Network | IPv6Network, Principal]] = [
            (network, self._named[name])
            for name, entry in settings.access.items()
            for network in entry.addresses
        ]
        # An address belongs to the narrowest network that contains it.
        self._networks = sorted(networks, key=lambda pair: -pair[0].prefixlen)
        self.of_address = lru_cache(_PLACES)(self._of_address)

    def named(self, name: str) -> Principal | None:
        """Return the principal of a name."""
        return self._named.get(name)

    def of_client_id(self, client: str) -> Principal | None:
        """Return the principal that has a client id, given in lower case."""
        return self._clients.get(client)

    def of_certificate(self, subject: str | None) -> Principal | None:
        """Return the principal whose client certificate has a subject name."""
        return self._certificates.get(subject) if subject else None

    def of_token(self, token: str) -> Principal | None:
        """Return the principal that has a bearer token, in constant time."""
        given = hashlib.sha256(token.encode(errors="replace")).hexdigest()
        found = None
        for known, principal in self._tokens.items():
            if hmac.compare_digest(known, given):
                found = principal
        return found

    def of_peer(self, address: str, certificate: str | None = None) -> Principal:
        """Return who a peer is before it says anything, by its certificate or else its address."""
        return self.of_certificate(certificate) or self.of_address(address) or self.anonymous

    def _of_address(self, address: str) -> Principal | None:
        try:
            place = parse_address(address)
        except ValueError:
            return None
        for network, principal in self._networks:
            if place in network:
                return principal
        return None

    def _nobody(self, entry: Access | None) -> Principal:
        if self.required:
            return Principal(UNKNOWN, anonymous=True, known=False)
        if entry is None:
            return Principal(ANONYMOUS, EVERYTHING, anonymous=True)
        if entry != Access(allow=entry.allow, deny=entry.deny, limits=entry.limits):
            raise self._wrong(
                ANONYMOUS, "allow", "only allow and deny, and limits: who is anonymous proves nothing"
            )
        # Some names are others' now, so those that it uses are its own.
        return Principal(ANONYMOUS, entry.allow, entry.deny, owner=ANONYMOUS, anonymous=True)

    def _add(self, name: str, entry: Access, key: Secret | None) -> None:
        proofs: list[object] = [*entry.addresses]
        if entry.client_id:
            if key is None:
                raise self._wrong(name, "client_id", f"access.{name}.key or key_file beside it")
            proofs.append((entry.client_id, key))
        elif key is not None:
            raise self._wrong(name, "key_file" if entry.key_file else "key", "a client_id beside it")
        if entry.certificate:
            proofs.append(("certificate", entry.certificate))
        if entry.token_sha256:
            proofs.append(("token", entry.token_sha256))
        principal = Principal(name, entry.allow, entry.deny, owner=entry.client_id or name, proofs=proofs)
        self._named[name] = principal
        if entry.client_id:
            self._claim(self._clients, entry.client_id, principal, "client_id")
            if key is not None:
                self.keys[entry.client_id] = key
        if entry.certificate:
            self._claim(self._certificates, entry.certificate, principal, "certificate")
        if entry.token_sha256:
            self._claim(self._tokens, entry.token_sha256, principal, "token_sha256")

    def _claim(self, table: dict[str, Principal], proof: str, principal: Principal, setting: str) -> None:
        if (other := table.get(proof)) is not None:
            raise self._wrong(principal.name, setting, f"one of its own: this is {other.name}'s, too")
        table[proof] = principal

    def _wrong(self, name: str, setting: str, expected: str) -> ConfigError:
        key = f"access.{name}.{setting}"
        return ConfigError(key, None, source=self._settings.source(key), expected=expected)
