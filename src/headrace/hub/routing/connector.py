"""The connector: the SDK clients that are connected here, and their subscriptions.

A client's subscription is an entry of the log (:mod:`headrace.hub.routing.subscriptions`); the connector writes the
entries and obeys the state. It decides when a client has been away for too long, which of two connections with one
client id stays (the newer), and by which path each session is fed (:mod:`headrace.hub.routing.client_session`). If
another hub numbers messages, a session begins once it is known where the sequence was when its client connected.

:mod:`headrace.hub.routing.session_feed` decides what each client is sent. Nothing here knows a socket, a thread or a
clock: the owner reads the log for sessions that are behind (``read``), and ``now`` is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headrace.errors import LimitError, StorageError
from headrace.hub.routing.client_session import (
    ClientOutlet,
    ClientSession,
    MatcherPath,
    PushSource,
    ReadableRows,
)
from headrace.hub.routing.pending_changes import Addition, PendingChanges, Usage, addition, usage
from headrace.hub.routing.session_feed import Read, SessionFeed
from headrace.hub.routing.subscription_parts import (
    Fields,
    Label,
    Named,
    parts_of,
    serialize_fields,
    start_fences,
)
from headrace.hub.routing.subscriptions import (
    MAX_PARTS,
    SubscriptionChange,
    Subscriptions,
    alive,
    change,
    expire,
    move,
    replace,
)
from headrace.hub.sequence import Hub
from headrace.matching import Matches
from headrace.message import Batch
from headrace.wire.sdk.predicate import Alternatives
from headrace.wire.sdk.subscribe import MAX_ALTERNATIVES

EXPIRED_A_TICK: Final = 1000
"""Most subscriptions that expire in one tick; the rest follow in later ticks."""


class Connector:
    """The clients of one connector, known by its 8-byte id."""

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
        max_tracks: int,
        replay: int,
    ) -> None:
        self.id = connector_id
        self.sessions: dict[bytes, ClientSession] = {}
        self.find_path: Callable[[bytes], MatcherPath | None] = lambda _client: None
        """Returns the path by which a client's messages come, if there is one."""
        self.relying = False
        """Whether clients rely on the marks of matchers elsewhere, and on the log where there are none."""
        self.stopping = False
        """Whether the hub is stopping, so that nothing more is written to the log."""
        self._hub = hub
        self._subscriptions = subscriptions
        self._feeding = SessionFeed(hub, self.sessions, read, self._find_part)
        self._keep_seconds = keep_seconds
        self._max_subscriptions = max_subscriptions
        self._max_predicates = max_predicates
        self._max_tracks = max_tracks
        self._replay = replay
        self._coming: dict[bytes, tuple[bytes, Label]] = {}
        """Parts in changes that are on their way: matchers elsewhere may find them before the state here has them."""
        self._pending = PendingChanges()
        """What changes on their way to the log may add."""
        self._head_query = _HeadQuery(hub, connector_id, self._placed)
        self._now = 0.0
        self._away = {client: self._now for client, kept in subscriptions if kept.connector == connector_id}
        """Clients with a subscription here but no connection, and since when; longest first."""
        self._expiring: set[bytes] = set()
        subscriptions.observers.append(self._follow)

    def join(
        self,
        client: bytes,
        outlet: ClientOutlet,
        *,
        after: int | None = None,
        guest: bool = False,
        reads: ReadableRows | None = None,
    ) -> ClientSession:
        """Begin the session of a client that has connected, and continue its subscription if it has one.

        A client that may read only some messages gets those that ``reads`` selects.
        """
        older = self.sessions.pop(client, None)
        session = ClientSession(client, outlet, after=after, guest=guest, reads=reads)
        self.sessions[client] = session
        if older is not None:
            self._forget(older)
            older.outlet.part("replaced", f"client {client.hex()} has connected again")
        # A guest's id is new, so nothing can have happened to it before.
        session.placed = guest or self._hub.sequencer is None
        self._away.pop(client, None)
        self._enter(session, self._hub.log.head + 1)
        return session

    def leave(self, session: ClientSession) -> None:
        """End the session of a closed connection; the subscription is kept for a while."""
        self._forget(session)
        if self.sessions.get(session.client) is not session:
            return
        del self.sessions[session.client]
        if self.stopping:
            return
        if session.guest:
            if session.client in self._subscriptions or session.pending:
                self._submit(None, replace(session.client, self.id, {}))
        elif session.pending or self._is_here(session.client):
            self._away[session.client] = self._now

    def subscribe(self, session: ClientSession, alternatives: Alternatives, name: str = "") -> None:
        """Replace one of a client's subscriptions; no alternatives at all withdraw it. Raises past a limit."""
        most = max(map(len, alternatives), default=0)
        if most > self._max_predicates:
            raise LimitError("sdk", "attributes (matching.max_predicates)", most, self._max_predicates)
        if len(alternatives) > MAX_ALTERNATIVES:
            # The door's decoder has counted sets of attributes; each event of a fence is one.
            raise LimitError("sdk", "alternatives and events", len(alternatives), MAX_ALTERNATIVES)
        # A fence begins where it is written to the log; that of a client that comes back goes on.
        wanted = start_fences(map(serialize_fields, alternatives), 0)
        if not session.pending and self._is_kept(session.client, name, wanted):
            # Clients that reconnect subscribe again, which changes nothing.
            if not session.placed:
                session.says[name] = wanted
                self._head_query.ask(session)
            return
        kept = self._subscriptions.get(session.client)
        adds = addition(kept, name, alternatives)
        count = len(self._subscriptions) + self._pending.parts + adds.parts
        if adds.parts and count > self._max_subscriptions:
            raise LimitError(
                "sdk", "subscriptions (matching.max_subscriptions)", count, self._max_subscriptions
            )
        count = (0 if kept is None else kept.part_count) + session.adding.parts + adds.parts
        if adds.parts and count > MAX_PARTS:
            raise LimitError("sdk", "alternatives of all subscriptions of a client", count, MAX_PARTS)
        tracks = self._subscriptions.tracks.keys() | self._pending.tracks.keys()
        count = len(tracks | adds.tracks)
        if count > max(len(tracks), self._max_tracks):
            raise LimitError("sdk", "tracks of fences (matching.max_tracks)", count, self._max_tracks)
        session.says.pop(name, None)
        coming = parts_of(session.client, {name: wanted})
        self._coming.update((part, (session.client, each.label)) for part, each in coming.items())
        self._submit(session, self._change(session, {name: wanted}), adds, coming)

    def usage(self, session: ClientSession) -> Usage:
        """Return what an account is charged for a client's subscriptions, with pending changes."""
        return usage(self._subscriptions.get(session.client), session.adding)

    def more_usage(self, session: ClientSession, name: str, alternatives: Alternatives) -> Usage:
        """Return how much more that would be if one subscription had these alternatives."""
        kept = self._subscriptions.get(session.client)
        adds = addition(kept, name, alternatives)
        known = (
            session.adding.tracks.keys() | ({} if kept is None or not adds.tracks else kept.tracks()).keys()
        )
        return Usage(adds.parts + adds.weight, len(adds.tracks - known))

    def deliver(self, batch: Batch, matches: Matches | None) -> None:
        """Push what this process's matcher found to live sessions."""
        self._feeding.deliver(batch, matches)

    def pushed(self, source: PushSource, msg_id: bytes, payload: bytes, clients: Iterable[bytes]) -> None:
        """Push what a dispatcher brings to the clients it names."""
        self._feeding.pushed(source, msg_id, payload, clients, relying=self.relying)

    def advance(self) -> None:
        """Feed the sessions that are behind, since the log has grown or there is a new path."""
        self._feeding.advance()

    def resume(self, session: ClientSession) -> None:
        """Continue to feed a client that has room again."""
        self._feeding.pump(session)

    def reroute(self, floor: int | None = None) -> None:
        """Give each session its path: paths have changed, or clients have other matchers after message ``floor``."""
        for session in self.sessions.values():
            path = self.find_path(session.client)
            if path is not session.path:
                # The state here does not know yet which matcher has the client after that.
                if session.fall_back(self._hub.log.head if floor is None else floor):
                    self._feeding.fell_behind(session)
                session.path = path
                session.floor = max(session.floor, floor or 0)
        self.advance()

    def tick(self, now: float) -> None:
        """Expire the subscriptions of clients that have been away for too long."""
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
                self._expire(client, kept.op)

    @property
    def behind(self) -> int:
        """The number of clients that are fed from the log, or will be once their start is known."""
        return len(self._feeding) + len(self._head_query)

    def _find_part(self, part: bytes) -> tuple[bytes, Label]:
        return self._coming.get(part) or self._subscriptions.find_part(part)

    def _is_here(self, client: bytes) -> bool:
        kept = self._subscriptions.get(client)
        return kept is not None and kept.connector == self.id

    def _is_kept(self, client: bytes, name: str, wanted: list[Fields]) -> bool:
        """Return whether the state has exactly this subscription of the client, at this connector."""
        kept = self._subscriptions.get(client)
        if kept is None:
            return not wanted
        return kept.connector == self.id and start_fences(kept.alternatives(name), 0) == wanted

    def _change(self, session: ClientSession, named: Named) -> Batch:
        """Make the entry that replaces some of a client's subscriptions; fences begin with the next message."""
        head = self._hub.log.head
        begun = {name: start_fences(wanted, head) for name, wanted in named.items()}
        return change(session.client, self.id, begun)

    def _enter(self, session: ClientSession, cursor: int) -> None:
        """Continue a client's subscription, if it has one, from ``cursor`` or from where it asked to resume."""
        client = session.client
        kept = self._subscriptions.get(client)
        if kept is None or session.wants:
            return
        if client in self._expiring:
            self._submit(session, replace(client, self.id, kept.named))
        elif kept.connector != self.id:
            self._submit(session, move(client, self.id))
        elif session.placed:
            self._begin(session, cursor)
            self._feeding.pump(session)
        else:
            self._head_query.ask(session)

    def _placed(self, session: ClientSession, written: Batch) -> None:
        """Begin a session: everything before its client connected lies before the entry that was written."""
        client = session.client
        if session.placed or self.sessions.get(client) is not session:
            return
        session.placed = True
        self._head_query.forget(session)
        kept = self._subscriptions.get(client)
        if kept is not None and kept.connector != self.id and kept.op > written.op:
            self._moved(session)
            return
        self._enter(session, written.last + 1)
        said, session.says = session.says, {}
        changed = {name: wanted for name, wanted in said.items() if not self._is_kept(client, name, wanted)}
        if changed and not session.pending:
            self._submit(session, self._change(session, changed))

    def _moved(self, session: ClientSession) -> None:
        session.outlet.part("moved", f"client {session.client.hex()} has connected elsewhere")

    def _expire(self, client: bytes, op: int) -> None:
        def done(_: Batch | StorageError) -> None:
            self._expiring.discard(client)

        self._expiring.add(client)
        self._hub.counters.add("subscriptions_expired")
        self._hub.submit(expire(client, op), done)

    def _submit(
        self,
        session: ClientSession | None,
        change: Batch,
        adds: Addition = Addition(),  # noqa: B008 -- it never changes
        coming: Iterable[bytes] = (),
    ) -> None:
        def done(outcome: Batch | StorageError) -> None:
            self._pending.end(adds)
            for part in coming:
                self._coming.pop(part, None)
            if session is not None:
                session.pending -= 1
                session.adding.end(adds)
                if isinstance(outcome, StorageError):
                    session.outlet.part("storage", str(outcome))
                else:
                    self._placed(session, outcome)

        self._pending.begin(adds)
        if session is not None:
            session.pending += 1
            session.adding.begin(adds)
        self._hub.submit(change, done)

    def _follow(self, change: SubscriptionChange) -> None:
        """Follow a change of the state; sessions are fed when the batch is handed out."""
        client, new = change.client, change.new
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

    def _begin(self, session: ClientSession, cursor: int) -> None:
        after, session.after = session.after, None
        session.begin(cursor if after is None else self._resumed(after))
        session.path = self.find_path(session.client)
        session.floor = cursor - 1
        self._feeding.fell_behind(session)

    def _resumed(self, after: int) -> int:
        """Return the first number to send to a client that has everything up to ``after``."""
        log = self._hub.log
        oldest = max(log.first, log.head - self._replay + 1)
        if after + 1 < oldest:
            detail = f"a client resumes after {after} (matching.replay is {self._replay})"
            self._hub.counters.report("replay_cut", after + 1, oldest - 1, detail, at_will=True, door="sdk")
        return min(max(after + 1, oldest), log.head + 1)

    def _forget(self, session: ClientSession) -> None:
        session.end()
        self._head_query.forget(session)
        self._feeding.forget(session)


class _HeadQuery:
    """Finds out where the sequence was when a client connected, for a connector whose own log is a copy.

    A client may have more messages than the copy, since matchers elsewhere push a message as soon as they know it. And
    the client's subscriptions in the copy may be outdated. So a session begins only once an entry that was written for
    it is in the copy: everything before the client connected lies before that entry. A new subscription is such an
    entry; for clients that only reconnect, the connector writes one sign of life (:func:`alive`) for all of them.
    """

    def __init__(self, hub: Hub, connector: bytes, found: Callable[[ClientSession, Batch], None]) -> None:
        self._hub = hub
        self._connector = connector
        self._found = found
        self._waiting: dict[ClientSession, None] = {}
        self._asked: dict[ClientSession, None] | None = None
        """Sessions whose entry is on its way; later sessions wait for the next one."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._asked or ())

    def ask(self, session: ClientSession) -> None:
        """Begin the session once there is an entry after everything that has happened so far."""
        if self._asked is None or session not in self._asked:
            self._waiting[session] = None
        self.go_on()

    def forget(self, session: ClientSession) -> None:
        """Drop a session that has left or has begun."""
        self._waiting.pop(session, None)
        if self._asked is not None:
            self._asked.pop(session, None)

    def go_on(self) -> None:
        """Write an entry for the waiting sessions, unless one is on its way."""
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
            self._found(session, outcome)
        self.go_on()
