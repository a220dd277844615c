"""Pacing one UDP destination: a token bucket, in datagrams and in bytes at once.

UDP has no backpressure: what the receiver's socket buffer cannot hold is silently lost and has to be repaired. A
:class:`TokenBucket` fills at its :class:`Pace` up to one burst. A sender asks for the :meth:`~TokenBucket.allowance`,
sends up to that much, and spends it. The last datagram may overdraw the bucket, which must then refill first.
"""

from __future__ import annotations

from dataclasses import dataclass

_WORTHWHILE = 0.25
"""The part of a burst to wait for: waking for each token would cost more than sending."""

_ROUNDING = 1e-3
"""Rounding tolerance of a token."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The sustained rates, and the burst allowed after a pause.

    A Linux socket buffers about 200 kB by default and charges some 800 bytes for a small datagram: the default burst is
    what such a receiver survives while it is busy.
    """

    datagrams_per_second: float = 100_000.0
    bytes_per_second: float = 128.0 * 1024 * 1024
    burst_datagrams: int = 256
    burst_bytes: int = 192 * 1024


class TokenBucket:
    """The allowance of one destination; full at first."""

    __slots__ = ("_datagrams", "_filled", "_pace", "_size")

    def __init__(self, pace: Pace, now: float) -> None:
        self._pace = pace
        self._datagrams = float(pace.burst_datagrams)
        self._size = float(pace.burst_bytes)
        self._filled = now

    def allowance(self, now: float) -> tuple[int, int]:
        """Return how many datagrams and bytes may go now; ``(0, 0)`` means wait."""
        passed = now - self._filled
        if passed > 0:
            pace = self._pace
            self._filled = now
            self._datagrams = min(pace.burst_datagrams, self._datagrams + passed * pace.datagrams_per_second)
            self._size = min(pace.burst_bytes, self._size + passed * pace.bytes_per_second)
        datagrams, size = int(self._datagrams + _ROUNDING), int(self._size + _ROUNDING)
        return (datagrams, size) if datagrams > 0 and size > 0 else (0, 0)

    def spend(self, datagrams: int, size: int) -> None:
        """Deduct datagrams and bytes that were sent."""
        self._datagrams -= datagrams
        self._size -= size

    def ready(self) -> float:
        """Return when the allowance is worth waking for; a time in the past if it already is."""
        pace = self._pace
        datagrams = max(1.0, pace.burst_datagrams * _WORTHWHILE) - self._datagrams
        size = max(1.0, pace.burst_bytes * _WORTHWHILE) - self._size
        if datagrams <= _ROUNDING and size <= _ROUNDING:
            return self._filled
        return self._filled + max(datagrams / pace.datagrams_per_second, size / pace.bytes_per_second)
