"""The parts of a hub's state, by name."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from headrace.hub.consumers.cursors import Consumers
from headrace.hub.lost_ranges import LostRanges
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.query_marks import Queries
from headrace.hub.routing.matcher_ring import MatcherRing
from headrace.hub.routing.subscriptions import (
    Subscriptions,
)
from headrace.hub.services.objects import Services
from headrace.hub.state import HubState
from headrace.hub.streams.streams import Streams


@dataclass(frozen=True, slots=True)
class StateParts:
    """All parts of a hub's state besides holds, empty at first."""

    publishers: PublisherNumbers = field(default_factory=PublisherNumbers)
    queries: Queries = field(default_factory=Queries)
    services: Services = field(default_factory=Services)
    consumers: Consumers = field(default_factory=Consumers)
    subscriptions: Subscriptions = field(default_factory=Subscriptions)
    matchers: MatcherRing = field(default_factory=MatcherRing)
    losses: LostRanges = field(default_factory=LostRanges)
    streams: Streams = field(default_factory=Streams)

    def state(self) -> HubState:
        """Make the state that consists of them."""
        return HubState(*(getattr(self, part.name) for part in fields(self)))
