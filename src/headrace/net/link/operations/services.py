"""The link's ``services``: list services, create one, remove one.

Creating and removing a service are log entries, and are answered once these are committed. Both may be retried after a
broken tube: a service that exists as requested, or an id that was removed already, is left as it is.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import LimitError, MalformedError, RefusedError, UnavailableError, UsageError
from headrace.hub.access.principal import Principal
from headrace.hub.services import entries as services
from headrace.hub.services.entries import ServiceKind
from headrace.hub.services.objects import Service, Services
from headrace.message import Batch
from headrace.net.link.connection import LinkConnection
from headrace.wire.link import requests as ask

SERVICES_A_TIME: Final = 256
SERVICES_LOOKED_AT: Final = 4096
"""Number of services that are checked at once for a client that may see only some of them."""


class LinkServices:
    """The services of one hub, for its link."""

    def __init__(self, known: Services) -> None:
        self._known = known

    def manage(self, connection: LinkConnection, request: ask.ServicesRequest, _body: memoryview) -> None:
        """Do what a ``services`` request asks."""
        name = request.service
        if name is None:
            if request.action != "list":
                raise RefusedError("malformed", f"{request.action}: name the service")
            found = self._seen(connection.principal, request.after)
            connection.answer(request.id, services=[_described(service) for service in found])
        elif request.action == "list":
            service = self._known.get(name)
            if service is None:
                raise _missing(name)
            connection.answer(request.id, service.snapshot, services=[_described(service)])
        elif request.action == "create":
            self._create(connection, request.id, name, ServiceKind(request.kind))
        else:
            self._remove(connection, request.id, name)

    def _seen(self, principal: Principal, after: int) -> list[Service]:
        """Return the next services that a principal may see."""
        found = self._known.after(after, SERVICES_A_TIME)
        if principal.may_do_everything:
            return found
        seen: list[Service] = []
        while found and len(seen) < SERVICES_A_TIME:
            visible = principal.seen([service.id for service in found])
            seen += [service for service, shown in zip(found, visible, strict=True) if shown]
            found = self._known.after(found[-1].created, SERVICES_LOOKED_AT)
        return seen[:SERVICES_A_TIME]

    def _create(self, connection: LinkConnection, request_id: int, name: str, kind: ServiceKind) -> None:
        if (there := self._known.get(name)) is not None:
            self._answer_created(connection, request_id, there, kind)
            return
        if len(self._known) >= self._known.policy.max:
            raise self._too_many()
        try:
            creation = services.create(name, kind)
        except UsageError as error:
            # The client sent the bad id, so the error is the client's, not our caller's.
            raise MalformedError("link", "service", name, str(error)) from None

        def created(_: Batch) -> None:
            # Another creation may precede it in the log, with another kind, or taking the last room.
            made = self._known.get(name)
            if made is None and len(self._known) < self._known.policy.max:
                raise UnavailableError(f"service {name!r} will be created once the upstream hub is back")
            if made is None:
                raise self._too_many()
            self._answer_created(connection, request_id, made, kind)

        connection.submit(request_id, creation, created)

    def _answer_created(
        self, connection: LinkConnection, request_id: int, service: Service, kind: ServiceKind
    ) -> None:
        if service.kind is not kind:
            raise RefusedError("conflict", f"service {service.id!r} exists already, with kind {service.kind}")
        connection.answer(request_id, services=[_described(service)])

    def _remove(self, connection: LinkConnection, request_id: int, name: str) -> None:
        if self._known.kind(name) is None:
            raise _missing(name)
        if self._known.get(name) is None:
            connection.answer(request_id, removed=False)
            return
        connection.submit(
            request_id, services.remove(name), lambda _: connection.answer(request_id, removed=True)
        )

    def _too_many(self) -> LimitError:
        return LimitError("link", "services", len(self._known) + 1, self._known.policy.max)


def _missing(name: str) -> RefusedError:
    return RefusedError("missing", f"there is no service {name!r}")


def _described(service: Service) -> dict[str, Any]:
    return {
        "id": service.id,
        "kind": str(service.kind),
        "created": service.created,
        "seq": service.seq,
        "bytes": service.weight,
    }
