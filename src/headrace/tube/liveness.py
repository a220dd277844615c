"""Liveness of the peer: when to ping, and when to give up. Decides only; the time is an argument.

A peer that was silent for ``idle_seconds`` is pinged. Any byte counts as its answer, not the Pong alone: a Pong waits
for the end of the message its sender is in the middle of. For the same reason a peer that takes what we send is not
given up while it does so: our Ping may still be waiting.

While we do not read (our consumer is slow), silence says nothing about the peer, and it is not given up. But then we
do not see its Pings either, so we go on sending ours, which shows it that we are there.

A peer that lets a message drip in, a byte now and then, is never silent; ``message_seconds`` bounds that.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.tube.options import TubeOptions


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before ``until``."""

    until: float


@dataclass(frozen=True, slots=True)
class Ask:
    """Ping the peer, then look again."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Close: the peer is gone."""

    reason: str


class Liveness:
    """The times at which one peer was last heard, which its session sets as bytes come."""

    __slots__ = ("_began", "_opened", "_options", "_taken", "asked", "heard", "whole")

    def __init__(self, options: TubeOptions, now: float) -> None:
        self._options = options
        self._opened = False
        self._began = now
        self.heard = now
        """When bytes last came."""
        self.whole = now
        """When the peer was last between messages."""
        self.asked: float | None = None
        """When a Ping was sent, or the peer last took something after it; None once the peer was heard."""
        self._taken = 0

    def open(self, now: float) -> None:
        """Note that both fragment sizes are known."""
        self._opened = True
        self.resume(now)

    def hear(self, now: float) -> None:
        """Note that bytes came."""
        self.heard = now
        self.asked = None

    def resume(self, now: float) -> None:
        """Note that we read again after we did not: all waits start anew."""
        self.heard = self.whole = now
        self.asked = None

    def look(self, now: float, *, reading: bool, unfinished: bool, taken: int) -> Wait | Ask | GiveUp:
        """Decide what is due; ``taken`` counts our bytes that the network has taken so far."""
        options = self._options
        if not self._opened:
            until = self._began + options.handshake_seconds
            if now >= until:
                return GiveUp(f"did not open the tube within {options.handshake_seconds:g} s")
            return Wait(until)
        deadlines = [now + options.message_seconds]
        if unfinished and reading:
            deadlines[0] = self.whole + options.message_seconds
            if now >= deadlines[0]:
                return GiveUp(f"a message was not whole within {options.message_seconds:g} s")
        if self.asked is None or not reading:
            ask_at = max(self.heard, self.asked or 0.0) + options.idle_seconds
            if now >= ask_at:
                self.asked = now
                self._taken = taken
                return Ask()
            deadlines.append(ask_at)
        else:
            if taken != self._taken:
                self._taken = taken
                self.asked = now
            if now >= self.asked + options.pong_seconds:
                return GiveUp(f"no answer to a Ping within {options.pong_seconds:g} s")
            deadlines.append(self.asked + options.pong_seconds)
        return Wait(min(deadlines))
