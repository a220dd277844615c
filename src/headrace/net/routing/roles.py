"""Content routing in one process: which of its roles are here, and how they hand each other batches.

Committed batches go through the matching :class:`~headrace.net.routing.match_queue.MatchQueue`. What is for clients of
this process's own connector is pushed to them in memory. What is for clients elsewhere, and this matcher's to match
by the ring, goes to the dispatcher in this process, or to one that is dialled. A connector without a matcher beside
it relies on the matchers whose pushes reach its router door, and on the log where they do not. Where Spark matches,
no process does, and every connector relies on the fleet in the same way: it is one matcher, whose pushes come by many
connections and whose marks by one.

To the hub this is a door without a socket: it is handed what is committed. The doors with sockets are given it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Final

from headrace.config import Settings
from headrace.errors import StorageError
from headrace.hub.routing.client_session import NOTHING, Path, Paths, Source
from headrace.hub.routing.connector import Connector
from headrace.hub.routing.dispatcher import Dispatcher, Feeder
from headrace.hub.routing.local_matcher import Matching
from headrace.hub.routing.matcher_pushes import mark, pushes
from headrace.hub.routing.matcher_ring import FLEET, Matchers, join, leave
from headrace.hub.routing.retired_connectors import Retiring
from headrace.hub.routing.session_feed import Found, Then
from headrace.hub.routing.subscriptions import Subscription, Subscriptions
from headrace.matching import Matches, Ring, is_cold, warm
from headrace.message import Batch, node_id
from headrace.net.routing.match_queue import MatchQueue
from headrace.net.routing.matcher_link import ToDispatcher
from headrace.net.server.door import DoorContext
from headrace.wire.attribute.messages import NODE_ID_BYTES, is_msg_id, parse_msg_id, seq_of, unpack_clients

MAX_LEAD: Final = 1 << 16
"""Messages by which pushes may be ahead of this process's copy of the log. A connector believes no more than that: past
it, what a push says of its place would keep a client from all that comes before; the log has whatever is true."""

REPLAY_BYTES: Final = 256 << 10
"""Payload bytes read from the log in one go for a client that is behind."""


COMPILING_SECONDS: Final = 1.0
"""What takes longer than this is no loading of kernels from a cache that is elsewhere, but compiling them."""

logger = logging.getLogger("headrace")


class Routing:
    """The matcher, the dispatcher and the connector of one process, as far as it has them."""

    def __init__(self, context: DoorContext, subscriptions: Subscriptions, matchers: Matchers) -> None:
        settings, roles = context.settings, context.settings.node.roles
        self._name = role_name(settings)
        self._node = node_id(self._name)
        self.id = connector_id(self._name)
        self.subscriptions = subscriptions
        self.matchers = matchers
        self.fleet = Source()
        """All that the fleet in Spark pushes by the dispatcher door, by whichever connection."""
        self.connector: Connector | None = None
        self.dispatcher: Dispatcher | None = None
        self.to_dispatcher: ToDispatcher | None = None
        self._context = context
        self._hub = context.hub
        self._paths = Paths()
        self._source = Source()
        self._own_path = Path(self._source, self._node, self._hub.log.head)
        self._spark = settings.matching.engine == "spark"
        self._feeder = Feeder(self._source)
        self._stage: MatchQueue | None = None
        self._thread = ThreadPoolExecutor(1, "headrace-match")
        self._sorting: Iterator[None] | None = None
        self._loading = False
        """Whether the matcher's kernels are being compiled, or what came meanwhile is being sorted out."""
        self._reads: list[Callable[[], None]] = []
        """Looks through the log that wait for that: one for each client that is behind."""
        self._joining = False
        self._stopping = False
        matches = "matcher" in roles and not self._spark
        self._pushes = False
        self._connects = "connector" in roles
        self.relying = self._connects and not matches
        """Whether the clients here rely on matchers elsewhere, or in Spark."""
        self.matching = Matching(
            subscriptions, self._is_wanted, json_attributes=settings.matching.json_attributes
        )
        if self._connects:
            self.connector = self._make_connector()
        own = self.id if self._connects else None
        self._retiring = Retiring(self._hub, subscriptions, own, settings.matching.keep_seconds)
        if "dispatcher" in roles:
            self.dispatcher = Dispatcher(self._hub.counters, None if self.connector is None else self)
            self.dispatcher.reach = self._reach
        if matches:
            self._stage = MatchQueue(self._hub, self.matching, self._matched, context.readers, self._thread)
            self._stage.blocked = self._is_blocked
            self._source.paths[self._node] = self._own_path
            elsewhere = settings.dispatcher.connectors or settings.dispatcher.peers
            if self.dispatcher is not None and elsewhere:
                self._pushes = True
            elif settings.matching.dispatchers:
                self._pushes = True
                place = self._own_path
                self.to_dispatcher = ToDispatcher(context, self._node, lambda: place.upto, self._stage.go_on)
        matchers.changed = self._ring_changed
        if (matches or self._connects) and is_cold():
            self._compile()
        # Only now is it known which of the subscriptions that the log has kept are matched here.
        for _ in self.matching.sort_out():
            pass

    def _make_connector(self) -> Connector:
        settings = self._context.settings.matching
        connector = Connector(
            self._hub,
            self.subscriptions,
            self._read,
            connector_id=self.id,
            keep_seconds=settings.keep_seconds,
            max_subscriptions=settings.max_subscriptions,
            max_predicates=settings.max_predicates,
            replay=settings.replay,
        )
        connector.find_path = self._find_path
        connector.relying = self.relying
        return connector

    # What the hub calls.

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Match newly committed batches."""
        if self._stage is not None:
            self._stage.deliver(batches)
        if self.connector is not None:
            self.connector.advance()

    def tick(self, now: float) -> None:
        """Give up what was given up, keep the index in shape, and be on the ring."""
        self._retiring.tick(now)
        if self.connector is not None:
            self.connector.tick(now)
        if self._stage is not None:
            self._stage.tick()
        if self._pushes and not (self._joining or self._stopping) and self._name not in self.matchers.ring:
            self._joining = True
            self._hub.submit(join(self._name, Ring(self._name).starts[self._name]), self._joined)

    def relieved(self) -> None:
        """Nobody publishes here."""

    def facts(self) -> dict[str, int]:
        """How many subscriptions there are, how many of them are matched here, and what memory their index takes."""
        memory = self.matching.matcher.memory()
        facts = {
            "subscriptions": len(self.subscriptions),
            "subscriptions_here": len(self.matching),
            "subscription_bytes": memory.total,
            "bytes_per_subscription": round(memory.per_subscription),
        }
        if self.connector is not None:
            facts["sdk_behind"] = self.connector.behind
        return facts

    def stop(self) -> None:
        """Leave the ring: others take this matcher's share."""
        self._stopping = True
        if self.connector is not None:
            self.connector.stopping = True
        if self._pushes and self._name in self.matchers.ring:
            self._hub.submit(leave(self._name))

    async def close(self) -> None:
        """The doors close what they have; here a thread ends."""
        if self._stage is not None:
            self._stage.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def abort(self) -> None:
        """The doors close what they have."""

    # What the doors call.

    def feeder(self) -> Feeder:
        """What a new connection that pushes is to the dispatcher: the fleet has many, which are one source."""
        return Feeder(self.fleet if self._spark else Source())

    def source(self) -> Source:
        """What a new connection of a dispatcher is to the connector."""
        return Source()

    def pushed(self, source: Source, msg_id: bytes, payload: bytes, clients: bytes) -> None:
        """A dispatcher brings a message for clients of this connector."""
        if self.connector is not None and not (is_msg_id(msg_id) and self._is_ahead(source, seq_of(msg_id))):
            self.connector.pushed(source, msg_id, payload, unpack_clients(clients))

    def marked(self, source: Source, msg_id: bytes) -> None:
        """A matcher says how far it is; clients that are matched for here do not depend on that."""
        seq, node = parse_msg_id(msg_id)
        if not self.relying or (seq != NOTHING and self._is_ahead(source, seq)):
            return
        if self._paths.mark(source, node, seq) and self.connector is not None:
            self.connector.reroute()

    def lost(self, source: Source) -> None:
        """A connection that pushed is gone."""
        if self.relying and self._paths.lose(source) and self.connector is not None:
            self.connector.reroute()

    # The rest is between the parts.

    def _is_ahead(self, source: Source, seq: int) -> bool:
        """Whether a source says a place that the sequence cannot have reached: then it is not relied on."""
        # Who numbers messages, or matches them, knows them before anybody else can push them.
        follows = self.relying and self._hub.sequencer is not None
        most = self._hub.log.head + (MAX_LEAD if follows else 0)
        if seq <= most:
            return False
        detail = f"pushed, where the newest here is {self._hub.log.head}"
        self._hub.counters.report("ahead", seq, seq, detail, at_will=True, door="sdk")
        self.lost(source)
        return True

    def _reach(self) -> int:
        """The highest sequence number that may have been pushed by now, as far as the log here tells."""
        return self._hub.log.tail + (MAX_LEAD if self._hub.sequencer is not None else 0)

    def _find_path(self, client: bytes) -> Path | None:
        if self._spark:
            return self._paths.get(node_id(FLEET))
        if self._stage is not None:
            return self._own_path
        return self._paths.get(self.matchers.owner(client))

    def _is_wanted(self, client: bytes, subscription: Subscription) -> bool:
        if subscription.connector == self.id:
            return self._connects
        return self._pushes and self.matchers.owner(client) == self._node

    def _is_blocked(self) -> bool:
        return (
            self._sorting is not None
            or self._loading
            or (self.to_dispatcher is not None and self.to_dispatcher.full)
        )

    def _matched(self, batch: Batch, matches: Matches | None) -> None:
        if self.connector is not None:
            self.connector.deliver(batch, matches)
        self._source.seen = self._own_path.upto = batch.last
        if self._pushes:
            without = None if self.connector is None else self.id
            found = () if matches is None else pushes(batch, matches, self.subscriptions, without=without)
            if self.to_dispatcher is not None:
                self.to_dispatcher.push(found, batch.last)
            elif self.dispatcher is not None:
                for push in found:
                    self.dispatcher.push(self._feeder, push)
                self.dispatcher.push(self._feeder, mark(batch.last, self._node))

    def _joined(self, _outcome: Batch | StorageError) -> None:
        self._joining = False

    def _ring_changed(self, seq: int) -> None:
        """From entry ``seq`` on, clients have other matchers."""
        if self._pushes and self._stage is not None:
            self._stage.when(seq, self._begin_sorting)
        if self.connector is not None:
            self.connector.reroute(seq)

    def _compile(self) -> None:
        """Have the matcher's kernels compiled, which takes a minute, while all but matching goes on.

        The thread is left alone when the hub stops: it takes longer than anybody would wait for.
        """
        self._loading = True
        self.matching.unready = True
        loop = asyncio.get_running_loop()
        note = loop.call_later(
            COMPILING_SECONDS, logger.info, "compiling the matcher, once: what is to be matched waits for it"
        )

        def loaded(error: Exception | None) -> None:
            note.cancel()
            if self._stopping:
                return
            if error is not None:
                logger.error("the matcher's kernels cannot be compiled", exc_info=error)
            self.matching.unready = False
            self._begin_sorting()

        def load() -> None:
            error: Exception | None = None
            try:
                warm()
            except Exception as failed:  # noqa: BLE001 -- whatever it is, the event loop must know
                error = failed
            with contextlib.suppress(RuntimeError):  # The hub has stopped meanwhile.
                loop.call_soon_threadsafe(loaded, error)

        threading.Thread(target=load, name="headrace-kernels", daemon=True).start()

    def _begin_sorting(self) -> None:
        self._sorting = self.matching.sort_out()
        self._sort_on()

    def _sort_on(self) -> None:
        if self._sorting is None:
            return
        if next(self._sorting, self) is self:
            self._sorting = None
            if not self.matching.unready:
                self._loading = False
            reads, self._reads = self._reads, []
            for read in reads:
                read()
            if self._stage is not None:
                asyncio.get_running_loop().call_soon(self._stage.go_on)
        else:
            asyncio.get_running_loop().call_soon(self._sort_on)

    def _read(self, client: bytes, first: int, last: int, then: Then) -> None:
        """Look through some of the log for a client, off the event loop."""
        if self._loading:
            self._reads.append(lambda: self._read(client, first, last, then))
            return

        def look() -> Found:
            batches = self._hub.log.read(first, last, REPLAY_BYTES)
            return [(batch, self.matching.rows(client, batch)) for batch in batches]

        def done(looking: asyncio.Future[Found]) -> None:
            if looking.cancelled():
                return
            error = looking.exception()
            if error is None:
                then(looking.result())
            elif isinstance(error, StorageError):
                then(error)
            else:
                # Whatever it is, the client must know that it is not fed any more.
                logger.error("the log could not be looked through for %s", client.hex(), exc_info=error)
                then(StorageError(f"the matcher failed ({type(error).__name__}: {error})"))

        asyncio.get_running_loop().run_in_executor(self._context.readers, look).add_done_callback(done)


def role_name(settings: Settings) -> str:
    """What a process is called among the roles: its node's name.

    A frontend that was given none has its machine's, as the hub above it may have: its data directory tells them apart.
    """
    node = settings.node
    if not node.upstream or settings.source("node.name") != "default":
        return node.name
    return f"{node.name}-{sha256(str(node.data.resolve()).encode()).hexdigest()[:6]}"


def connector_id(name: str) -> bytes:
    """The 8-byte ASCII id of a node in the attribute protocol, made from its name.

    >>> connector_id("Ivan")
    b'ebec404b'
    """
    return sha256(name.encode()).hexdigest()[:NODE_ID_BYTES].encode()
