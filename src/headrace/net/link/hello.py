"""Hello: a client's first request, by which it and the hub learn who the other is.

A client that proves who it is sends two hellos. The answer to the first is a challenge; the second has the challenge
signed (:mod:`~headrace.hub.access.authentication`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from time import time

import msgspec

from headrace import __version__
from headrace.errors import HeadraceError, MalformedError, RefusedError
from headrace.hub.access.accounts import Resource
from headrace.hub.access.authentication import ADVICE
from headrace.hub.access.principal import Principal
from headrace.net.link.connection import LinkConnection
from headrace.net.link.refusals import ExplainedError
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tls import certificate_names
from headrace.net.server.access.challenge import new_challenge
from headrace.tube import Tube
from headrace.wire.link.message import MAX_MESSAGE, VERSION, VERSIONS
from headrace.wire.link.requests import HelloRequest
from headrace.wire.sdk.auth import client_id_text, parse_auth


class Hellos:
    """Answers the hellos of the clients of one hub's link."""

    def __init__(self, context: DoorContext) -> None:
        self.not_yet: Callable[[], str | None] = lambda: None
        """Returns why clients should use another node for now; ``None`` if they need not."""
        self._hub = context.hub
        self._accounts = context.accounts
        self._access = context.access
        self._authentication = context.authentication
        self._settings = context.settings

    def before(self, tube: Tube) -> Principal:
        """Return who a client is before its hello."""
        return self._access.principals.of_peer("", next(iter(certificate_names(tube.certificate)), ""))

    def take(self, connection: LinkConnection, request_id: int, hello: HelloRequest) -> None:
        """Answer a client's hello; hang up if it is refused."""
        if connection.greeted:
            raise RefusedError("hello", "hello was sent already")
        if connection.challenge is None:
            connection.challenge = self._challenge(hello)
            if connection.challenge is not None:
                connection.answer(request_id, challenge=connection.challenge)
                return
        try:
            members, connection.client = self._greet(
                connection, hello, connection.challenge or secrets.token_hex()
            )
        except HeadraceError as error:
            connection.fail(request_id, error)
            connection.hang_up()
            return
        connection.greeted, connection.name = True, hello.name
        self._identify(connection)
        connection.tube.trust()
        connection.answer(request_id, **members)

    def _challenge(self, hello: HelloRequest) -> str | None:
        """Return the challenge that a client must sign; ``None`` if a signature changes nothing."""
        if hello.auth is None or "challenge" in hello.auth or not self._authentication.useful:
            return None
        return new_challenge(self._hub.log)

    def _greet(
        self, connection: LinkConnection, hello: HelloRequest, challenge: str
    ) -> tuple[dict[str, object], str]:
        """Check a hello; return the members of its answer, and the client's id if the client has proven it."""
        if (reason := self.not_yet()) is not None:
            raise RefusedError("stopping", reason)
        if hello.version < VERSIONS[0]:
            spoken = ", ".join(map(str, VERSIONS))
            reason = f"this hub speaks version {spoken} of the link, not {hello.version}"
            raise ExplainedError("version", reason, versions=list(VERSIONS))
        client = self._client_of(connection, hello, challenge)
        log = self._hub.log
        return {
            "version": min(hello.version, VERSION),
            "log": str(log.uuid),
            "node": self._hub.node,
            "hub": __version__,
            "max_message": MAX_MESSAGE,
            "message_bytes": self._settings.limits.message_bytes,
            "op": log.head_op,
        }, client

    def _client_of(self, connection: LinkConnection, hello: HelloRequest, challenge: str) -> str:
        authentication, access = self._authentication, self._access
        if not authentication.useful or (hello.auth is None and connection.principal.known):
            return ""
        try:
            auth = parse_auth(msgspec.json.encode(hello.auth))
        except MalformedError as error:
            access.turned_away("tube", connection.peer, "", "malformed" if hello.auth else "unknown")
            raise RefusedError("auth", f"{error.field}: {error.limit}") from None
        address = connection.tube.peer.host
        client, denied = authentication.judge(auth, time(), address=address, challenge=challenge)
        if denied is not None:
            access.turned_away("tube", connection.peer, client_id_text(auth.client_id), denied)
            raise RefusedError("auth", f"not proven ({denied}): {ADVICE[denied]}")
        return client

    def _identify(self, connection: LinkConnection) -> None:
        """Note who a client is after its hello, and charge its connection to its account."""
        access = self._access
        if connection.client:
            proven = access.principals.of_client_id(connection.client)
            connection.principal = proven or access.principals.anonymous
            account = self._accounts.of(connection.principal, connection.tube.peer.host)
            if account is not connection.account:
                if (detail := account.take(Resource.CONNECTIONS)) is not None:
                    asyncio.get_running_loop().call_soon(connection.hang_up)
                    raise RefusedError("limit", detail)
                connection.account.give_back(Resource.CONNECTIONS)
                connection.account = connection.streams.account = account
        if not connection.principal.anonymous:
            access.let_in(connection.principal, "tube", connection.peer)
