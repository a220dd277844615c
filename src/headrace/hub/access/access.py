"""The one place that decides: may this principal do this action, at this door, to this topic?

Every door asks here. A refusal is counted by door, action and reason, and noted in the audit trail; the door answers
with an error where its protocol has one. Paths where messages are many first look at the principal itself
(:attr:`~headrace.hub.access.principal.Principal.publishes_everything`), which is all that most peers cost.

Whoever holds a principal while the settings may change joins (:meth:`AccessControl.join`): a reload gives it the new
one, or tells it that its right is gone.
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
    """A connection, or whoever else acts for a principal."""

    principal: Principal
    number: int
    """Its number among all that this hub had."""

    def known_as(self, principals: Principals) -> Principal | None:
        """Return who it is among other principals, by what has proven it; ``None`` if nobody any more."""

    def facts(self, now: float) -> ConnectionFacts:
        """Describe it for an operator."""

    def revoked(self, detail: str) -> None:
        """End: the principal is gone, or may do less than before."""


class AccessControl:
    """The rights of a hub's peers."""

    def __init__(self, principals: Principals, counters: Counters, audit: AuditTrail) -> None:
        self.principals = principals
        self.audit = audit
        self.keys: dict[str, Secret] = dict(principals.keys)
        """Every client's key, by client id; the table stays the same when its content is replaced."""
        self.load_again: Callable[[], Mapping[str, Any]] = dict
        """Loads the settings again, and returns what came of it; the hub's process sets it."""
        self._counters = counters
        self._holders: dict[PrincipalHolder, None] = {}

    @property
    def required(self) -> bool:
        """Whether nobody may act who is not known."""
        return self.principals.required

    def may(self, principal: Principal, action: Action, door: str, what: str = "", peer: str = "") -> bool:
        """Whether a principal may do an action at a door; a refusal is counted and noted."""
        reason = principal.verdict(action, what)
        if reason is not None:
            self.refused(principal, action, door, what, peer, reason)
        return reason is None

    def denies(self, principal: Principal, action: Action, door: str, what: str, peer: str = "") -> bool:
        """Whether a principal is denied an action in so many words, whatever else allows it; then that is noted."""
        denied = principal.denies(action, what)
        if denied:
            self.refused(principal, action, door, what, peer, Forbidden.DENIED)
        return denied

    def may_use(self, principal: Principal, service: str, action: Action, door: str, peer: str = "") -> bool:
        """Whether a principal may use a service, and is not denied what that does to the topic of this name."""
        return self.may(principal, Action.SERVICE, door, service, peer) and not self.denies(
            principal, action, door, service, peer
        )

    def may_be_called(self, principal: Principal, client: str) -> bool:
        """Whether a principal may use a client id as its name: it is its own, or nobody's."""
        return principal.may_do_everything or self.principals.of_client_id(client) in (None, principal)

    def may_each(
        self, principal: Principal, action: Action, door: str, topics: pa.Array, peer: str = ""
    ) -> bool:
        """Whether a principal may do an action to every topic of a column; the first it may not is noted."""
        if principal.may_everything(action):
            return True
        distinct = pc.unique(topics)
        allowed = principal.mask(action, distinct)
        if allowed.all():
            return True
        # What was just computed for the column is decided again for one topic, for its reason.
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
        """Count and note somebody who did not prove who it is."""
        self._counters.add("refused_access", door=door, action="login", reason=reason)
        self.audit.note(AuditKind.REFUSED, door=door, peer=peer, principal=who, action="login", reason=reason)

    def let_in(self, principal: Principal, door: str, peer: str) -> None:
        """Note somebody who is known now."""
        self.audit.note(AuditKind.LET_IN, door=door, peer=peer, principal=principal.name)

    def changed(self, principal: Principal, door: str, peer: str, action: str, what: str) -> None:
        """Note what somebody changed at the hub itself."""
        self.audit.note(
            AuditKind.CHANGED, door=door, peer=peer, principal=principal.name, action=action, what=what
        )

    def settings_changed(self, settings: str) -> None:
        """Note that the hub has taken new settings."""
        self.audit.note(AuditKind.CHANGED, door="", peer="", principal="", action="settings", what=settings)

    def join(self, holder: PrincipalHolder) -> None:
        """Remember somebody who acts for a principal."""
        self._holders[holder] = None

    def leave(self, holder: PrincipalHolder) -> None:
        """Forget somebody who no longer acts."""
        self._holders.pop(holder, None)

    def connections(self, now: float) -> Iterator[ConnectionFacts]:
        """Describe every connection, in the order they came."""
        for holder in tuple(self._holders):
            yield holder.facts(now)

    def disconnect(self, number: int) -> bool:
        """Close a connection; whether there is one of this number."""
        for holder in tuple(self._holders):
            if holder.number == number:
                holder.revoked("closed by an operator")
                return True
        return False

    def reload(self, principals: Principals) -> int:
        """Replace all principals; return how many connections are closed because their right is gone."""
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
    """Make the error that tells a peer what it may not do."""
    who = "whoever proves nothing" if principal.name in (ANONYMOUS, UNKNOWN) else principal.name
    if action == Action.ADMIN:
        return RefusedError("forbidden", f"{who} lacks the right admin")
    doing = "use service" if action == Action.SERVICE else str(action)
    return RefusedError("forbidden", f"{who} may not {doing} {what!r}" if what else f"{who} may not {doing}")
