"""What is true at the end: the log, read once from its first number to its last, and what everybody had of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from headrace.client.link.client import LinkClient
from headrace.demo.listening import Counter, Watch, satisfies
from headrace.demo.town import Way

if TYPE_CHECKING:
    from headrace.demo.play import Play


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    good: bool
    says: str


@dataclass(slots=True)
class ReadLog:
    """What the log has."""

    head: int = 0
    holes: int = 0
    """Places at which a number does not follow the one before."""
    by_origin: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    """How many messages each watch is to be sent."""

    def taken_by(self, counter: Counter, watches: Sequence[Watch]) -> bool:
        """Whether everyone has everything."""
        return counter.last >= self.head and all(
            watch.received >= self.wanted[watch.name] for watch in watches
        )


@dataclass(frozen=True, slots=True)
class Audit:
    """How it went."""

    messages: dict[str, int]
    """By protocol."""
    head: int
    alerts: int
    findings: list[Finding]
    spark: dict[str, Any] | None
    """What ``spark/fleet`` says, where Spark has said something."""

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.good for finding in self.findings)


async def read_log(link: LinkClient, watches: Sequence[Watch]) -> ReadLog:
    """Read everything, and see for each message who wants it."""
    found = ReadLog(wanted={watch.name: 0 for watch in watches})
    ways = set(Way)
    async with link.read(1, entries=True) as stream:
        async for rows in stream:
            seqs = rows.column("seq").to_numpy()
            found.holes += int(np.count_nonzero(np.diff(seqs, prepend=found.head) != 1))
            found.head = int(seqs[-1])
            for origin, payload in zip(
                rows.column("origin").to_pylist(), rows.column("payload").to_pylist(), strict=True
            ):
                found.by_origin[origin] = found.by_origin.get(origin, 0) + 1
                if origin in ways:
                    said = msgspec.json.decode(payload, type=dict[str, Any])
                    for watch in watches:
                        found.wanted[watch.name] += satisfies(said, watch.conditions)
    return found


def judge(play: Play, log: ReadLog, failures: Sequence[str]) -> Audit:
    """Compare what everyone has with what is in the log."""
    sent, counter, neighbour = play.fleet.sent, play.counter, play.neighbour
    findings = [
        Finding(
            "sequence",
            log.holes == 0 and counter.wrong == 0 and counter.last >= log.head,
            f"every number from 1 to {log.head:,} is there once, in the log and over UDP"
            if log.holes == counter.wrong == 0 and counter.last >= log.head
            else f"of {log.head:,} numbers the log lacks {log.holes:,}, and over UDP came 1 to {counter.last:,}"
            f" with {counter.wrong:,} wrong",
        ),
        _kept(sent, log),
        _matched(play.watches, log),
        Finding(
            "parcel",
            neighbour.asked > 0 and neighbour.backwards == 0,
            f"a neighbour asked {neighbour.asked:,} times how far the sequence is, and was told up to"
            f" {neighbour.seq:,}, never less than before"
            if neighbour.asked and not neighbour.backwards
            else f"a neighbour asked {neighbour.asked:,} times, and was told less than before"
            f" {neighbour.backwards:,} times",
        ),
    ]
    end = play.spark_end
    if play.spark_wanted and not (end and end.missing):
        findings.append(_counted(play, sum(sent.values())))
        findings += [
            Finding("spark", False, f"the Spark job {name} failed: {why}")
            for name, why in play.failed.items()
        ]
    findings += [Finding("client", False, failure) for failure in failures]
    messages = {str(way): log.by_origin.get(way, 0) for way in Way}
    return Audit(messages, log.head, len(play.alerts), findings, dict(play.results.fleet) or None)


def _kept(sent: dict[Way, int], log: ReadLog) -> Finding:
    wrong = {
        way: (count, log.by_origin.get(way, 0))
        for way, count in sent.items()
        if count != log.by_origin.get(way, 0)
    }
    if wrong:
        told = ", ".join(f"{way} {was:,} of {count:,}" for way, (count, was) in wrong.items())
        return Finding("messages", False, f"the log has not what was sent: {told}")
    return Finding("messages", True, f"all {sum(sent.values()):,} messages that were sent are in the log")


def _matched(watches: Sequence[Watch], log: ReadLog) -> Finding:
    wrong = [watch for watch in watches if watch.astray or watch.received != log.wanted[watch.name]]
    if wrong:
        told = ", ".join(f"{watch.name} {watch.received:,} of {log.wanted[watch.name]:,}" for watch in wrong)
        return Finding("matching", False, f"subscribers by content have not what they asked for: {told}")
    total = sum(log.wanted.values())
    return Finding(
        "matching", True, f"subscribers by content got the {total:,} messages they asked for, and no others"
    )


def _counted(play: Play, total: int) -> Finding:
    counted = int(play.results.fleet.get("messages", 0))
    if (end := play.spark_end) is not None and counted != total:
        return Finding("spark", False, f"the Spark job has ended: {end.why}")
    if counted != total:
        return Finding("spark", False, f"Spark counted {counted:,} messages of {total:,}")
    return Finding("spark", True, f"Spark counted all {total:,}, and its results came back as services")
