"""How fast one destination is sent to: a token bucket, in datagrams and in bytes at once.

UDP has no backpressure: what the receiver's socket buffer cannot hold is lost without a word, so a sender
that empties a log into it only makes work for repair. A :class:`TokenBucket` fills at its :class:`Pace` up to one
burst. Whoever sends asks for the :meth:`~TokenBucket.allowance`, sends up to that much, and spends what went out.

A bucket may be overdrawn by the last datagram (the largest is 65,507 bytes, and it must go out some time); the
debt is paid by time before anything else is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

_WORTHWHILE = 0.25
"""The part of a burst that is worth waking for: waking per token would cost more than the sending."""

_ROUNDING = 1e-3
"""A token is whole when this little is missing: sums of floats never land exactly."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The long-run rates, and how much may go at once after a rest.

    A Linux socket buffers about 200 kB unless told otherwise and charges some 800 bytes for a small datagram:
    the default burst is what such a receiver survives while it is busy elsewhere.
    """

    datagrams_per_second: float = 100_000.0
    bytes_per_second: float = 128.0 * 1024 * 1024
    burst_datagrams: int = 256
    burst_bytes: int = 192 * 1024


class TokenBucket:
    """What may be sent to one destination; full at first."""

    __slots__ = ("_datagrams", "_filled", "_pace", "_size")

    def __init__(self, pace: Pace, now: float) -> None:
        self._pace = pace
        self._datagrams = float(pace.burst_datagrams)
        self._size = float(pace.burst_bytes)
        self._filled = now

    def allowance(self, now: float) -> tuple[int, int]:
        """How many datagrams and bytes may go now; ``(0, 0)`` means wait."""
        passed = now - self._filled
        if passed > 0:
            pace = self._pace
            self._filled = now
            self._datagrams = min(pace.burst_datagrams, self._datagrams + passed * pace.datagrams_per_second)
            self._size = min(pace.burst_bytes, self._size + passed * pace.bytes_per_second)
        datagrams, size = int(self._datagrams + _ROUNDING), int(self._size + _ROUNDING)
        return (datagrams, size) if datagrams > 0 and size > 0 else (0, 0)

    def spend(self, datagrams: int, size: int) -> None:
        """Take away what was sent."""
        self._datagrams -= datagrams
        self._size -= size

    def ready(self) -> float:
        """When enough is there to be worth sending: a time in the past if it is there already."""
        pace = self._pace
        datagrams = max(1.0, pace.burst_datagrams * _WORTHWHILE) - self._datagrams
        size = max(1.0, pace.burst_bytes * _WORTHWHILE) - self._size
        if datagrams <= _ROUNDING and size <= _ROUNDING:
            return self._filled
        return self._filled + max(datagrams / pace.datagrams_per_second, size / pace.bytes_per_second)
