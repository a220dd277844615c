"""Which rights the requests of the http door need.

A request is checked here before a handler sees it. What shows messages, services or consumers shows those that its
principal may see: the handlers ask :func:`principal_of`. Whatever is not named here needs ``admin``.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from headrace.hub.access.access import AccessControl, forbidden
from headrace.hub.access.principal import Action, Principal
from headrace.web.refusals import refusal

DOOR: Final = "http"
_PRINCIPAL: Final = web.RequestKey("principal", Principal)

_OWN_CHECKS: Final = (
    "/api/me",
    "/api/status",
    "/api/history",
    "/api/events",
    "/api/messages",
    "/api/tail",
    "/api/services",
    "/api/service",
    "/api/service/events",
    "/api/consumers",
    "/api/consumers/reset",
    "/api/consumers/remove",
    "/api/sql",
)
"""Requests that anybody may make who is known, each for what it may see."""

_SAFE: Final = ("GET", "HEAD", "OPTIONS")


def set_principal(request: web.Request, principal: Principal) -> None:
    """Note who makes a request."""
    request[_PRINCIPAL] = principal


def principal_of(request: web.Request) -> Principal:
    """Return who makes a request."""
    return request[_PRINCIPAL]


def check_path(access: AccessControl, request: web.Request) -> None:
    """Refuse a request that its principal may not make, whatever it asks for; note what changes something."""
    path = request.path
    if not path.startswith("/api/"):
        return
    if not (path in _OWN_CHECKS or path.startswith("/api/messages/")):
        check(access, request, Action.ADMIN)
        if request.method not in _SAFE:
            access.changed(principal_of(request), DOOR, str(request.remote), path.removeprefix("/api/"), "")


def check(
    access: AccessControl, request: web.Request, action: Action, what: str = "", *, told: bool = True
) -> None:
    """Refuse a request unless its principal may do this action on this name, which is ``told`` if it is its own."""
    principal = principal_of(request)
    if not access.may(principal, action, DOOR, what, str(request.remote)):
        raise refusal(web.HTTPForbidden, forbidden(principal, action, what if told else "").reason)


def check_service(access: AccessControl, request: web.Request, service: str) -> None:
    """Refuse a request for a service that its principal may not see."""
    principal = principal_of(request)
    if not access.may_use(principal, service, Action.READ, DOOR, str(request.remote)):
        raise refusal(web.HTTPForbidden, forbidden(principal, Action.SERVICE, service).reason)
