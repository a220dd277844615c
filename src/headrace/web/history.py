"""What a hub did in the last minutes, second by second: the charts' memory, so that a page that is opened has a past.

A :class:`Sample` is made from the hub's counters as they stand and as they stood one sample ago: counts become rates.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Final

import msgspec

from headrace.hub.counters import Counters

SAMPLES: Final = 600
"""How many are kept: ten minutes of seconds, some 200 KB."""

_IN: Final = "received"
_OUT: Final = "delivered"
_MATCHED: Final = "matched"
_LAGS: Final = ("p50", "p90", "p99")
_JOBS: Final = 16
"""Jobs of a pipeline that are drawn: more lines than eight nobody tells apart."""
_NAME: Final = 64
_FIGURES: Final = ("rows_per_second", "batch_seconds", "behind")
_NEWS: Final = 5
"""News of ``measure`` that a rate is made from: one alone depends on when it was looked at."""
_OLD_NEWS: Final = 15.0
"""Seconds without news after which it is not known what is measured: all is quiet, or ``measure`` has stopped."""
_SUMS: Final = ("refused", "repaired", "skipped", "conflated")


class Sample(msgspec.Struct, frozen=True):
    """One second: levels as they are, rates per second since the sample before."""

    time: float
    head: int
    tail: int
    first: int
    bytes: int
    connections: int
    behind: int
    """How many messages the furthest durable consumer or hold lies behind the head."""
    received: dict[str, float]
    """Messages in, by the protocol they came by."""
    delivered: dict[str, float]
    """Messages out, by door."""
    refused: float
    repaired: float
    skipped: float
    conflated: float
    matched: dict[str, float]
    """Content routing: ``messages`` that were looked at, and ``clients`` found for them."""
    measured: dict[str, float]
    """What the job ``measure`` counts: messages a second as ``rate``, and its percentiles of the lag in seconds."""
    jobs: dict[str, dict[str, float]]
    """Spark jobs by name: rows a second, seconds of the last micro-batch, messages behind the head."""


class Measured(msgspec.Struct, frozen=True):
    """What the job ``measure`` shows now."""

    start: str
    """When the newest minute began."""
    messages: int
    """How many messages it has so far."""
    lag: dict[str, float]
    """How late those of the newest second were, in seconds, by percentile."""


class Levels(msgspec.Struct, frozen=True):
    """What is, at one moment."""

    head: int
    tail: int
    first: int
    bytes: int
    connections: int
    behind: int
    measured: Measured | None = None
    jobs: dict[str, dict[str, float]] = {}


class History:
    """The last :data:`SAMPLES` samples."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._before: tuple[float, dict[str, dict[str, int]]] | None = None
        self._news: deque[tuple[float, Measured]] = deque(maxlen=_NEWS)
        """The last news of ``measure`` in its newest minute, and when they came."""
        self._rate: float | None = None

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
            round(now, 3),
            levels.head,
            levels.tail,
            levels.first,
            levels.bytes,
            levels.connections,
            levels.behind,
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
        """A rate, from how the newest minute grows: a second of its own is often seen before it is full."""
        if measured is None:
            return {}
        news = self._news
        if not news or news[-1][1].start != measured.start:
            # How many more the minute before has got, nobody says.
            news.clear()
            news.append((now, measured))
        elif news[-1][1].messages != measured.messages:
            news.append((now, measured))
        if now - news[-1][0] > _OLD_NEWS:
            self._rate = None
            return {}
        if len(news) > 1:
            (then, before), (last, newest) = news[0], news[-1]
            self._rate = round((newest.messages - before.messages) / max(last - then, 1e-3), 1)
        return measured.lag if self._rate is None else {"rate": self._rate, **measured.lag}


def jobs_from(pipeline: object) -> dict[str, dict[str, float]]:
    """The figures of each Spark job in what a pipeline reports, as far as they are figures: anybody may report."""
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
    """What the services ``measure/minute`` and ``measure/second`` say, if they say what they should."""
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
    """What is drawn of a window."""

    start: str
    messages: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    lag: dict[str, float]


def _counts(counters: Counters) -> dict[str, dict[str, int]]:
    """The counters that are drawn: each by its first label's value, transports of one door together."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, labels, value in counters:
        if name in (_IN, _OUT, _MATCHED, *_SUMS):
            label = labels.get("origin") or labels.get("door") or labels.get("what") or ""
            found[name][label] = found[name].get(label, 0) + value
    return found
