"""A connection's state as a table, ``(state, event) -> state``; an event that the table lacks is refused.

The tables are module constants, so that tests can walk them and the documentation's diagrams are drawn
from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from headrace.errors import Protocol, UnexpectedError

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class StateMachine(Generic[S, E]):
    """One connection's state in a transition table."""

    __slots__ = ("_protocol", "_table", "state")

    def __init__(self, protocol: Protocol, table: Mapping[tuple[S, E], S], initial: S) -> None:
        self._protocol: Protocol = protocol
        self._table = table
        self.state = initial

    def step(self, event: E) -> S:
        """Move by ``event`` and return the new state; an event the table lacks raises and moves nothing."""
        try:
            self.state = self._table[self.state, event]
        except KeyError:
            allowed = sorted(str(e.value) for s, e in self._table if s is self.state)
            raise UnexpectedError(
                self._protocol,
                str(event.value),
                f"in state {self.state.value}",
                f"only {', '.join(allowed) or 'nothing'} may come now",
            ) from None
        return self.state

    def allows(self, event: E) -> bool:
        """Whether the table has a move for ``event`` from here."""
        return (self.state, event) in self._table
