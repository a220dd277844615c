"""The fyrehose door: one port number, TCP and UDP, one set of rules.

ADDR is four bytes, so UDP is for IPv4. A door that listens on IPv6 serves TCP only.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Sequence
from functools import partial
from ipaddress import IPv4Network

from headrace.hub.access.access import AccessControl
from headrace.hub.access.addresses import Addresses
from headrace.hub.backbone.rules import Backbone, BackboneAccess, OwnDoor
from headrace.hub.backbone.udp_subscribers import UdpBounds
from headrace.message import Batch
from headrace.net.fyrehose.tcp import FyrehoseTcpDoor
from headrace.net.fyrehose.udp import FyrehoseUdp
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.recording import recorded_datagrams
from headrace.net.server.accepting.tls import NO_DATAGRAMS
from headrace.wire.fyrehose.packet import COOKIE_BYTES

logger = logging.getLogger("headrace")

_LOOPBACK = IPv4Network("127.0.0.0/8")
"""Addresses that nobody elsewhere can send from, so that no peer there need prove that it receives there."""


class FyrehoseDoor(FyrehoseTcpDoor):
    """The backbone: a TCP door with a UDP socket beside it, on IPv4."""

    def __init__(self, context: DoorContext, tcp: socket.socket, udp: socket.socket | None) -> None:
        super().__init__(context, _backbone(context, tcp), tcp)
        self.udp: FyrehoseUdp | None = None
        if udp is not None:
            self.udp = FyrehoseUdp(context, self.backbone, recorded_datagrams(udp, "fyrehose"))
        elif context.entrance.tls.accepts("fyrehose") is not None:
            logger.info("%s", NO_DATAGRAMS)
        else:
            logger.warning(
                "listen.fyrehose is an IPv6 address: the backbone serves TCP only, since fyrehose addresses"
                " datagrams by IPv4"
            )

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Send newly committed batches to every subscriber that has room."""
        super().deliver(batches)
        if self.udp is not None:
            self.udp.deliver(batches)

    def facts(self) -> dict[str, int]:
        """Return the number of subscribers."""
        return {"fyrehose_tcp": len(self.subscribers), "fyrehose_udp": len(self.backbone)}

    def stop(self) -> None:
        """Accept and read nothing more."""
        super().stop()
        if self.udp is not None:
            self.udp.close()


def _backbone(context: DoorContext, bound: socket.socket) -> Backbone:
    settings = context.settings
    host, port = bound.getsockname()[:2]
    everyone = Addresses([IPv4Network("0.0.0.0/0")] if settings.fyrehose.coalesce else [])
    bounds = UdpBounds(
        subscribers=settings.limits.connections,
        per_address=settings.limits.connections_per_address,
        lease=settings.fyrehose.subscriber_seconds,
        request=settings.fyrehose.request_limit,
    )
    access = BackboneAccess(
        allow=Addresses(settings.fyrehose.allow),
        required=settings.auth.required,
        known=_PrincipalAddresses(context.access),
        coalesce=everyone,
        trusted=Addresses([_LOOPBACK, *settings.fyrehose.allow]),
    )
    door = OwnDoor(_OwnAddresses(host), port)
    return Backbone(context.hub.log, door, access, bounds, partial(secrets.token_bytes, COOKIE_BYTES))


class _PrincipalAddresses:
    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def __contains__(self, address: object) -> bool:
        return isinstance(address, str) and self._access.principals.of_address(address) is not None


class _OwnAddresses:
    """The addresses a door listens at: one, or all of this machine."""

    def __init__(self, host: str) -> None:
        self._host = host

    def __contains__(self, address: object) -> bool:
        if self._host != "0.0.0.0":
            return address == self._host
        # Only an address of this machine can be bound.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            try:
                sock.bind((str(address), 0))
            except OSError:
                return False
        return True
