"""The last minutes of a hub, second by second, for the charts of a page that is opened.

A :class:`Sample` is made from the hub's counters now and one sample ago: counts become rates.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import msgspec

from headrace.hub.counters import Counters
from headrace.log.files import write_whole

SAMPLES: Final = 600
"""Samples that are kept: ten minutes of seconds, some 200 KB."""

_IN: Final = "received"
_OUT: Final = "delivered"
_MATCHED: Final = "matched"
_LAGS: Final = ("p50", "p90", "p99")
_JOBS: Final = 16
"""The most jobs of a pipeline that are drawn."""
_NAME: Final = 64
_FIGURES: Final = ("rows_per_second", "batch_seconds", "behind")
_UPDATES: Final = 5
"""Updates of ``measure`` from which a rate is computed: a single one depends on when it was seen."""
_STALE_SECONDS: Final = 15.0
"""Seconds without an update after which the rate is unknown: all is quiet, or ``measure`` has stopped."""
_SUMS: Final = ("refused", "repaired", "skipped", "conflated")


class HubLevels(msgspec.Struct, frozen=True):
    """The hub's levels at one moment."""

    head: int
    tail: int
    first: int
    bytes: int
    connections: int
    behind: int
    """How many messages the durable consumer or hold that is furthest behind has to catch up, or at most so many."""


class Sample(HubLevels, frozen=True):
    """One second: levels as they are, rates per second since the sample before."""

    time: float
    received: dict[str, float]
    """Messages in, by protocol."""
    delivered: dict[str, float]
    """Messages out, by door."""
    refused: float
    repaired: float
    skipped: float
    conflated: float
    matched: dict[str, float]
    """Content routing: ``messages`` that were matched, and ``clients`` found for them."""
    measured: dict[str, float]
    """Results of the job ``measure``: messages a second as ``rate``, and percentiles of the lag in seconds."""
    jobs: dict[str, dict[str, float]]
    """Spark jobs by name: rows a second, seconds of the last micro-batch, messages behind the head."""


class Measured(msgspec.Struct, frozen=True):
    """The newest results of the job ``measure``."""

    start: str
    """The beginning of the newest minute."""
    messages: int
    """Messages of that minute so far."""
    lag: dict[str, float]
    """The lag of the newest second, in seconds, by percentile."""


class Levels(HubLevels, frozen=True):
    """The levels at one moment, with those of Spark's jobs."""

    measured: Measured | None = None
    jobs: dict[str, dict[str, float]] = {}


class History:
    """The last :data:`SAMPLES` samples."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._before: tuple[float, dict[str, dict[str, int]]] | None = None
        self._updates: deque[tuple[float, Measured]] = deque(maxlen=_UPDATES)
        """The last updates of ``measure`` in its newest minute, and when they came."""
        self._rate: float | None = None

    def save(self, path: Path) -> None:
        """Write the samples to a file, for :meth:`load` after a restart."""
        write_whole(path, msgspec.json.encode(list(self.samples)), sync=False)

    def load(self, path: Path, now: float) -> None:
        """Go on after the samples in a file, as far as they are of the last minutes."""
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=list[Sample])
        except (OSError, msgspec.DecodeError):
            # There is none, or another version wrote it: charts begin anew.
            return
        self.samples.extend(sample for sample in kept if now - SAMPLES <= sample.time < now)

    def take(self, now: float, levels: Levels, counters: Counters) -> Sample:
        """Make and keep the sample of this moment; ``now`` in seconds since 1970."""
        counts = _counts(counters)
        then, before = self._before or (now, counts)
        self._before = now, counts
        passed = max(now - then, 1e-3)

        def rates(name: str) -> dict[str, float]:
            old = before.get(name, {})
            return {
                label: round((count - old.get(label, 0)) / passed, 1)
                for label, count in counts.get(name, {}).items()
            }

        sample = Sample(
            levels.head,
            levels.tail,
            levels.first,
            levels.bytes,
            levels.connections,
            levels.behind,
            round(now, 3),
            rates(_IN),
            rates(_OUT),
            matched=rates(_MATCHED),
            measured=self._measure(now, levels.measured),
            jobs=levels.jobs,
            **{name: round(sum(rates(name).values()), 1) for name in _SUMS},
        )
        self.samples.append(sample)
        return sample

    def _measure(self, now: float, measured: Measured | None) -> dict[str, float]:
        """Compute a rate from the growth of the newest minute: a single second is often seen before it is full."""
        if measured is None:
            return {}
        updates = self._updates
        if not updates or updates[-1][1].start != measured.start:
            # The final count of the minute before is unknown.
            updates.clear()
            updates.append((now, measured))
        elif updates[-1][1].messages != measured.messages:
            updates.append((now, measured))
        if now - updates[-1][0] > _STALE_SECONDS:
            self._rate = None
            return {}
        if len(updates) > 1:
            (then, before), (last, newest) = updates[0], updates[-1]
            self._rate = round((newest.messages - before.messages) / max(last - then, 1e-3), 1)
        return measured.lag if self._rate is None else {"rate": self._rate, **measured.lag}


def jobs_from(pipeline: object) -> dict[str, dict[str, float]]:
    """Take the figures of each Spark job from a pipeline's report, which is not to be trusted: anybody may report."""
    jobs = pipeline.get("jobs") if isinstance(pipeline, dict) else None
    if not isinstance(jobs, dict):
        return {}
    return {
        str(name)[:_NAME]: {
            figure: round(float(value), 3)
            for figure in _FIGURES
            if isinstance(value := job.get(figure), int | float) and not isinstance(value, bool)
        }
        for name, job in islice(jobs.items(), _JOBS)
        if isinstance(job, dict)
    }


def measured_from(shown: Mapping[str, object]) -> Measured | None:
    """Take the results from the services ``measure/minute`` and ``measure/second``, if these are valid."""
    try:
        minute = msgspec.convert(shown.get("minute"), _Window)
        second = msgspec.convert(shown.get("second"), _Window)
    except msgspec.ValidationError:
        # Anybody may publish under these names.
        return None
    return Measured(
        minute.start, minute.messages, {name: second.lag[name] for name in _LAGS if name in second.lag}
    )


class _Window(msgspec.Struct):
    """The parts of a window that are drawn."""

    start: str
    messages: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    lag: dict[str, float]


def _counts(counters: Counters) -> dict[str, dict[str, int]]:
    """Return the counters that are drawn, by the value of their first label; transports of a door are added up."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, labels, value in counters:
        if name in (_IN, _OUT, _MATCHED, *_SUMS):
            label = labels.get("origin") or labels.get("door") or labels.get("what") or ""
            found[name][label] = found[name].get(label, 0) + value
    return found
