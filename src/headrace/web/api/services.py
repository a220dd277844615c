"""Services over HTTP: the dashboard's lists and views, and ``/v1/service/ID`` for everybody.

``GET /v1/service/ID`` answers with the object as it is, and with ``?live=sse`` goes on with an event for each change.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any, Final

from aiohttp import web

from headrace.hub.services.entries import ServiceKind
from headrace.hub.services.objects import Service
from headrace.message import MAX_SEQUENCE
from headrace.net.server.process import Server
from headrace.web.access.rights import check_service, principal_of
from headrace.web.answers import as_json, number_in
from headrace.web.api import messages
from headrace.web.refusals import refusal
from headrace.web.stream_holder import HeldStreams

PUBLIC: Final = "/v1/service/"

_MOST: Final = 200
"""Services in one answer."""
_LOOK_SECONDS: Final = 0.25


class ServiceHandlers:
    """The handlers of requests about services."""

    def __init__(self, server: Server, streams: HeldStreams) -> None:
        self._server = server
        self._streams = streams
        self._stream_values = streams.held(self._public_events)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the handlers."""
        return [
            web.get("/api/services", self._list),
            web.get("/api/service", self._one),
            web.get("/api/service/events", self._streams.held(self._events)),
            web.get(PUBLIC + "{id:.+}", self._public),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        contains = request.query.get("contains", "")
        count = number_in(request, "count", _MOST, 1, _MOST)
        after = number_in(request, "after", 0, 0, MAX_SEQUENCE)
        principal = principal_of(request)
        seen = list(self._server.services)
        if not principal.may_do_everything:
            visible = principal.seen([service.id for service in seen])
            seen = [service for service, shown in zip(seen, visible, strict=True) if shown]
        chosen = (service for service in seen if service.created > after and contains in service.id)
        described = [_describe(service, messages.PREVIEW) for service in islice(chosen, count)]
        return as_json({"services": described, "total": len(seen)})

    async def _one(self, request: web.Request) -> web.Response:
        return as_json(_describe(self._requested(request, request.query.get("id", "")), messages.WHOLE))

    async def _events(self, request: web.Request, response: web.StreamResponse) -> None:
        service = self._requested(request, request.query.get("id", ""))
        await self._send_changes(request, response, service, lambda each: _describe(each, messages.WHOLE))

    async def _public(self, request: web.Request) -> web.StreamResponse:
        match request.query.get("live"):
            case "sse":
                return await self._stream_values(request)
            case None:
                service = self._requested(request, request.match_info["id"])
                kind = "application/json" if service.kind is ServiceKind.JSON else "application/octet-stream"
                headers = {"Cache-Control": "no-store", "Stream-Next-Offset": str(service.seq)}
                return web.Response(body=service.snapshot, content_type=kind, headers=headers)
            case other:
                raise refusal(web.HTTPBadRequest, f"live={other}: a service can be followed with live=sse")

    async def _public_events(self, request: web.Request, response: web.StreamResponse) -> None:
        service = self._requested(request, request.match_info["id"])
        await self._send_changes(request, response, service, _value)

    async def _send_changes(
        self, request: web.Request, response: web.StreamResponse, service: Service, shown: Any
    ) -> None:
        """Send an object now and after each change; changes that come at once are one event."""
        async with self._streams.sending(request, response) as events:
            seen = -1
            while True:
                current = self._server.services.get(service.id)
                if current is None:
                    await events.send("removed", {"id": service.id})
                    return
                if current.seq != seen:
                    seen = current.seq
                    await events.send("service", shown(current))
                else:
                    await events.keep_alive()
                await asyncio.sleep(_LOOK_SECONDS)

    def _requested(self, request: web.Request, name: str) -> Service:
        check_service(self._server.access, request, name)
        service = self._server.services.get(name)
        if service is None:
            raise refusal(web.HTTPNotFound, f"there is no service {name!r}")
        return service


def _value(service: Service) -> dict[str, Any]:
    if isinstance(service.value, bytes):
        return {"seq": service.seq, **messages.readable("value", service.value, len(service.value))}
    return {"seq": service.seq, "value": service.value}


def _describe(service: Service, limit: int) -> dict[str, Any]:
    value = service.snapshot
    return {
        "id": service.id,
        "kind": service.kind.value,
        "created": service.created,
        "seq": service.seq,
        "size": len(value),
        **messages.readable("value", value, limit),
    }
