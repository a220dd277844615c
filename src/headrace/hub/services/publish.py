"""Publishing to services: creations, messages and refusals.

A publish to a service by its id (SPP's PUBLISH, the client API, the Spark sink) creates it on first use: ``json`` if
the first value is a JSON object, ``last`` otherwise. The entry that creates it goes into the log right before the
message that needs it. This is decided by the services that are committed and those whose creation is under way. If
another creation of the same id comes earlier in the log, that one holds, and the state judges the message.

A client's :class:`ClientBudget` bounds its bytes in services: those of the services that
it was the last to publish to, and what is still on its way into the log. The bytes of all services are bounded by the
policy, which the state judges by; a change that would be refused there for certain is rejected before it is logged.

A removed id is not created again: that takes an explicit :func:`~headrace.hub.services.entries.create`. A publish to it
is a message like any other, and reaches the remaining subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from headrace.errors import (
    LimitError,
    MalformedError,
    RefusedError,
    StorageError,
    UsageError,
    WireError,
    shorten,
)
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Done
from headrace.hub.services.entries import ServiceKind, check_id, create
from headrace.hub.services.merge_patch import parse_object
from headrace.hub.services.objects import Services, StateOwner
from headrace.message import Batch, Run, envelope_rows


class ServiceChange(NamedTuple):
    """A new value for a service, or a patch to it."""

    service_id: str
    change: bytes


class RejectedChange(NamedTuple):
    """A change that is not published: the label of its counter, and the details."""

    change: ServiceChange
    reason: str
    detail: object


class ClientBudget(StateOwner, Protocol):
    """The share of the state that a client may have."""

    state_pending: int
    """Bytes of changes that are on their way into the log."""

    @property
    def most_state_bytes(self) -> int:
        """Maximum bytes; the setting is ``limits.state_bytes_per_client``."""


class ServiceUse(NamedTuple):
    """How changes use one service: their number, the kind that the first would create, and the first non-object."""

    kind: ServiceKind
    odd: bytes | None
    refused: LimitError | None = None
    """The reason why the first change cannot create the service, if any."""


def uses(rows: Iterable[pa.RecordBatch]) -> dict[str, ServiceUse]:
    """Summarize how rows use the services that their topics name, in the order of their first use."""
    found: dict[str, ServiceUse] = {}
    for batch in rows:
        encoded = batch.column("topic").dictionary_encode()
        names = encoded.dictionary.to_pylist()
        payloads = batch.column("payload")
        for place, code in enumerate(encoded.indices.to_pylist()):
            service_id = names[code]
            known = found.get(service_id)
            if known is not None and known.odd is not None:
                continue
            payload = payloads[place].as_py()
            refused = None
            try:
                kind = _kind_of(payload)
            except LimitError as error:
                kind, refused = ServiceKind.LAST, error
            if known is None:
                found[service_id] = ServiceUse(kind, payload if kind is ServiceKind.LAST else None, refused)
            elif kind is ServiceKind.LAST:
                found[service_id] = known._replace(odd=payload)
    return found


class ServicePublishing:
    """Takes changes of services into the log."""

    def __init__(self, hub: Hub, services: Services) -> None:
        self._hub = hub
        self._services = services
        self._creating: dict[str, _Creation] = {}

    def publish(
        self,
        changes: Sequence[ServiceChange],
        *,
        origin: str,
        publisher: str,
        done: Done | None = None,
        client: ClientBudget | None = None,
    ) -> list[RejectedChange]:
        """Submit changes in order, as one batch after the creations that they need; return the rejected ones.

        ``done`` is called with the outcome of the batch, if there is one.
        """
        taken: list[ServiceChange] = []
        rejected: list[RejectedChange] = []
        pending = 0
        for change in changes:
            try:
                growth = self._growth(change, client, pending)
                self._prepare(change)
            except _TooLargeError as error:
                rejected.append(RejectedChange(change, "state_bytes", error))
            except _TooManyError as error:
                rejected.append(RejectedChange(change, "services_max", error))
            except UsageError as error:
                rejected.append(RejectedChange(change, "malformed", error))
            except WireError as error:
                rejected.append(RejectedChange(change, error.reason, error))
            else:
                taken.append(change)
                pending += growth
        if taken:
            if client is not None:
                done = self._charged(client, {change.service_id for change in taken}, pending, done)
            self._hub.submit(_batch(taken, origin, publisher), done)
        return rejected

    def make_room(self, used: Mapping[str, ServiceUse]) -> None:
        """Submit the creations that changes to services need, or raise an error and submit none.

        The changes themselves follow in the same turn. If a service cannot take one, all are refused.
        """
        needed: dict[str, ServiceKind] = {}
        for service_id, use in used.items():
            kind = self._kind(service_id)
            if kind is None:
                check_id(service_id)
                if use.refused is not None:
                    raise use.refused
                kind = needed[service_id] = use.kind
            if kind is ServiceKind.JSON and use.odd is not None:
                what = f"service {service_id!r} is a JSON object"
                raise RefusedError("malformed", f"{what}, and {_shown(use.odd)} is not a change to one")
        if len(self._services) + len(self._creating) + len(needed) > self._services.policy.max:
            most = self._services.policy.max
            raise RefusedError("limit", f"{len(needed)} more services than the {most} of services.max")
        if needed and self._services.total_bytes >= self._services.policy.most_bytes:
            raise RefusedError("limit", self._services.too_large())
        for service_id, kind in needed.items():
            self._create(service_id, kind)

    def when_created(self, service_id: str, then: Callable[[], None]) -> bool:
        """Call ``then`` once the creation under way has ended; return ``False`` if there is none."""
        creation = self._creating.get(service_id)
        if creation is None:
            return False
        creation.waiting.append(then)
        return True

    def _prepare(self, change: ServiceChange) -> None:
        """Ensure that a change has a service that takes it, or raise."""
        service_id = change.service_id
        kind = self._kind(service_id)
        if kind is None:
            self._create(service_id, _kind_of(change.change))
        elif kind is ServiceKind.JSON:
            parse_object(change.change)

    def _growth(self, change: ServiceChange, client: ClientBudget | None, pending: int) -> int:
        """Return by how much a change may make the services grow; raise an error if there is no room for that."""
        service = self._services.get(change.service_id)
        growth = len(change.change)
        if service is None:
            growth += len(change.service_id.encode(errors="replace"))
        elif service.kind is ServiceKind.LAST:
            growth -= service.weight
        if growth <= 0:
            return 0
        if self._services.total_bytes + growth > self._services.policy.most_bytes and (
            service is None or service.kind is ServiceKind.LAST
        ):
            # For a JSON object the state knows how much it grows: usually less than the change's text.
            raise _TooLargeError(self._services.too_large())
        if client is not None:
            # An object that it takes over counts as a whole.
            new = 0 if service is None or service.owner is client else service.charge
            has = client.state_bytes + client.state_pending + pending
            if has + growth + new > client.most_state_bytes:
                most = client.most_state_bytes
                detail = f"the client has {has} bytes in services of {most} (limits.state_bytes_per_client)"
                raise _TooLargeError(detail)
        return growth

    def _charged(self, client: ClientBudget, ids: set[str], pending: int, done: Done | None) -> Done:
        """Charge a client for the services it changes, once its changes are in the log."""
        client.state_pending += pending

        def charged(outcome: Batch | StorageError) -> None:
            client.state_pending -= pending
            for service_id in ids:
                service = self._services.get(service_id)
                if service is not None and service.owner is not client:
                    service.belongs_to(client)
            if done is not None:
                done(outcome)

        return charged

    def _kind(self, service_id: str) -> ServiceKind | None:
        kind = self._services.kind(service_id)
        if kind is None and service_id in self._creating:
            kind = self._creating[service_id].kind
        return kind

    def _create(self, service_id: str, kind: ServiceKind) -> None:
        creation = create(service_id, kind)
        most = self._services.policy.max
        if len(self._services) + len(self._creating) >= most:
            raise _TooManyError(f"{most} services are there (services.max)")

        def ended(_: Batch | StorageError) -> None:
            for then in self._creating.pop(service_id).waiting:
                then()

        self._creating[service_id] = _Creation(kind)
        self._hub.submit(creation, ended)


@dataclass(slots=True)
class _Creation:
    """A service whose entry is on its way into the log, and the callbacks that wait for it."""

    kind: ServiceKind
    waiting: list[Callable[[], None]] = field(default_factory=list)


def _shown(payload: bytes) -> str:
    """Quote a change in an error, as text if possible."""
    try:
        return shorten(payload.decode())
    except UnicodeDecodeError:
        return shorten(payload)


class _TooManyError(UsageError):
    """There is no room for another service."""


class _TooLargeError(UsageError):
    """There is no room for more bytes."""


def _kind_of(value: bytes) -> ServiceKind:
    try:
        parse_object(value)
    except MalformedError:
        return ServiceKind.LAST
    return ServiceKind.JSON


def _batch(changes: Sequence[ServiceChange], origin: str, publisher: str) -> Batch:
    if len(changes) == 1:
        return Batch(
            Run.one(changes[0].change), origin=origin, publisher=publisher, topic=changes[0].service_id
        )
    run = Run.of(change.change for change in changes)
    topics = [change.service_id for change in changes]
    if topics.count(topics[0]) == len(topics):
        return Batch(run, origin=origin, publisher=publisher, topic=topics[0])
    columns = envelope_rows({"topic": pa.array(topics, pa.string())})
    return Batch(run, origin=origin, publisher=publisher, columns=columns)
