"""What a publish to services becomes: creations, messages and refusals.

Whoever publishes to a service by its id (SPP's PUBLISH, the client API, the Spark sink) creates it on first use:
``json`` if the first value is a JSON object, ``last`` otherwise. The entry that creates it goes into the log right
before the message that needs it.

That is decided before anything is in the log, by the services that are committed and those whose creation is under way.
If another creation of the same id is in the log earlier after all, that one holds, and the state judges the message.

A removed id is not created again: that takes an explicit :func:`~headrace.hub.services.objects.create`. A publish to
it is a message like any other, and reaches those who are still subscribed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
from headrace.hub.services.merge_patch import parse_object
from headrace.hub.services.objects import Kind, Services, check_id, create
from headrace.message import Batch, Run, envelope_rows


class Change(NamedTuple):
    """A new value for a service, or a patch to it."""

    service_id: str
    change: bytes


class Rejected(NamedTuple):
    """A change that is not published: a word to count it under, and the whole story."""

    change: Change
    reason: str
    detail: object


class Use(NamedTuple):
    """What many changes are to one service: the kind the first would create, and the first that is no JSON object."""

    kind: Kind
    odd: bytes | None
    refused: LimitError | None = None
    """Why the first cannot create one, where it cannot."""


def uses(rows: Iterable[pa.RecordBatch]) -> dict[str, Use]:
    """How rows use the services that their topics name, in the order of their first use."""
    found: dict[str, Use] = {}
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
                kind, refused = Kind.LAST, error
            if known is None:
                found[service_id] = Use(kind, payload if kind is Kind.LAST else None, refused)
            elif kind is Kind.LAST:
                found[service_id] = known._replace(odd=payload)
    return found


class Changes:
    """The way into the log for those who publish to services."""

    def __init__(self, hub: Hub, services: Services) -> None:
        self._hub = hub
        self._services = services
        self._creating: dict[str, _Creation] = {}

    def publish(
        self, changes: Sequence[Change], *, origin: str, publisher: str, done: Done | None = None
    ) -> list[Rejected]:
        """Submit changes, in order and as one batch, behind the creations they need; return those that cannot be.

        ``done`` is told how the batch ended, if anything is left for one.
        """
        taken: list[Change] = []
        rejected: list[Rejected] = []
        for change in changes:
            try:
                self._prepare(change)
            except _TooManyError as error:
                rejected.append(Rejected(change, "services_max", error))
            except UsageError as error:
                rejected.append(Rejected(change, "malformed", error))
            except WireError as error:
                rejected.append(Rejected(change, error.reason, error))
            else:
                taken.append(change)
        if taken:
            self._hub.submit(_batch(taken, origin, publisher), done)
        return rejected

    def make_room(self, used: Mapping[str, Use]) -> None:
        """Submit the creations that changes to services need, or raise and submit none.

        The changes themselves follow in the same turn. One that a service cannot take refuses all of them.
        """
        needed: dict[str, Kind] = {}
        for service_id, use in used.items():
            kind = self._kind(service_id)
            if kind is None:
                check_id(service_id)
                if use.refused is not None:
                    raise use.refused
                kind = needed[service_id] = use.kind
            if kind is Kind.JSON and use.odd is not None:
                what = f"service {service_id!r} is a JSON object"
                raise RefusedError("malformed", f"{what}, and {_shown(use.odd)} is no change to one")
        if len(self._services) + len(self._creating) + len(needed) > self._services.policy.max:
            most = self._services.policy.max
            raise RefusedError("limit", f"{len(needed)} more services than the {most} of services.max")
        for service_id, kind in needed.items():
            self._create(service_id, kind)

    def when_created(self, service_id: str, then: Callable[[], None]) -> bool:
        """Call ``then`` once the creation that is under way has ended; ``False`` if none is."""
        creation = self._creating.get(service_id)
        if creation is None:
            return False
        creation.waiting.append(then)
        return True

    def _prepare(self, change: Change) -> None:
        """See that a change has a service that takes it, or raise."""
        service_id = change.service_id
        kind = self._kind(service_id)
        if kind is None:
            self._create(service_id, _kind_of(change.change))
        elif kind is Kind.JSON:
            parse_object(change.change)

    def _kind(self, service_id: str) -> Kind | None:
        kind = self._services.kind(service_id)
        if kind is None and service_id in self._creating:
            kind = self._creating[service_id].kind
        return kind

    def _create(self, service_id: str, kind: Kind) -> None:
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
    """A service whose entry is on its way into the log, and who waits for it."""

    kind: Kind
    waiting: list[Callable[[], None]] = field(default_factory=list)


def _shown(payload: bytes) -> str:
    """A change as an error repeats it: as text, where it is text."""
    try:
        return shorten(payload.decode())
    except UnicodeDecodeError:
        return shorten(payload)


class _TooManyError(UsageError):
    """There is no room for another service."""


def _kind_of(value: bytes) -> Kind:
    """The kind of a service whose first value this is."""
    try:
        parse_object(value)
    except MalformedError:
        return Kind.LAST
    return Kind.JSON


def _batch(changes: Sequence[Change], origin: str, publisher: str) -> Batch:
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
