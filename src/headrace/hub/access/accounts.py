"""What each peer costs the hub, and how much one peer may use.

Every principal has one account, and so does every address of unknown peers. All connections of a peer share its
account, at whatever door. It counts

- what a peer **has**: connections, subscriptions and the costs of their filters, bytes of state and of staged rows. A
  request for more than its budget is refused (:meth:`Account.take`): by an error if the protocol has one, otherwise by
  ending the connection;
- what it **sends and is sent**: messages and bytes per second. A peer above its rate is not read from until it is
  within the rate again, and a reader above its rate is sent nothing more; neither loses messages.

The budget of every peer is in ``limits``, that of one principal in ``access.NAME.limits``. A batch takes one call, with
any number of messages. There is no clock here: ``now`` is an argument.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from headrace.config import Settings
from headrace.hub.access.principal import Principal

MOST_IDLE: Final = 4096
"""Number of accounts above which unused ones are forgotten."""


class Resource(StrEnum):
    """Something that a peer may have a limited number of."""

    CONNECTIONS = "connections"
    SUBSCRIPTIONS = "subscriptions"
    STAGED_BYTES = "staged_bytes"
    FILTER_COST = "filter_cost"
    TRACKS = "tracks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much one peer may use; a rate of ``None`` is not limited."""

    connections: int
    subscriptions: int
    state_bytes: int
    staged_bytes: int
    filter_cost: int
    tracks: int
    messages_per_second: int | None
    bytes_per_second: int | None
    sent_bytes_per_second: int | None


UNLIMITED: Final = Budget(
    connections=sys.maxsize,
    subscriptions=sys.maxsize,
    state_bytes=sys.maxsize,
    staged_bytes=sys.maxsize,
    filter_cost=sys.maxsize,
    tracks=sys.maxsize,
    messages_per_second=None,
    bytes_per_second=None,
    sent_bytes_per_second=None,
)


class Rate:
    """A limited number per second. A peer that was idle may send a second's worth at once."""

    __slots__ = ("_at", "_level", "limit")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._level = 0.0
        self._at = 0.0

    def add(self, amount: int, now: float) -> None:
        """Count some more."""
        if self.limit is not None:
            self._level = max(0.0, self._level - (now - self._at) * self.limit) + amount
            self._at = now

    def wait(self, now: float) -> float:
        """Return the seconds until the rate is within its limit again."""
        if self.limit is None:
            return 0.0
        return max(0.0, self._level / self.limit - 1.0 - (now - self._at))


class Account:
    """What one peer has and does, over all its connections."""

    __slots__ = (
        "_bytes",
        "_messages",
        "_sent",
        "budget",
        "has",
        "name",
        "of",
        "paused",
        "rated",
        "received_bytes",
        "received_messages",
        "refused",
        "sent_bytes",
        "state_bytes",
        "state_pending",
    )

    def __init__(self, name: str, budget: Budget, of: str = "") -> None:
        self.name = name
        """The principal's name, or the address."""
        self.of = of or name
        """The name of the principal whose budget it has."""
        self.has: dict[Resource, int] = dict.fromkeys(Resource, 0)
        self.state_bytes = 0
        """Bytes of the services that it was the last to publish to."""
        self.state_pending = 0
        """Bytes of changes to services that are on their way into the log."""
        self.received_bytes = 0
        self.received_messages = 0
        self.sent_bytes = 0
        self.refused = 0
        """Number of requests for more than it may have."""
        self.paused = 0
        """Number of times that it had to wait for its rate."""
        self._messages = Rate(None)
        self._bytes = Rate(None)
        self._sent = Rate(None)
        self.obey(budget)

    def obey(self, budget: Budget) -> None:
        """Take another budget."""
        self.budget = budget
        self._messages.limit = budget.messages_per_second
        self._bytes.limit = budget.bytes_per_second
        self._sent.limit = budget.sent_bytes_per_second
        self.rated = any(rate.limit is not None for rate in (self._messages, self._bytes, self._sent))
        """Whether any rate is limited; if not, callers need not look at the time."""

    @property
    def most_state_bytes(self) -> int:
        """The most bytes that it may have in services."""
        return self.budget.state_bytes

    def take(self, resource: Resource, amount: int = 1) -> str | None:
        """Charge it for some of a resource, or return why it may not have that."""
        most = getattr(self.budget, resource)
        if self.has[resource] + amount > most:
            self.refused += 1
            return f"{self.name} has {self.has[resource]} {resource} of {most} (limits.{resource}_per_client)"
        self.has[resource] += amount
        return None

    def lacks(self, resource: Resource, amount: int = 1) -> str | None:
        """Return why it may not have more of a resource; ``None`` if it may."""
        detail = self.take(resource, amount)
        if detail is None:
            self.has[resource] -= amount
        return detail

    def adjust(self, resource: Resource, difference: int) -> None:
        """Count a change of what it has, after asking :meth:`lacks`."""
        self.has[resource] += difference

    def give_back(self, resource: Resource, amount: int = 1) -> None:
        """Take back what :meth:`take` gave."""
        self.has[resource] -= amount

    def receive(self, size: int, messages: int, now: float) -> None:
        """Count what it has sent; where each call counts, add to the two numbers, and call :meth:`rate` if rated."""
        self.received_bytes += size
        self.received_messages += messages
        self.rate(size, messages, now)

    def rate(self, size: int, messages: int, now: float) -> None:
        """Count what it has sent toward its rates."""
        self._bytes.add(size, now)
        self._messages.add(messages, now)

    def send(self, size: int, now: float) -> None:
        """Count what it was sent; where each call counts, add to the number, and call :meth:`rate_sent` if rated."""
        self.sent_bytes += size
        self.rate_sent(size, now)

    def rate_sent(self, size: int, now: float) -> None:
        """Count what it was sent toward its rate."""
        self._sent.add(size, now)

    def wait(self, now: float) -> float:
        """Return the seconds for which nothing more is read from it, 0 if it keeps within its rates."""
        return max(self._bytes.wait(now), self._messages.wait(now)) if self.rated else 0.0

    def wait_to_send(self, now: float) -> float:
        """Return the seconds for which nothing more is sent to it."""
        return self._sent.wait(now) if self.rated else 0.0

    @property
    def idle(self) -> bool:
        """Whether the account can be forgotten."""
        return not (any(self.has.values()) or self.state_bytes or self.state_pending)

    def facts(self) -> dict[str, object]:
        """Return facts for the status."""
        return {
            "connections": self.has[Resource.CONNECTIONS],
            "subscriptions": self.has[Resource.SUBSCRIPTIONS],
            "state_bytes": self.state_bytes,
            "staged_bytes": self.has[Resource.STAGED_BYTES],
            "filter_cost": self.has[Resource.FILTER_COST],
            "tracks": self.has[Resource.TRACKS],
            "received_bytes": self.received_bytes,
            "received_messages": self.received_messages,
            "sent_bytes": self.sent_bytes,
            "refused": self.refused,
            "paused": self.paused,
        }


class Accounts:
    """The accounts of all peers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._accounts: dict[str, Account] = {}
        self._tidy_at = MOST_IDLE

    def __len__(self) -> int:
        return len(self._accounts)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def of(self, principal: Principal, address: str) -> Account:
        """Return the account of a principal, or of an address if its peers are not known."""
        name = address if principal.anonymous else principal.name
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= self._tidy_at:
                self._tidy()
            account = self._accounts[name] = Account(name, self._budget(principal.name), principal.name)
        return account

    def reload(self, settings: Settings) -> None:
        """Give every account the budget of new settings."""
        self._settings = settings
        for account in self:
            account.obey(self._budget(account.of))

    def _budget(self, name: str) -> Budget:
        limits = self._settings.limits
        budget = Budget(
            connections=limits.connections_per_client,
            subscriptions=limits.subscriptions_per_client,
            state_bytes=limits.state_bytes_per_client,
            staged_bytes=limits.staged_bytes_per_client,
            filter_cost=limits.filter_cost_per_client,
            tracks=limits.tracks_per_client,
            messages_per_second=limits.messages_per_second,
            bytes_per_second=limits.bytes_per_second,
            sent_bytes_per_second=limits.sent_bytes_per_second,
        )
        own = self._settings.access.get(name)
        return budget if own is None else replace(budget, **dict(own.limits))

    def _tidy(self) -> None:
        for name in [name for name, account in self._accounts.items() if account.idle]:
            del self._accounts[name]
        # Where many have something, to look through them for each newcomer would take too long.
        self._tidy_at = max(MOST_IDLE, 2 * len(self._accounts))
