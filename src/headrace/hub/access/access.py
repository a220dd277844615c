"""The one place that decides: may this principal do this action, at this door, to this topic?

Every door asks here. A refusal is counted by door, action and reason, and noted in the audit trail; the door answers
with an error where its protocol has one. Paths with many messages first look at the principal itself
(:attr:`~headrace.hub.access.principal.Principal.publishes_everything`), which suffices for most peers.

Everything that holds a principal joins (:meth:`AccessControl.join`). When settings are reloaded, it gets the new
principal, or is told that its rights are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.config import Secret
from headrace.errors import RefusedError
from headrace.hub.access.audit import AuditKind, AuditTrail
from headrace.hub.access.connection_facts import ConnectionFacts
from headrace.hub.access.principal import Action, Forbidden, Principal
from headrace.hub.access.principals import ANONYMOUS, UNKNOWN, Principals
from headrace.hub.counters import Counters


class PrincipalHolder(Protocol):
    """A connection, or anything else that acts for a principal."""

    principal: Principal
    number: int
    """Its number among all holders that this hub had."""

    def known_as(self, principals: Principals) -> Principal | None:
        """Return which of other principals it is now, by the same proof; ``None`` if none of them."""

    def facts(self, now: float) -> ConnectionFacts:
        """Describe it for an operator."""

    def revoked(self, detail: str) -> None:
        """End it, since the principal is gone or may do less than before."""


class AccessControl:
    """The rights of a hub's peers."""

    def __init__(self, principals: Principals, counters: Counters, audit: AuditTrail) -> None:
        self.principals = principals
        self.audit = audit
        self.keys: dict[str, Secret] = dict(principals.keys)
        """Every client's key, by client id; reloading changes the table's content, not the table."""
        self.load_again: Callable[[], Mapping[str, Any]] = dict
        """Reloads the settings and returns the result; set by the hub's process."""
        self._counters = counters
        self._holders: dict[PrincipalHolder, None] = {}

    @property
    def required(self) -> bool:
        """Whether only known principals may act."""
        return self.principals.required

    def may(self, principal: Principal, action: Action, door: str, what: str = "", peer: str = "") -> bool:
        """Return whether a principal may do an action at a door; count and note a refusal."""
        reason = principal.verdict(action, what)
        if reason is not None:
            self.refused(principal, action, door, what, peer, reason)
        return reason is None

    def denies(self, principal: Principal, action: Action, door: str, what: str, peer: str = "") -> bool:
        """Return whether a principal is explicitly denied an action; if so, note it."""
        denied = principal.denies(action, what)
        if denied:
            self.refused(principal, action, door, what, peer, Forbidden.DENIED)
        return denied

    def may_use(self, principal: Principal, service: str, action: Action, door: str, peer: str = "") -> bool:
        """Return whether a principal may use a service, and is not denied the action for the topic of this name."""
        return self.may(principal, Action.SERVICE, door, service, peer) and not self.denies(
            principal, action, door, service, peer
        )

    def may_be_called(self, principal: Principal, client: str) -> bool:
        """Return whether a principal may use a client id as its name: the id is its own or nobody's."""
        return principal.may_do_everything or self.principals.of_client_id(client) in (None, principal)

    def may_each(
        self, principal: Principal, action: Action, door: str, topics: pa.Array, peer: str = ""
    ) -> bool:
        """Return whether a principal may do an action to every topic of a column; note the first that it may not."""
        if principal.may_everything(action):
            return True
        distinct = pc.unique(topics)
        allowed = principal.mask(action, distinct)
        if allowed.all():
            return True
        # Decide again for one topic, to learn the reason.
        return self.may(principal, action, door, distinct[int(allowed.argmin())].as_py(), peer)

    def check(self, principal: Principal, action: Action, door: str, what: str = "", peer: str = "") -> None:
        """Raise an error unless a principal may do an action at a door."""
        if not self.may(principal, action, door, what, peer):
            raise forbidden(principal, action, what)

    def refused(
        self, principal: Principal, action: Action, door: str, what: str, peer: str, reason: Forbidden | str
    ) -> None:
        """Count and note a refusal."""
        self._counters.add("refused_access", door=door, action=str(action), reason=str(reason))
        self.audit.note(
            AuditKind.REFUSED,
            door=door,
            peer=peer,
            principal=principal.name,
            action=str(action),
            what=what,
            reason=str(reason),
        )

    def turned_away(self, door: str, peer: str, who: str, reason: str) -> None:
        """Count and note a peer that failed to prove who it is."""
        self._counters.add("refused_access", door=door, action="login", reason=reason)
        self.audit.note(AuditKind.REFUSED, door=door, peer=peer, principal=who, action="login", reason=reason)

    def let_in(self, principal: Principal, door: str, peer: str) -> None:
        """Note a peer that has proven who it is."""
        self.audit.note(AuditKind.LET_IN, door=door, peer=peer, principal=principal.name)

    def changed(self, principal: Principal, door: str, peer: str, action: str, what: str) -> None:
        """Note a change that a principal made at the hub itself."""
        self.audit.note(
            AuditKind.CHANGED, door=door, peer=peer, principal=principal.name, action=action, what=what
        )

    def settings_changed(self, settings: str) -> None:
        """Note that the hub has applied new settings."""
        self.audit.note(AuditKind.CHANGED, door="", peer="", principal="", action="settings", what=settings)

    def join(self, holder: PrincipalHolder) -> None:
        """Remember a holder of a principal."""
        self._holders[holder] = None

    def leave(self, holder: PrincipalHolder) -> None:
        """Forget a holder."""
        self._holders.pop(holder, None)

    def connections(self, now: float) -> Iterator[ConnectionFacts]:
        """Describe every connection, in the order they came."""
        for holder in tuple(self._holders):
            yield holder.facts(now)

    def disconnect(self, number: int) -> bool:
        """Close the connection with this number; return whether there is one."""
        for holder in tuple(self._holders):
            if holder.number == number:
                holder.revoked("closed by an operator")
                return True
        return False

    def reload(self, principals: Principals) -> int:
        """Replace all principals; return how many connections were closed since their rights are gone."""
        self.principals = principals
        self.keys.clear()
        self.keys.update(principals.keys)
        ended = 0
        for holder in tuple(self._holders):
            before = holder.principal
            after = holder.known_as(principals)
            if after is not None and after.keeps(before):
                holder.principal = after
                continue
            ended += 1
            reason = "changed" if after is not None and after.name == before.name else "gone"
            facts = holder.facts(0.0)
            self.audit.note(
                AuditKind.REFUSED,
                door=facts.door,
                peer=facts.peer,
                principal=before.name,
                action="stay",
                reason=reason,
            )
            holder.revoked(f"the right of {before.name} is {reason}")
        return ended


def forbidden(principal: Principal, action: Action | str, what: str = "") -> RefusedError:
    """Make the error for an action that a peer may not do."""
    who = "whoever proves nothing" if principal.name in (ANONYMOUS, UNKNOWN) else principal.name
    if action == Action.ADMIN:
        return RefusedError("forbidden", f"{who} lacks the right admin")
    doing = "use service" if action == Action.SERVICE else str(action)
    return RefusedError("forbidden", f"{who} may not {doing} {what!r}" if what else f"{who} may not {doing}")
