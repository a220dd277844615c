"""Connections that pushes arrive on: their parts are joined, and a silent peer is cut off."""

from __future__ import annotations

from typing import Any, TypeVar

from headrace.net.server.accepting.connection import DoorConnection
from headrace.net.server.accepting.tcp_door import ConnectionGroup
from headrace.wire.attribute.messages import AnyPush
from headrace.wire.attribute.push_parts import PushJoiner
from headrace.wire.receive_buffer import Decoder

D = TypeVar("D", bound=ConnectionGroup[Any])
P = TypeVar("P", bound=AnyPush)


class JoiningStream(DoorConnection[D]):
    """A connection of a matcher or a dispatcher."""

    def __init__(self, door: D, decoder: Decoder[Any]) -> None:
        super().__init__(door, decoder)
        self._joiner = PushJoiner()

    def join(self, push: P) -> P | None:
        """Take a push or a part of one; return the whole push if this completes it."""
        return self._joiner.join(push, self.loop.time())

    def judge(self, now: float) -> None:
        """Drop pushes whose Tail is overdue; cut off a peer that was silent for too long."""
        for msg_id in self._joiner.expire(now):
            self.counters.refuse(
                self.door.name, "unfinished", self.name, f"the Tail of {msg_id.hex()} never came"
            )
        self.judge_silence(now, self.limits.routing_idle_seconds)
