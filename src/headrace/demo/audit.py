"""The audit at the end: the whole log is read once, and compared with what every client sent and received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from headrace.client.link.client import LinkClient
from headrace.demo.listeners import SequenceChecker, Watch, satisfies
from headrace.demo.town import VehicleProtocol

if TYPE_CHECKING:
    from headrace.demo.play import Play


class Finding(NamedTuple):
    """The result of one check."""

    what: str
    good: bool
    says: str


@dataclass(slots=True)
class LogSummary:
    """What the log contains."""

    head: int = 0
    holes: int = 0
    """Numbers that do not follow the one before."""
    by_origin: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    """Messages that each watch must receive."""

    def received_by(self, checker: SequenceChecker, watches: Sequence[Watch]) -> bool:
        """Return whether everyone has received everything."""
        return checker.last >= self.head and all(
            watch.received >= self.wanted[watch.name] for watch in watches
        )


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of the play."""

    messages: dict[str, int]
    """By protocol."""
    head: int
    alerts: int
    findings: list[Finding]
    spark: dict[str, Any] | None
    """The service ``spark/fleet``, if Spark has published it."""

    @property
    def good(self) -> bool:
        """Whether every check passed."""
        return all(finding.good for finding in self.findings)


async def read_log(link: LinkClient, watches: Sequence[Watch]) -> LogSummary:
    """Read the whole log, and count for each watch the messages that match it."""
    found = LogSummary(wanted={watch.name: 0 for watch in watches})
    protocols = set(VehicleProtocol)
    async with link.read(1) as stream:
        async for rows in stream:
            seqs = rows.column("seq").to_numpy()
            found.holes += int(np.count_nonzero(np.diff(seqs, prepend=found.head) != 1))
            found.head = int(seqs[-1])
            for origin, payload in zip(
                rows.column("origin").to_pylist(), rows.column("payload").to_pylist(), strict=True
            ):
                found.by_origin[origin] = found.by_origin.get(origin, 0) + 1
                if origin in protocols:
                    report = msgspec.json.decode(payload, type=dict[str, Any])
                    for watch in watches:
                        found.wanted[watch.name] += satisfies(report, watch.conditions)
    return found


def judge(play: Play, log: LogSummary, failures: Sequence[str]) -> Audit:
    """Compare what every client sent and received with the log."""
    sent, checker, neighbour = play.fleet.sent, play.checker, play.neighbour
    findings = [
        Finding(
            "sequence",
            log.holes == 0 and checker.wrong == 0 and checker.last >= log.head,
            f"every number from 1 to {log.head:,} is there once, in the log and over UDP"
            if log.holes == checker.wrong == 0 and checker.last >= log.head
            else f"of {log.head:,} numbers the log lacks {log.holes:,}, and over UDP came 1 to {checker.last:,}"
            f" with {checker.wrong:,} wrong",
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
    messages = {str(protocol): log.by_origin.get(protocol, 0) for protocol in VehicleProtocol}
    return Audit(messages, log.head, len(play.alerts), findings, dict(play.results.fleet) or None)


def _kept(sent: dict[VehicleProtocol, int], log: LogSummary) -> Finding:
    wrong = {
        protocol: (count, log.by_origin.get(protocol, 0))
        for protocol, count in sent.items()
        if count != log.by_origin.get(protocol, 0)
    }
    if wrong:
        shown = ", ".join(f"{protocol} {was:,} of {count:,}" for protocol, (count, was) in wrong.items())
        return Finding("messages", False, f"the log lacks messages that were sent: {shown}")
    return Finding("messages", True, f"all {sum(sent.values()):,} messages that were sent are in the log")


def _matched(watches: Sequence[Watch], log: LogSummary) -> Finding:
    wrong = [watch for watch in watches if watch.astray or watch.received != log.wanted[watch.name]]
    if wrong:
        shown = ", ".join(f"{watch.name} {watch.received:,} of {log.wanted[watch.name]:,}" for watch in wrong)
        return Finding("matching", False, f"subscribers by content did not get what they asked for: {shown}")
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
