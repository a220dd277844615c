"""Asking where the sequence is, for a connector whose own log may be behind.

Where another hub numbers messages, this one's log is a copy that comes after. A client may have got more than the copy
has: matchers elsewhere push as soon as they know a message. And what the copy says of the client may have changed. So a
session is begun only once an entry that was written for it is in the copy: all that happened before the client came
lies before that entry. What the client subscribes is such an entry; for one that only comes back, the connector says
that it lives (:func:`~headrace.hub.routing.subscriptions.alive`), once for all who came before.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import StorageError
from headrace.hub.routing.client_session import Session
from headrace.hub.routing.subscriptions import alive
from headrace.hub.sequence import Hub
from headrace.message import Batch


class Asking:
    """The sessions of a connector that wait for a place in the sequence; ``told`` is called with each, and with it."""

    def __init__(self, hub: Hub, connector: bytes, told: Callable[[Session, int], None]) -> None:
        self._hub = hub
        self._connector = connector
        self._told = told
        self._waiting: dict[Session, None] = {}
        self._asked: dict[Session, None] | None = None
        """Those for whom an entry is under way; who comes later waits for the next."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._asked or ())

    def ask(self, session: Session) -> None:
        """Have a session told a place behind all that has happened so far."""
        if self._asked is None or session not in self._asked:
            self._waiting[session] = None
        self.go_on()

    def forget(self, session: Session) -> None:
        """It has left, or knows."""
        self._waiting.pop(session, None)
        if self._asked is not None:
            self._asked.pop(session, None)

    def go_on(self) -> None:
        """Ask for those who wait, unless a question is under way."""
        if self._waiting and self._asked is None:
            self._asked, self._waiting = self._waiting, {}
            self._hub.submit(alive(self._connector), self._answered)

    def _answered(self, outcome: Batch | StorageError) -> None:
        asked, self._asked = self._asked or {}, None
        if isinstance(outcome, StorageError):
            # Nobody who numbers can be reached now: their owner comes again.
            self._waiting = asked | self._waiting
            return
        for session in tuple(asked):
            self._told(session, outcome.first)
        self.go_on()
