"""A principal: who a peer is, and what it may do.

The one question is :meth:`Principal.verdict`: why not this action on this topic, service or name? Names are compared as
topics are (:mod:`headrace.hub.topic_test`), and what was decided is remembered there. A principal that may publish or
read everything says so in one attribute, for the paths where messages are many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.config import EVERY_ACTION
from headrace.hub.topic_test import Mask, TopicTest


class Action(StrEnum):
    """What may be allowed or denied."""

    PUBLISH = "publish"
    READ = "read"
    SERVICE = "service"
    CONSUME = "consume"
    STAGE = "stage"
    ADMIN = "admin"


class Forbidden(StrEnum):
    """Why a principal may not do something; the label of its counter."""

    UNKNOWN = "unknown"
    """Nobody knows who it is, and the hub asks everybody (``auth.required``)."""
    NOT_ALLOWED = "not_allowed"
    DENIED = "denied"
    ANOTHERS_NAME = "anothers_name"
    """The publisher's name belongs to another principal."""


class Rights(NamedTuple):
    """Patterns of topics: those that are allowed (``None`` for all), and those that are denied all the same."""

    allowed: tuple[str, ...] | None
    denied: tuple[str, ...]


class Principal:
    """Somebody with a name and rights; it does not change. A reload makes others."""

    __slots__ = (
        "_allowed",
        "_denials",
        "_denied",
        "_tests",
        "allow",
        "anonymous",
        "deny",
        "known",
        "may_do_everything",
        "name",
        "owner",
        "proofs",
        "publishes_everything",
        "reads_everything",
    )

    def __init__(
        self,
        name: str,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        *,
        owner: str = "",
        proofs: Iterable[object] = (),
        anonymous: bool = False,
        known: bool = True,
    ) -> None:
        self.name = name
        self.allow = frozenset(allow)
        self.deny = frozenset(deny)
        self.owner = owner
        """Whose publishers' and queries' names it may use: its client id or name; empty for whoever is anonymous."""
        self.proofs = frozenset(proofs)
        """What it may prove itself by."""
        self.anonymous = anonymous
        self.known = known
        """Whether it may act at all: false for whoever has not proven who it is, where that is asked for."""
        self._allowed = _by_action(self.allow)
        self._denied = _by_action(self.deny)
        self._tests = {
            action: TopicTest(readable=self._allowed[action], denied=self._denied[action])
            for action in Action
        }
        self._denials = {action: TopicTest(readable=self._denied[action]) for action in Action}
        self.publishes_everything = self.may_everything(Action.PUBLISH)
        self.reads_everything = self.may_everything(Action.READ)
        self.may_do_everything = all(test.everything for test in self._tests.values())

    def may_everything(self, action: Action) -> bool:
        """Whether it may do an action to whatever there is."""
        return self._tests[action].everything

    def may_something(self, action: Action) -> bool:
        """Whether it may do an action to anything, as far as that is plain to see."""
        return self._tests[action].names != frozenset() and "**" not in self._denied[action]

    def may(self, action: Action, what: str = "") -> bool:
        """Whether it may do an action to a topic, a service or what else has this name."""
        return self._tests[action].allows(what)

    def verdict(self, action: Action, what: str = "") -> Forbidden | None:
        """Return why it may not do an action to what has this name, or ``None``."""
        if self._tests[action].allows(what):
            return None
        if not self.known:
            return Forbidden.UNKNOWN
        return Forbidden.DENIED if self.denies(action, what) else Forbidden.NOT_ALLOWED

    def denies(self, action: Action, what: str) -> bool:
        """Whether an action to what has this name is denied in so many words."""
        return self._denials[action].allows(what)

    def seen(self, services: Sequence[str]) -> list[bool]:
        """Return which services it may see: those it may use, but for those that it is denied to read."""
        names = pa.array(services, pa.string())
        visible = self.mask(Action.SERVICE, names) & ~self._denials[Action.READ].mask(names)
        return [bool(shown) for shown in visible]

    def mask(self, action: Action, topics: pa.Array) -> Mask:
        """Return to which topics of a column it may do an action."""
        return self._tests[action].mask(topics)

    def rights(self, action: Action) -> Rights:
        """Return the patterns that are allowed and denied, for a reader's filter."""
        return Rights(None if self.may_everything(action) else self._allowed[action], self._denied[action])

    def keeps(self, before: Principal) -> bool:
        """Whether it may do all that an older one of this name might, and is proven by all that proved that."""
        return before.allow <= self.allow and self.deny <= before.deny and before.proofs <= self.proofs

    def __repr__(self) -> str:
        return f"Principal({self.name!r})"


def _by_action(rules: Iterable[str]) -> dict[Action, tuple[str, ...]]:
    patterns: dict[Action, list[str]] = {action: [] for action in Action}
    for rule in sorted(rules):
        word, _, pattern = rule.partition(" ")
        for action in Action if word == EVERY_ACTION else (Action(word),):
            patterns[action].append(pattern)
    return {action: tuple(found) for action, found in patterns.items()}


EVERYTHING: Final = (f"{EVERY_ACTION} **",)
"""The rules of a principal that may do everything."""
