"""The fyrehose door: one port number, TCP and UDP, one set of rules."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Network

from headrace.hub.access.addresses import Addresses
from headrace.hub.backbone.rules import Access, Backbone
from headrace.hub.backbone.rules import Door as OwnDoor
from headrace.hub.backbone.udp_subscribers import Bounds
from headrace.message import Batch
from headrace.net.fyrehose.tcp import FyrehoseTcp
from headrace.net.fyrehose.udp import FyrehoseUdp
from headrace.net.server.door import House
from headrace.net.server.recording import recorded_datagrams


class FyrehoseDoor:
    """The backbone, open on a TCP and a UDP socket."""

    def __init__(self, house: House, tcp: socket.socket, udp: socket.socket) -> None:
        udp = recorded_datagrams(udp, "fyrehose")
        backbone = _backbone(house, udp)
        self.tcp = FyrehoseTcp(house.hub, house.settings, backbone, house.connections, house.readers)
        self.udp = FyrehoseUdp(house.hub, house.settings, backbone, udp, house.readers)
        self._listening = tcp
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.tcp.connection, sock=self._listening, backlog=1024)

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Send newly committed batches to every subscriber that has room."""
        self.tcp.deliver(batches)
        self.udp.deliver(batches)

    def tick(self, now: float) -> None:
        """Let subscriptions lapse and cut off those who take nothing."""
        self.tcp.tick(now)

    def relieved(self) -> None:
        """Read from publishers again."""
        self.tcp.relieved()

    def facts(self) -> dict[str, int]:
        """Who subscribes."""
        return {"fyrehose_tcp": len(self.tcp.subscribers), "fyrehose_udp": len(self.udp)}

    def stop(self) -> None:
        """Accept and read nothing more."""
        if self._server is not None:
            self._server.close()
        self.tcp.stop()
        self.udp.close()

    async def close(self) -> None:
        """Send what is buffered and close every connection."""
        self.tcp.close()
        await self.tcp.closed.wait()

    def abort(self) -> None:
        """Close whatever is still open, now."""
        self.tcp.abort()


def _backbone(house: House, udp: socket.socket) -> Backbone:
    settings = house.settings
    host, port = udp.getsockname()[:2]
    everyone = Addresses([IPv4Network("0.0.0.0/0")] if settings.fyrehose.coalesce else [])
    bounds = Bounds(
        subscribers=settings.limits.connections,
        per_address=settings.limits.connections_per_address,
        lease=settings.fyrehose.subscriber_seconds,
        request=settings.fyrehose.request_limit,
    )
    access = Access(
        allow=Addresses(settings.fyrehose.allow), required=settings.auth.required, coalesce=everyone
    )
    return Backbone(house.hub.log, OwnDoor(_OwnAddresses(host), port), access, bounds)


class _OwnAddresses:
    """The addresses a door listens at: one, or every one of this machine."""

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
