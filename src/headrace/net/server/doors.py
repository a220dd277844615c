"""Opens a hub's doors: those that its roles use and that have an address in the settings.

Each door is registered before it accepts connections, so that no commit is missed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

from headrace.config import Address
from headrace.net.cluster.node import ClusterNode
from headrace.net.cluster.parcel_door import ParcelDoor, ParcelHost
from headrace.net.cluster.peer_connections import PeerConnections
from headrace.net.fyrehose.door import FyrehoseDoor
from headrace.net.link.door import LinkDoor
from headrace.net.routing.dispatcher_door import DispatcherDoor, Targets
from headrace.net.routing.outgoing_connections import Dialling
from headrace.net.routing.publisher_door import PublisherDoor
from headrace.net.routing.roles import Routing
from headrace.net.routing.router_door import RouterDoor
from headrace.net.routing.sdk_door import SdkDoor
from headrace.net.routing.status_door import RingPosition, StatusDoor, ToMatchers
from headrace.net.server.accepting.binding import DoorBinder
from headrace.net.server.accepting.door import Door, DoorContext
from headrace.net.server.accepting.tcp_door import TcpDoor
from headrace.net.server.status.program_reports import ProgramReports
from headrace.net.spp.door import SppDoor


class DoorOpener:
    """Opens the doors of one hub, and registers each with ``add``."""

    def __init__(self, context: DoorContext, binder: DoorBinder, add: Callable[[Door], None]) -> None:
        self._context = context
        self._settings = context.settings
        self._listen = context.settings.listen
        self._roles = context.settings.node.roles
        self._binder = binder
        self._add = add

    async def backbone(self) -> None:
        """Open the fyrehose door."""
        if self._listen.fyrehose is not None and "fyrehose" in self._roles:
            tcp: socket.socket
            udp: socket.socket | None
            if self._context.entrance.tls.accepts("fyrehose") is None:
                tcp, udp = self._binder.stream_and_datagrams("fyrehose", self._listen.fyrehose)
            else:
                # UDP would carry the same messages unencrypted.
                tcp, udp = self._binder.stream("fyrehose", self._listen.fyrehose), None
            door = FyrehoseDoor(self._context, tcp, udp)
            self._add(door)
            await door.open()

    async def services(self) -> None:
        """Open the spp door."""
        if self._listen.spp is not None and "spp" in self._roles:
            door = SppDoor(self._context, self._binder.stream("spp", self._listen.spp))
            self._add(door)
            await door.open()

    async def routing(self) -> Routing:
        """Open the doors of the attribute protocol and the roles behind them."""
        context, listen, roles, stream = self._context, self._listen, self._roles, self._binder.stream
        matchers = context.parts.matchers
        routing = Routing(context, context.parts.subscriptions, matchers)
        self._add(routing)
        doors: list[TcpDoor[Any] | Dialling[Any]] = []
        if "publisher" in roles and listen.publisher is not None:
            doors.append(PublisherDoor(context, stream("publisher", listen.publisher)))
        if routing.connector is not None and listen.sdk is not None:
            doors.append(SdkDoor(context, routing.connector, stream("sdk", listen.sdk)))
        if routing.connector is not None and listen.router is not None:
            doors.append(RouterDoor(context, routing, stream("router", listen.router)))
        if routing.dispatcher is not None:
            if listen.dispatcher is not None:
                door = stream("dispatcher", listen.dispatcher)
                doors.append(DispatcherDoor(context, routing, routing.dispatcher, door))
            doors += Targets.all_of(context, routing.dispatcher, routing.id)
        if routing.to_dispatcher is not None:
            doors.append(routing.to_dispatcher)
        if "matcher" in roles:
            place = RingPosition(context, lambda: self._binder.doors)
            if listen.status is not None:
                doors.append(StatusDoor(context, place, stream("status", listen.status)))
            doors.append(ToMatchers(context, place, matchers))
        for each in doors:
            self._add(each)
            await each.open()
        return routing

    async def nodes(self, cluster: ClusterNode, listening: socket.socket, peers: Sequence[Address]) -> None:
        """Open the door of a cluster's node, and its connections to the other nodes."""
        tls = self._context.entrance.tls.between_nodes()
        dialled = PeerConnections(self._context, cluster, tls.client)
        cluster.ask = dialled.ask
        for address in peers:
            dialled.dial(address)
        self._add(dialled)
        door = ParcelDoor(self._context, cluster, listening, tls.server)
        self._add(door)
        await door.open()

    async def lone_node(self) -> None:
        """Open the parcel door of a hub that is in no cluster."""
        if self._listen.parcel is None or "sequence" not in self._roles:
            return
        listening = self._binder.stream("parcel", self._listen.parcel)
        now = asyncio.get_running_loop().time()
        where = self._binder.doors["parcel"]
        lone = ParcelHost(self._context.hub, self._settings.node.name, where, now)
        dialled = PeerConnections(self._context, lone)
        lone.ask = dialled.ask
        self._add(dialled)
        door = ParcelDoor(self._context, lone, listening)
        self._add(door)
        await door.open()

    async def link(
        self,
        status: Callable[[], dict[str, object]],
        reports: ProgramReports,
        cluster: ClusterNode | None,
    ) -> None:
        """Open the link, over TCP and WebSocket."""
        tcp, websocket = self._listen.tube_tcp, self._listen.tube_ws
        if "tube" not in self._roles or (tcp is None and websocket is None):
            return
        link = LinkDoor(self._context, status, reports)
        self._add(link)
        if cluster is not None:
            link.hellos.not_yet = cluster.not_yet
        if tcp is not None:
            await link.open("tcp", self._binder.stream("tube_tcp", tcp))
        if websocket is not None:
            await link.open("websocket", self._binder.stream("tube_ws", websocket))
