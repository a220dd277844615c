"""The connector: the SDK clients that are connected here, and what each is sent.

What a client subscribes is an entry of the log (:mod:`headrace.hub.routing.subscriptions`); the connector writes the
entries and obeys the state. It decides when a client that went away has been away for too long, which of two
connections with one client id stays (the newer), and by which path each session is fed
(:mod:`headrace.hub.routing.client_session`). Where another hub numbers messages, a session begins once it is known
where the sequence was when its client came.

:mod:`headrace.hub.routing.session_feed` decides what each is sent. Nothing here knows a socket, a thread or a clock:
the owner reads the log for those who are behind (``read``), and ``now`` is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headrace.errors import LimitError, StorageError
from headrace.hub.routing.client_session import Outlet, Path, Session, Source
from headrace.hub.routing.session_feed import Feeding, Read
from headrace.hub.routing.subscriptions import (
    Change,
    Fields,
    Predicates,
    Subscriptions,
    alive,
    expire,
    move,
    serialize_fields,
    subscribe,
)
from headrace.hub.sequence import Hub
from headrace.matching import Matches
from headrace.message import Batch

EXPIRED_A_TICK: Final = 1000
"""Subscriptions that are given up in one go; the rest follow a moment later."""


class Connector:
    """All clients of one connector, which is known by its 8-byte id."""

    def __init__(
        self,
        hub: Hub,
        subscriptions: Subscriptions,
        read: Read,
        *,
        connector_id: bytes,
        keep_seconds: float,
        max_subscriptions: int,
        max_predicates: int,
        replay: int,
    ) -> None:
        self.id = connector_id
        self.sessions: dict[bytes, Session] = {}
        self.find_path: Callable[[bytes], Path | None] = lambda _client: None
        """The path by which a client's messages come, if there is one."""
        self.relying = False
        """Whether clients rely on matchers elsewhere that say how far they are, and on the log where they do not."""
        self.stopping = False
        """Whether the hub stops: then nothing more is written to the log."""
        self._hub = hub
        self._subscriptions = subscriptions
        self._feeding = Feeding(hub, self.sessions, read)
        self._keep_seconds = keep_seconds
        self._max_subscriptions = max_subscriptions
        self._max_predicates = max_predicates
        self._replay = replay
        self._pending = 0
        self._head_query = _HeadQuery(hub, connector_id, self._placed)
        self._now = 0.0
        self._away = {client: self._now for client, kept in subscriptions if kept.connector == connector_id}
        """Clients with a subscription here and no connection, and since when; longest first."""
        self._expiring: set[bytes] = set()
        subscriptions.observers.append(self._follow)

    def join(
        self, client: bytes, outlet: Outlet, *, after: int | None = None, guest: bool = False
    ) -> Session:
        """A client has connected. If it has a subscription, that goes on."""
        older = self.sessions.pop(client, None)
        session = self.sessions[client] = Session(client, outlet, after=after, guest=guest)
        if older is not None:
            self._forget(older)
            older.outlet.part("replaced", f"client {client.hex()} has connected again")
        # A guest's id is new: nothing can have happened to it before.
        session.placed = guest or self._hub.sequencer is None
        self._away.pop(client, None)
        self._enter(session, self._hub.log.head + 1)
        return session

    def leave(self, session: Session) -> None:
        """A client's connection is closed; its subscription is kept for a while."""
        self._forget(session)
        if self.sessions.get(session.client) is not session:
            return
        del self.sessions[session.client]
        if self.stopping:
            return
        if session.guest:
            if session.client in self._subscriptions or session.pending:
                self._submit(None, subscribe(session.client, self.id, {}))
        elif session.pending or self._is_here(session.client):
            self._away[session.client] = self._now

    def subscribe(self, session: Session, predicates: Predicates) -> None:
        """A client wants this instead of what it wanted; nothing at all withdraws. Raises past a cap."""
        if len(predicates) > self._max_predicates:
            raise LimitError(
                "sdk", "attributes (matching.max_predicates)", len(predicates), self._max_predicates
            )
        kept = self._subscriptions.get(session.client)
        fields = serialize_fields(predicates)
        if not session.pending and self._is_kept(session.client, fields):
            # It goes on as it is: clients that reconnect say again what they want.
            if not session.placed:
                session.says = fields
                self._head_query.ask(session)
            return
        if fields and kept is None and len(self._subscriptions) + self._pending >= self._max_subscriptions:
            count = len(self._subscriptions) + self._pending + 1
            raise LimitError(
                "sdk", "subscriptions (matching.max_subscriptions)", count, self._max_subscriptions
            )
        session.says = None
        self._submit(session, subscribe(session.client, self.id, fields))

    def deliver(self, batch: Batch, matches: Matches | None) -> None:
        """Push what this process's matcher found to those who are live."""
        self._feeding.deliver(batch, matches)

    def pushed(self, source: Source, msg_id: bytes, payload: bytes, clients: Iterable[bytes]) -> None:
        """Push what a dispatcher brings to the clients it names."""
        self._feeding.pushed(source, msg_id, payload, clients, relying=self.relying)

    def advance(self) -> None:
        """The log has grown, or a path has come: feed those who are behind."""
        self._feeding.advance()

    def resume(self, session: Session) -> None:
        """The client has taken some of what it was sent."""
        self._feeding.pump(session)

    def reroute(self, floor: int = 0) -> None:
        """Paths have come or gone, or clients have another matcher since entry ``floor``: look where each belongs."""
        for session in self.sessions.values():
            path = self.find_path(session.client)
            if path is not session.path:
                # Who has the client's matching behind that, the state here cannot say yet.
                if session.fall_back(floor or self._hub.log.head):
                    self._feeding.fell_behind(session)
                session.path = path
                session.floor = max(session.floor, floor)
        self.advance()

    def tick(self, now: float) -> None:
        """Give up the subscriptions of those who have been away for too long."""
        self._head_query.go_on()
        if not self._now:
            self._away = dict.fromkeys(self._away, now)
        self._now = now
        for _ in range(EXPIRED_A_TICK):
            client = next(iter(self._away), None)
            if client is None or now - self._away[client] < self._keep_seconds:
                return
            del self._away[client]
            kept = self._subscriptions.get(client)
            if kept is not None and kept.connector == self.id:
                self._expire(client, kept.seq)

    @property
    def behind(self) -> int:
        """How many clients are fed from the log, or will be as soon as it is known from where on."""
        return len(self._feeding) + len(self._head_query)

    def _is_here(self, client: bytes) -> bool:
        kept = self._subscriptions.get(client)
        return kept is not None and kept.connector == self.id

    def _is_kept(self, client: bytes, fields: Fields) -> bool:
        """Whether a client wants just this, here, as far as the state knows."""
        kept = self._subscriptions.get(client)
        if kept is None:
            return not fields
        return kept.connector == self.id and kept.fields == fields

    def _enter(self, session: Session, cursor: int) -> None:
        """A client is here: if it has a subscription, that goes on, from ``cursor`` unless it says after what."""
        client = session.client
        kept = self._subscriptions.get(client)
        if kept is None or session.wants:
            return
        if client in self._expiring:
            self._submit(session, subscribe(client, self.id, kept.fields))
        elif kept.connector != self.id:
            self._submit(session, move(client, self.id))
        elif session.placed:
            self._begin(session, cursor)
            self._feeding.pump(session)
        else:
            self._head_query.ask(session)

    def _placed(self, session: Session, seq: int) -> None:
        """All that happened before a client came lies before entry ``seq``, which is in the log."""
        client = session.client
        if session.placed or self.sessions.get(client) is not session:
            return
        session.placed = True
        self._head_query.forget(session)
        kept = self._subscriptions.get(client)
        if kept is not None and kept.connector != self.id and kept.seq > seq:
            self._moved(session)
            return
        self._enter(session, seq + 1)
        fields, session.says = session.says, None
        if fields is not None and not session.pending and not self._is_kept(client, fields):
            self._submit(session, subscribe(client, self.id, fields))

    def _moved(self, session: Session) -> None:
        session.outlet.part("moved", f"client {session.client.hex()} has connected elsewhere")

    def _expire(self, client: bytes, seq: int) -> None:
        def done(_: Batch | StorageError) -> None:
            self._expiring.discard(client)

        self._expiring.add(client)
        self._hub.counters.add("subscriptions_expired")
        self._hub.submit(expire(client, seq), done)

    def _submit(self, session: Session | None, change: Batch) -> None:
        def done(outcome: Batch | StorageError) -> None:
            self._pending -= 1
            if session is not None:
                session.pending -= 1
                if isinstance(outcome, StorageError):
                    session.outlet.part("storage", str(outcome))
                else:
                    self._placed(session, outcome.first)

        self._pending += 1
        if session is not None:
            session.pending += 1
        self._hub.submit(change, done)

    def _follow(self, change: Change) -> None:
        """The state has changed; whoever has to be sent something is, when the batch is handed out."""
        client, _, new = change
        session = self.sessions.get(client)
        if session is None:
            if new is None or new.connector != self.id:
                self._away.pop(client, None)
            else:
                self._away.setdefault(client, self._now)
        elif new is None:
            session.end()
            self._feeding.forget(session)
        elif not session.placed:
            if not session.pending:
                self._head_query.ask(session)
        elif new.connector != self.id:
            self._moved(session)
        elif not session.wants:
            self._begin(session, new.seq + 1)

    def _begin(self, session: Session, cursor: int) -> None:
        after, session.after = session.after, None
        session.begin(cursor if after is None else self._resumed(after))
        session.path = self.find_path(session.client)
        session.floor = cursor - 1
        self._feeding.fell_behind(session)

    def _resumed(self, after: int) -> int:
        """Where to begin for a client that has everything up to ``after``."""
        log = self._hub.log
        oldest = max(log.first, log.head - self._replay + 1)
        if after + 1 < oldest:
            detail = f"a client asks for what is behind {after} (matching.replay is {self._replay})"
            self._hub.counters.report("replay_cut", after + 1, oldest - 1, detail, at_will=True, door="sdk")
        return min(max(after + 1, oldest), log.head + 1)

    def _forget(self, session: Session) -> None:
        session.end()
        self._head_query.forget(session)
        self._feeding.forget(session)


class _HeadQuery:
    """Finds out where the sequence was when a client came, for a connector whose own log is a copy.

    A client may have got more than the copy has: matchers elsewhere push as soon as they know a message. And what the
    copy says of the client may have changed. So a session begins only once an entry that was written for it is in the
    copy: all that happened before the client came lies before that entry. What the client subscribes is such an entry;
    for clients that only come back, the connector writes one sign of life (:func:`alive`) for all who came before.
    """

    def __init__(self, hub: Hub, connector: bytes, found: Callable[[Session, int], None]) -> None:
        self._hub = hub
        self._connector = connector
        self._found = found
        self._waiting: dict[Session, None] = {}
        self._asked: dict[Session, None] | None = None
        """Sessions whose entry is under way; those that come later wait for the next."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._asked or ())

    def ask(self, session: Session) -> None:
        """Report a place after all that has happened so far, once there is one."""
        if self._asked is None or session not in self._asked:
            self._waiting[session] = None
        self.go_on()

    def forget(self, session: Session) -> None:
        """Drop a session that has left, or knows its place."""
        self._waiting.pop(session, None)
        if self._asked is not None:
            self._asked.pop(session, None)

    def go_on(self) -> None:
        """Write an entry for those who wait, unless one is under way."""
        if self._waiting and self._asked is None:
            self._asked, self._waiting = self._waiting, {}
            self._hub.submit(alive(self._connector), self._answered)

    def _answered(self, outcome: Batch | StorageError) -> None:
        asked, self._asked = self._asked or {}, None
        if isinstance(outcome, StorageError):
            # The hub that numbers messages cannot be reached now; the next tick tries again.
            self._waiting = asked | self._waiting
            return
        for session in tuple(asked):
            self._found(session, outcome.first)
        self.go_on()
