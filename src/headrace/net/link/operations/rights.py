"""The rights that each request of the link needs.

A request is checked here before it is performed, except for its body: the topics of rows are checked where they are
read (:meth:`LinkRights.check_topics`), and a reader's rights become part of its filter (:meth:`LinkRights.filter`).

``admin`` is needed to relay requests in the name of others (``client``, ``by``, ``token``), and to copy the log or the
hub's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from headrace.errors import RefusedError
from headrace.hub.access.access import AccessControl, forbidden
from headrace.hub.access.principal import Action, Forbidden
from headrace.hub.consumers.terms import default_dead_letter
from headrace.hub.filters import Filter
from headrace.message import Batch
from headrace.wire.link import requests as ask
from headrace.wire.sdk.predicate import Predicate

if TYPE_CHECKING:
    from headrace.net.link.connection import LinkConnection

DOOR: Final = "tube"

_ADMIN: Final = (
    ask.EntriesRequest,
    ask.ReplicateRequest,
    ask.PassRequest,
    ask.SnapshotRequest,
    ask.ReportRequest,
    ask.ReloadRequest,
    ask.SubscriptionsRequest,
    ask.AsideRequest,
)
"""Requests about the hub itself or about the state of all clients."""


_CHANGING: Final = frozenset(
    {
        ask.ServicesRequest,
        ask.ConsumersRequest,
        ask.HoldsRequest,
        ask.ReloadRequest,
        ask.AsideRequest,
    }
)
"""Requests that may change the hub itself, which the audit log records."""


class LinkRights:
    """Checks the rights of the link's clients."""

    def __init__(self, access: AccessControl, owner_of: Callable[[str], str]) -> None:
        """``owner_of`` returns the owner of a publisher's name; empty if nobody has opened it."""
        self._access = access
        self._owner_of = owner_of

    def check(self, connection: LinkConnection, request: ask.Request) -> None:
        """Raise an error if the client may not make a request; record in the audit log what it changes."""
        if not connection.principal.may_do_everything:
            self._judge(connection, request)
        if type(request) in _CHANGING:
            self._note(connection, request)

    def check_topics(self, connection: LinkConnection, batches: Sequence[Batch]) -> None:
        """Raise an error unless the client may publish to every topic of some messages."""
        principal = connection.principal
        if principal.publishes_everything:
            return
        for batch in batches:
            if batch.columns is None or "topic" not in batch.columns.schema.names:
                self._check(connection, Action.PUBLISH, batch.topic)
                continue
            topics = batch.columns.column("topic")
            if not self._access.may_each(principal, Action.PUBLISH, DOOR, topics, connection.peer):
                raise forbidden(principal, Action.PUBLISH, "one of these topics")

    def check_services(self, connection: LinkConnection, services: Mapping[str, object]) -> None:
        """Raise an error unless the client may change all of some services."""
        if not connection.principal.may_everything(Action.SERVICE):
            for service in services:
                self._check(connection, Action.SERVICE, service)

    def check_queries(self, connection: LinkConnection, queries: Iterable[str]) -> None:
        """Raise an error unless the client may stage for all of some queries."""
        for query in queries:
            self._check(connection, Action.STAGE, query)

    def filter(
        self,
        connection: LinkConnection,
        topic: str | None,
        origins: Sequence[str] | None,
        where: Mapping[str, Predicate],
    ) -> Filter | None:
        """Make the filter of a reader: what it asks for, restricted to what it may read; ``None`` for every message."""
        principal = connection.principal
        if principal.reads_everything:
            return None if topic is None and origins is None and not where else Filter(topic, origins, where)
        rights = principal.rights(Action.READ)
        return Filter(topic, origins, where, readable=rights.allowed, denied=rights.denied)

    def _judge(self, connection: LinkConnection, request: ask.Request) -> None:
        match request:
            case ask.ReadRequest() | ask.FollowRequest(consumer=None):
                self._check_reads(connection, request.topic)
            case ask.FollowRequest(consumer=str(consumer)):
                self._check(connection, Action.CONSUME, consumer)
                self._check_reads(connection, request.topic)
                self._check_dead_letters(connection, consumer, request.dead_letter)
            case ask.PublishRequest(client=client):
                self._check_own(connection, bool(client))
                self._check_name(connection, request.publisher)
            case ask.PublisherRequest(client=client, by=by):
                self._check_own(connection, bool(client or by))
                self._check_any(connection, Action.PUBLISH, request.publisher)
                self._check_name(connection, request.publisher)
            case ask.StageRequest(query=query):
                self._check(connection, Action.STAGE, query)
            case ask.CommitRequest(query=query, client=client, token=token):
                self._check(connection, Action.STAGE, query)
                self._check_own(connection, bool(client) or token is not None)
            case ask.AbortRequest():
                self._check_any(connection, Action.STAGE, "")
            case ask.AckRequest(consumer=consumer):
                self._check(connection, Action.CONSUME, consumer)
            case ask.ConsumersRequest(consumer=str(consumer)):
                self._check(connection, Action.CONSUME, consumer)
            case ask.HoldsRequest(name=name):
                # A hold keeps messages for a reader, just as the position of a durable consumer does.
                self._check(connection, Action.CONSUME if name else Action.ADMIN, name or "")
            case ask.LostRequest(reader=str()):
                self._check_reads(connection, None)
            case ask.LostRequest():
                self._check(connection, Action.ADMIN)
            case ask.ServicesRequest(service=str(service)):
                does = Action.READ if request.action == "list" else Action.PUBLISH
                principal, peer = connection.principal, connection.peer
                if not self._access.may_use(principal, service, does, DOOR, peer):
                    raise forbidden(principal, Action.SERVICE, service)
            case ask.ChainRequest():
                # A digest would confirm a guess at a message's content.
                if not connection.principal.reads_everything:
                    self._refuse(connection, Action.READ, "**", Forbidden.NOT_ALLOWED)
            case _ if isinstance(request, _ADMIN):
                self._check(connection, Action.ADMIN)
            case _:
                # Any known client may ask for the head, and for lists of what it may see.
                if not connection.principal.known:
                    self._refuse(connection, Action.READ, "", Forbidden.UNKNOWN)

    def _note(self, connection: LinkConnection, request: ask.Request) -> None:
        match request:
            case ask.ServicesRequest(action="create" | "remove"):
                self._changed(connection, f"{request.action} service", request.service)
            case ask.ConsumersRequest(action="reset" | "remove"):
                self._changed(connection, f"{request.action} consumer", request.consumer)
            case ask.AsideRequest(action="retry" | "drop"):
                self._changed(connection, f"{request.action} what is set aside", request.request)
            case ask.ReloadRequest():
                self._changed(connection, "reload", "")
            case ask.HoldsRequest(name=str()):
                self._changed(connection, "release hold" if request.release else "hold", request.name)

    def _changed(self, connection: LinkConnection, action: str, what: str | None) -> None:
        self._access.changed(connection.principal, DOOR, connection.peer, action, what or "")

    def _check(self, connection: LinkConnection, action: Action, what: str = "") -> None:
        self._access.check(connection.principal, action, DOOR, what, connection.peer)

    def _check_own(self, connection: LinkConnection, named: bool) -> None:
        """Raise an error if a client that is not a relaying hub acts for another client."""
        if named:
            self._check(connection, Action.ADMIN)

    def _check_name(self, connection: LinkConnection, publisher: str) -> None:
        """Raise an error if a client that is not a relaying hub uses a publisher's name, or a client id, of another."""
        access, principal = self._access, connection.principal
        if principal.may(Action.ADMIN):
            return
        opened_by_another = self._owner_of(publisher) not in ("", principal.owner)
        if opened_by_another or not access.may_be_called(principal, publisher):
            access.refused(
                principal, Action.PUBLISH, DOOR, publisher, connection.peer, Forbidden.ANOTHERS_NAME
            )
            raise RefusedError(
                "forbidden", f"publisher {publisher!r} belongs to another client: take another name"
            )

    def _check_dead_letters(self, connection: LinkConnection, consumer: str, topic: str | None) -> None:
        """Check the topic of a consumer's dead letters; the default topic needs no grant, but may be denied."""
        if topic is not None:
            self._check(connection, Action.PUBLISH, topic)
            return
        topic, principal = default_dead_letter(consumer), connection.principal
        if self._access.denies(principal, Action.PUBLISH, DOOR, topic, connection.peer):
            raise forbidden(principal, Action.PUBLISH, topic)

    def _check_any(self, connection: LinkConnection, action: Action, what: str) -> None:
        """Raise an error if the client may not do this to anything at all."""
        if not connection.principal.may_something(action):
            self._refuse(connection, action, what, connection.principal.verdict(action, what))

    def _check_reads(self, connection: LinkConnection, topic: str | None) -> None:
        """Raise an error if the client may not read the topic it asks for, or may read no topic at all."""
        if topic is not None and "*" not in topic:
            self._check(connection, Action.READ, topic)
        else:
            self._check_any(connection, Action.READ, topic or "")

    def _refuse(
        self, connection: LinkConnection, action: Action, what: str, reason: Forbidden | None
    ) -> None:
        principal = connection.principal
        self._access.refused(principal, action, DOOR, what, connection.peer, reason or Forbidden.NOT_ALLOWED)
        raise forbidden(principal, action, what)
