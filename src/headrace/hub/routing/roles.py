"""Content routing in one process: which of its roles are here, and how they pass batches to each other.

Matches for clients of this process's own connector are pushed to them in memory. Matches for clients elsewhere, which
the ring gives to this matcher, go to the dispatcher in this process or to a dialled one. A connector without a matcher
in its process relies on the matchers whose pushes reach its router door, and otherwise on the log. If Spark matches, no
process does, and every connector relies on the fleet in the same way: it counts as one matcher, whose pushes come by
many connections and whose marks come by one.

The rules are here; threads, timers and sockets are the driver's (:mod:`headrace.net.routing.roles`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Final, Protocol

from headrace.config import Settings
from headrace.errors import StorageError
from headrace.hub.routing.client_session import NOTHING, MatcherPath, MatcherPaths, PushSource
from headrace.hub.routing.connector import Connector
from headrace.hub.routing.dispatcher import Dispatcher, Feeder
from headrace.hub.routing.local_matcher import LocalMatcher, mark
from headrace.hub.routing.log_window import LogWindow
from headrace.hub.routing.matcher_ring import FLEET, MatcherRing, join, leave
from headrace.hub.routing.retired_connectors import RetiredConnectors
from headrace.hub.routing.session_feed import Read, Then
from headrace.hub.routing.subscription_parts import (
    Subscription,
)
from headrace.hub.routing.subscriptions import (
    Subscriptions,
)
from headrace.hub.sequence import Hub
from headrace.matching import Matches, Ring
from headrace.message import Batch, node_id
from headrace.wire.attribute.messages import (
    NODE_ID_BYTES,
    MatcherPush,
    parse_msg_id,
    seq_of,
    unpack_clients,
)

MAX_LEAD: Final = 1 << 16
"""Messages by which pushes may be ahead of this process's copy of the log. A connector believes no more than that: past
it, a wrong number in a push would keep a client from all messages before it; the log has whatever is true."""


class DispatcherLink(Protocol):
    """The connection to a dispatcher elsewhere, if there is one now."""

    @property
    def full(self) -> bool:
        """Whether matching has to wait."""

    def push(self, pushes: Iterable[MatcherPush], upto: int) -> None:
        """Push what was matched; ``upto`` is the last message of the batch."""


class RoutingRules:
    """The matcher, the dispatcher and the connector of one process, as far as it has them."""

    def __init__(
        self, hub: Hub, settings: Settings, subscriptions: Subscriptions, ring: MatcherRing, read: Read
    ) -> None:
        """``read`` looks through the log for a client."""
        roles = settings.node.roles
        self.node = node_id(role_name(settings))
        self.id = connector_id(role_name(settings))
        self.subscriptions = subscriptions
        self.ring = ring
        self.fleet = PushSource()
        """The fleet in Spark, which is one source even though it pushes by many connections."""
        self.connector: Connector | None = None
        self.dispatcher: Dispatcher | None = None
        self.dispatcher_link: DispatcherLink | None = None
        self.after: Callable[[int, Callable[[], None]], None] = lambda _seq, act: act()
        """Calls back once everything up to a message, and nothing after it, is matched."""
        self._name = role_name(settings)
        self._hub = hub
        self._read_log = read
        self._paths = MatcherPaths()
        self._source = PushSource()
        self.own_path = MatcherPath(self._source, self.node, hub.log.head)
        """How far the matcher here is."""
        self._spark = settings.matching.engine == "spark"
        self._feeder = Feeder(self._source)
        self._sorting: Iterator[None] | None = None
        self._loading = False
        """Whether the matcher's kernels are being compiled, or what came meanwhile is being sorted out."""
        self._reads: list[Callable[[], None]] = []
        """Reads of the log that wait for that, one for each client that is behind."""
        self._joining = False
        self._stopping = False
        self.matches = "matcher" in roles and not self._spark
        self._connects = "connector" in roles
        elsewhere = settings.dispatcher.connectors or settings.dispatcher.peers
        to_own_dispatcher = self.matches and "dispatcher" in roles and bool(elsewhere)
        self.dials_dispatcher = self.matches and not to_own_dispatcher and bool(settings.matching.dispatchers)
        """Whether the matcher here pushes to a dispatcher elsewhere."""
        self._pushes = to_own_dispatcher or self.dials_dispatcher
        self.relying = self._connects and not self.matches
        """Whether the clients here rely on matchers elsewhere, or in Spark."""
        self.matching = LocalMatcher(
            subscriptions,
            self._is_wanted,
            json_attributes=settings.matching.json_attributes,
            window=settings.matching.fence_window,
            read=LogWindow(hub),
        )
        if self._connects:
            self.connector = self._make_connector(settings)
        own = self.id if self._connects else None
        self._retired = RetiredConnectors(hub, subscriptions, own, settings.matching.keep_seconds)
        if "dispatcher" in roles:
            self.dispatcher = Dispatcher(hub.counters, None if self.connector is None else self)
            self.dispatcher.reach = self._reach
        if self.matches:
            self._source.paths[self.node] = self.own_path
        ring.changed = self._ring_changed

    def _make_connector(self, settings: Settings) -> Connector:
        connector = Connector(
            self._hub,
            self.subscriptions,
            self._read,
            connector_id=self.id,
            keep_seconds=settings.matching.keep_seconds,
            max_subscriptions=settings.matching.max_subscriptions,
            max_predicates=settings.matching.max_predicates,
            max_tracks=settings.matching.max_tracks,
            replay=settings.matching.replay,
        )
        connector.find_path = self._find_path
        connector.relying = self.relying
        return connector

    # What the driver calls.

    def begin_loading(self) -> None:
        """Match nothing until the kernels are loaded; then call :meth:`loaded`."""
        self._loading = self.matching.unready = True

    def loaded(self) -> None:
        """Use the kernels from now on; sort out by :meth:`sort_step` what came while they were compiled."""
        self.matching.unready = False
        self.begin_sorting()

    def begin_sorting(self) -> None:
        """Begin to judge again which subscriptions are matched here, by :meth:`sort_step`."""
        self._sorting = self.matching.sort_out()

    def sort_step(self) -> bool:
        """Judge some subscriptions again; return whether there are more."""
        if self._sorting is None:
            return False
        if next(self._sorting, self) is not self:
            return True
        self._sorting = None
        if not self.matching.unready:
            self._loading = False
        reads, self._reads = self._reads, []
        for read in reads:
            read()
        return False

    @property
    def sorting(self) -> bool:
        """Whether :meth:`sort_step` has something to do."""
        return self._sorting is not None

    def is_blocked(self) -> bool:
        """Whether matching has to wait."""
        return (
            self._sorting is not None
            or self._loading
            or (self.dispatcher_link is not None and self.dispatcher_link.full)
        )

    def matched(self, batch: Batch, matches: Matches | None) -> None:
        """Pass on the matches of a batch; there may be none."""
        if self.connector is not None and matches is not None:
            self.connector.deliver(batch, matches)
        self._source.seen = self.own_path.upto = batch.last
        if self._pushes:
            without = None if self.connector is None else self.id
            found = () if matches is None else self.matching.pushes(batch, matches, without=without)
            if self.dispatcher_link is not None:
                self.dispatcher_link.push(found, batch.last)
            elif self.dispatcher is not None:
                for push in found:
                    self.dispatcher.push(self._feeder, push)
                self.dispatcher.push(self._feeder, mark(batch.last, self.node))

    def tick(self, now: float) -> None:
        """Expire what is due, stay on the ring, and tell the dispatcher here from where on everything is pushed."""
        self._retired.tick(now)
        if self.connector is not None:
            self.connector.tick(now)
        if self._pushes and not (self._joining or self._stopping) and self._name not in self.ring.ring:
            self._joining = True
            self._hub.submit(join(self._name, Ring(self._name).starts[self._name]), self._joined)
        own = self.dispatcher if self._pushes and self.dispatcher_link is None else None
        if own is not None and self._feeder not in own.feeders and not self._stopping:
            # Connectors rely on a matcher only once it has said from where on it pushes everything.
            own.push(self._feeder, mark(self.own_path.upto, self.node))

    def facts(self) -> dict[str, int]:
        """Return the numbers of subscriptions and of those matched here, and the memory of their index."""
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
        """Leave the ring, so that others take this matcher's share."""
        self._stopping = True
        if self.connector is not None:
            self.connector.stopping = True
        if self._pushes and self._name in self.ring.ring:
            self._hub.submit(leave(self._name))

    # What the doors call.

    def feeder(self) -> Feeder:
        """Make the feeder for a new connection that pushes; the fleet's many connections are one source."""
        return Feeder(self.fleet if self._spark else PushSource())

    def pushed(self, source: PushSource, msg_id: bytes, payload: bytes, clients: bytes) -> None:
        """Push a message that a dispatcher brings to clients of this connector."""
        seq = seq_of(msg_id)
        if self.connector is not None and (seq is None or not self._is_ahead(source, seq)):
            self.connector.pushed(source, msg_id, payload, unpack_clients(clients))

    def marked(self, source: PushSource, msg_id: bytes) -> None:
        """Note how far a matcher elsewhere is; clients that are matched for here do not depend on that."""
        seq, node = parse_msg_id(msg_id)
        if not self.relying or (seq != NOTHING and self._is_ahead(source, seq)):
            return
        if self._paths.mark(source, node, seq) and self.connector is not None:
            self.connector.reroute()

    def lost(self, source: PushSource) -> None:
        """Stop relying on a source whose connection is closed."""
        if self.relying and self._paths.lose(source) and self.connector is not None:
            self.connector.reroute()

    # The rest is between the parts.

    def _is_ahead(self, source: PushSource, seq: int) -> bool:
        """Return whether a source names a place that the sequence cannot have reached; it is not relied on then."""
        # The hub that numbers messages, or matches them, knows them before anybody else can push them.
        follows = self.relying and self._hub.sequencer is not None
        most = self._hub.log.head + (MAX_LEAD if follows else 0)
        if seq <= most:
            return False
        detail = f"pushed, where the newest here is {self._hub.log.head}"
        self._hub.counters.report("ahead", seq, seq, detail, at_will=True, door="sdk")
        self.lost(source)
        return True

    def _reach(self) -> int:
        """Return the highest sequence number that may have been pushed by now, judging by the log here."""
        return self._hub.log.tail + (MAX_LEAD if self._hub.sequencer is not None else 0)

    def _find_path(self, client: bytes) -> MatcherPath | None:
        if self._spark:
            return self._paths.get(node_id(FLEET))
        return self.own_path if self.matches else self._paths.get(self.ring.owner(client))

    def _is_wanted(self, client: bytes, subscription: Subscription) -> bool:
        if subscription.connector == self.id:
            return self._connects
        return self._pushes and self.ring.owner(client) == self.node

    def _joined(self, _outcome: Batch | StorageError) -> None:
        self._joining = False

    def _ring_changed(self, seq: int) -> None:
        """Note that clients have other matchers after message ``seq``."""
        if self._pushes:
            self.after(seq, self.begin_sorting)
        if self.connector is not None:
            self.connector.reroute(seq)

    def _read(self, client: bytes, first: int, last: int, then: Then) -> None:
        if self._loading:
            self._reads.append(lambda: self._read_log(client, first, last, then))
        else:
            self._read_log(client, first, last, then)


def role_name(settings: Settings) -> str:
    """Return the name of a process among the roles: its node's name.

    An unnamed frontend has its machine's name, perhaps like its upstream hub; its data directory tells them apart.
    """
    node = settings.node
    if not node.upstream or settings.source("node.name") != "default":
        return node.name
    return f"{node.name}-{sha256(str(node.data.resolve()).encode()).hexdigest()[:6]}"


def connector_id(name: str) -> bytes:
    """Return the 8-byte ASCII id of a node in the attribute protocol, made from its name.

    >>> connector_id("Ivan")
    b'ebec404b'
    """
    return sha256(name.encode()).hexdigest()[:NODE_ID_BYTES].encode()
