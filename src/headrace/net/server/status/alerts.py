"""The current problems of a hub, and what to do about each: one list for the dashboard, ``doctor`` and Prometheus.

An alert reports a condition that lasts, shows in the hub's own facts, and clears by itself once it is fixed. An event
that happens once increments a counter instead.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from headrace.hub.counters import Counters
from headrace.net.server.status.program_reports import ENDED

FAR_BEHIND: Final = 1_000_000
"""Messages that a durable consumer must be behind to cause an alert."""

SILENT_SECONDS: Final = 60.0
"""Seconds without a report after which a pipeline that has run causes an alert."""

FULL: Final = 0.9
"""The used share of the disk that causes an alert; the hub refuses messages only much later."""

FILLING: Final = 0.8
"""The share of its bound from which a frontend's outbox causes an alert."""

REFUSALS: Final = 300
"""Refusals within :data:`WINDOW_SECONDS` that cause an alert: one client that retries each second makes fewer."""

WINDOW_SECONDS: Final = 60.0

_REMEDIES: Final = {
    "sync": "check the disk, then restart the hub: nothing is acknowledged until then",
    "room": "free some space, or lower log.retain_bytes: messages are taken again by themselves",
    "memory": "see headrace top for who has the most; raise limits.memory, or give the hub a larger machine",
    "seal": "it is tried again: free some space, or check the disk",
    "trim": "it is tried again: check the disk and the directory's permissions",
    "snapshot": "it is tried again: free some space, or check the disk",
    "damage": "run headrace log verify, then stop the hub and run headrace log repair",
    "archive": "check that the archive can be reached and that its job runs: headrace pipeline status",
    "clock": "check the machine's time service",
    "cluster": "run headrace cluster status: a majority of the nodes must reach each other",
    "upstream": "check that the hub above runs and can be reached: messages are taken again by themselves",
}
"""The remedy for each problem that the hub itself reports."""

_LOOK: Final = "look at the hub's log for the reason"


class Alert(NamedTuple):
    """Something that is wrong now."""

    alert: str
    """Its kind, a stable name."""
    about: str
    """The subject: the name of a consumer, a job or a door; may be empty."""
    problem: str
    remedy: str
    grave: bool
    """Whether messages are refused, lost or at risk because of it."""


class RefusalRate:
    """The number of recent refusals, by door and reason."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Counter[str]]] = deque()

    def sample(self, now: float, counters: Counters) -> None:
        """Note the counts, at most once a second."""
        if self._samples and now - self._samples[-1][0] < 1:
            return
        counts: Counter[str] = Counter()
        for name, labels, value in counters:
            if name == "refused":
                counts[f"{labels['door']}, {labels['reason']}"] = value
        self._samples.append((now, counts))
        while now - self._samples[0][0] > WINDOW_SECONDS:
            self._samples.popleft()

    def lately(self) -> Counter[str]:
        """Return the refusals since the oldest sample that is kept."""
        if not self._samples:
            return Counter()
        return self._samples[-1][1] - self._samples[0][1]


def alerts_from(facts: Mapping[str, Any], refusals: Counter[str]) -> Iterator[Alert]:
    """Yield the problems in a hub's status and its recent refusals, the gravest first."""
    for what, problem in facts["problems"].items():
        yield Alert(what, "", problem, _REMEDIES.get(what, _LOOK), grave=True)
    yield from _outbox((facts.get("upstream") or {}).get("outbox"))
    disk = facts["disk"]
    if disk.get("size") and disk["free"] < (1 - FULL) * disk["size"] and "room" not in facts["problems"]:
        yield Alert(
            "disk_filling",
            "",
            f"{1 - disk['free'] / disk['size']:.0%} of the log's disk is used",
            "free some space, or lower log.retain_bytes",
            grave=False,
        )
    if facts.get("loop", {}).get("slow_lately"):
        last = facts["loop"]["last"]
        yield Alert(
            "slow_turn",
            "",
            f"nobody was served for {last['seconds'] * 1e3:.0f} ms in the last minute: {last['cause']}",
            "everybody waits meanwhile: see who requests that much at once, or give the hub a core of its own",
            grave=False,
        )
    yield from _jobs(facts.get("pipeline"))
    for name, consumer in facts["consumers"].items():
        bound = "" if consumer["behind_exact"] else "up to "
        if consumer["behind"] >= FAR_BEHIND:
            yield Alert(
                "consumer_behind",
                name,
                f"consumer {name} is {bound}{consumer['behind']:,} messages behind",
                f"add members, or skip waiting messages: headrace consumers show {name}",
                grave=False,
            )
        if consumer["lost"]:
            yield Alert(
                "consumer_lost",
                name,
                f"consumer {name} has lost {consumer['lost']:,} messages",
                "it lagged behind retention: raise log.retain_bytes, or add members",
                grave=False,
            )
    for name, reader in facts["lost"].items():
        yield Alert(
            "reader_lost",
            name,
            f"{name} passed over {reader['messages']:,} messages that were gone before it read them",
            "it lagged behind retention: raise log.retain_bytes, or give it a hold",
            grave=False,
        )
    if refusals.total() >= REFUSALS:
        (most, count), *_ = refusals.most_common(1)
        yield Alert(
            "refusals",
            most.partition(",")[0],
            f"{refusals.total():,} refusals in the last minute, most at {most}: {count:,}",
            "the hub's log names the peers and what they did",
            grave=False,
        )


def _outbox(outbox: Any) -> Iterator[Alert]:
    """Yield problems of the messages that a frontend keeps for its upstream hub."""
    if not outbox:
        return
    share = outbox["bytes"] / outbox["most_bytes"]
    if outbox["problem"] or share >= FILLING:
        what = f"{outbox['messages']:,} messages wait in the outbox, {share:.0%} of upstream.store_bytes"
        yield Alert(
            "outbox",
            "",
            f"{outbox['problem']}; {what}" if outbox["problem"] else what,
            "bring the upstream hub back, or raise upstream.store_bytes: at its end publishers are refused",
            grave=bool(outbox["problem"]),
        )
    if outbox["aside"]:
        yield Alert(
            "outbox_aside",
            "",
            f"the upstream hub refused {outbox['aside']:,} messages that were acknowledged as kept here",
            "headrace log aside list says why; retry publishes them again, drop deletes them",
            grave=True,
        )


def _jobs(pipeline: Any) -> Iterator[Alert]:
    if not isinstance(pipeline, Mapping) or not isinstance(pipeline.get("jobs"), Mapping):
        return
    remedy = "once that is fixed it continues where it was: headrace pipeline status"
    for name, job in pipeline["jobs"].items():
        if isinstance(job, Mapping) and has_failed(job):
            yield Alert("job_failing", str(name), f"{name} fails: {job.get('error')}", remedy, grave=False)
    if pipeline.get("state") not in ENDED and pipeline["age"] > SILENT_SECONDS:
        yield Alert(
            "pipeline_silent",
            "",
            f"the pipeline has not reported for {pipeline['age']:.0f} s",
            "see whether it still runs, and start it again: headrace pipeline run",
            grave=False,
        )


def has_failed(job: Mapping[str, Any]) -> bool:
    """Return whether a job has failed and has done nothing since.

    >>> [has_failed({"state": state, "error": "no room"}) for state in ("restarting", "starting", "running", "failed")]
    [True, True, True, True]
    >>> has_failed({"state": "running", "error": "no room", "batch": 7}), has_failed({"state": "starting"})
    (False, False)
    """
    match job.get("state"):
        case "restarting" | "failed":
            return True
        case "starting" | "running":
            # A job that fails again and again seems to run between two failures: a micro-batch proves it.
            return bool(job.get("error")) and job.get("batch") is None
        case _:
            return False
