"""Whether a figure that was sampled for some time grows: the line through its samples, and what that means in the end.

A figure that wavers around one value has a slope near 0. What grows by more than is allowed over the whole time leaks.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Slope:
    """The line through some samples; ``grown`` is what it rises by from the first to the last."""

    samples: int
    median: float
    grown: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether it grows by no more than is allowed; too few samples say nothing, and that is not enough."""
        return self.samples >= LEAST_SAMPLES and self.grown <= self.allowed


def slope(samples: Sequence[tuple[float, float]], *, share: float, least: float) -> Slope:
    """Fit samples of (time, value). Allowed is a share of the median, or ``least`` if that is more.

    The line is the median of the lines through all pairs of samples (Theil and Sen), so that some wild ones do not turn
    it.
    """
    if len(samples) < 2:
        return Slope(len(samples), samples[0][1] if samples else 0.0, 0.0, least)
    thinned = samples[:: max(1, len(samples) // 300)]
    slopes = [
        (later - earlier) / (end - begin)
        for place, (begin, earlier) in enumerate(thinned)
        for end, later in thinned[place + 1 :]
        if end > begin
    ]
    median = statistics.median(value for _, value in samples)
    grown = statistics.median(slopes) * (samples[-1][0] - samples[0][0])
    return Slope(len(samples), median, grown, max(share * median, least))
