"""``verify`` as it runs: each micro-batch of one hub's log, or the same range of several.

A micro-batch of a single hub is checked as it comes. With several hubs, one of them gives the range; each log is then
read, as far as it reaches, checked, and compared with the others. A hub that does not answer delays nothing: its log is
checked when it is back.

Each log is compared with the leader's, the one that was compared furthest. If all the furthest are away, comparisons
wait for one of them; the other checks continue.

Findings are rows of Parquet files, one file for each micro-batch that has any. The service ``verify`` summarizes them:
it appears when the first messages have been checked, and changes only when there are findings.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from io import BytesIO
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec
import pyarrow.parquet as pq

from headrace.archive.folder import Folder, storage_errors
from headrace.client.link.client import Extent
from headrace.errors import ClosedError, RefusedError, UnreachableError, UsageError
from headrace.log.proof.chain import block_range, blocks_in, end_of
from headrace.spark.hub_connections import link
from headrace.spark.jobs.job import JobRun
from headrace.spark.jobs.verify import BLOCK, FEW_PARTS, differing_blocks, disagreements, segments
from headrace.spark.jobs.verify.findings import DISAGREEMENT, FINDINGS, HOLE, Finding, SequenceChecker, table
from headrace.spark.jobs.verify.past import ArchivePlace, HubPlace, check_archive
from headrace.spark.source.planning import MOST_ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("headrace")

SERVICE: Final = "verify"

MAX_DISAGREEMENTS: Final = 10_000
"""Messages that one comparison reports one by one; beyond, it names their blocks."""

ANSWER_SECONDS: Final = 5.0
"""Seconds to wait for one of several hubs before it is skipped."""

_POLL_SECONDS: Final = 0.2


class VerifyState(msgspec.Struct):
    """The state from micro-batch to micro-batch."""

    id: str
    """The name under which the hub recognizes a repeated micro-batch."""
    checkers: dict[str, SequenceChecker]
    findings: dict[str, int]
    """Findings counted by kind."""
    published: bool = False
    """Whether the service was published: not before there were messages."""
    begin: int = 0
    """The first message checked; 0 before there is one."""
    compared: dict[str, int] = {}
    """How far each of several hubs has been compared."""
    archived: int = 0
    """The first block that was not compared with the archive yet."""


class Verifier:
    """A run of ``verify``."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._folder: Folder = run.folder
        self._memory = run.memory()
        self._servers = [server.strip() for server in run.access.servers.split(",")]
        patience = run.access.patience
        if len(self._servers) > 1:
            patience = min(patience, ANSWER_SECONDS)
        self._access = {
            server: replace(run.access, servers=server, patience=patience) for server in self._servers
        }
        self.through = 0
        self.away: Sequence[str] = ()
        """Hubs that did not answer last time."""
        self.findings: Mapping[str, int] = {}
        with storage_errors(self._folder.path):
            if not any(name.endswith(".parquet") for name in self._folder.names()):
                # Readers of the folder find a table, if an empty one.
                self._folder.write("findings.parquet", _parquet([]))

    def verify(self, rows: DataFrame, batch: int) -> None:
        """Check one micro-batch."""
        content = self._memory.before(batch)
        known = (
            VerifyState(uuid4().hex, {}, {})
            if content is None
            else msgspec.json.decode(content, type=VerifyState)
        )
        for server in self._servers:
            known.checkers.setdefault(server, SequenceChecker())
        if len(self._servers) == 1:
            (server,) = self._servers
            many = rows.rdd.getNumPartitions() > FEW_PARTS
            found = list(self._check(known.checkers[server], server, rows, joined=many))
        else:
            found = self._look_at_all(known, rows)
        if archive := self._run.param("archive"):
            hub = HubPlace(self._access[self._servers[0]])
            known.archived, differing = check_archive(
                self._run.spark, hub, ArchivePlace(archive), known.archived, full=self._run.truth("full")
            )
            found += differing
        known.findings = dict(Counter(known.findings) + Counter(finding.kind for finding in found))
        # Spark's first micro-batch may be empty: a service about no messages would itself be the first of the log.
        if found or (not known.published and any(checker.last for checker in known.checkers.values())):
            self._publish(known, found, batch)
            known.published = True
        self._memory.after(batch, msgspec.json.encode(known))
        self.through = max(known.checkers[server].last for server in self._servers)
        self.findings = known.findings

    def _check(
        self, checker: SequenceChecker, server: str, rows: DataFrame, *, joined: bool
    ) -> Iterator[Finding]:
        found = checker.check(segments(rows, checker.last, joined=joined).toArrow())
        with link(self._access[server]) as client:
            oldest = client.head().first
        for finding in found:
            # A hole that retention made is not a finding.
            if finding.kind != HOLE or finding.last >= oldest:
                yield msgspec.structs.replace(finding, server=server)

    # Several hubs

    def _look_at_all(self, known: VerifyState, rows: DataFrame) -> list[Finding]:
        from pyspark.sql import functions as F

        (span,) = rows.agg(F.min("seq").alias("first"), F.max("seq").alias("last")).collect()
        if span.last is None:
            return []
        known.begin = known.begin or int(span.first)
        for server in self._servers:
            known.compared.setdefault(server, known.begin - 1)
        present = self._present(int(span.last))
        found: list[Finding] = []
        for server, extent in tuple(present.items()):
            checker = deepcopy(known.checkers[server])
            first, last = max(checker.last + 1, known.begin, extent.first), min(extent.head, int(span.last))
            if first <= last:
                with self._unless_gone(present, server):
                    many = last - first >= FEW_PARTS * MOST_ROWS
                    wrong = list(self._check(checker, server, self._range(server, first, last), joined=many))
                    found += wrong
                    known.checkers[server] = checker
        furthest = max(known.compared[server] for server in self._servers)
        leader = next((server for server in present if known.compared[server] == furthest), None)
        for server in tuple(present):
            if leader in present and server != leader:
                with self._unless_gone(present, server, leader):
                    found += self._compare_with(server, leader, present, known)
        self._note_away([server for server in self._servers if server not in present])
        return found

    def _present(self, last: int) -> dict[str, Extent]:
        """Return the extents of the hubs that answer, once one of them has reached ``last`` or time is up."""
        deadline = monotonic() + self._run.access.patience
        while True:
            present, lost = {}, None
            for server, access in self._access.items():
                try:
                    with link(access, at_once=True) as client:
                        present[server] = client.head()
                except (UnreachableError, ClosedError) as error:
                    lost = error
            if any(extent.head >= last for extent in present.values()) or monotonic() >= deadline:
                break
            sleep(_POLL_SECONDS)
        if not present and lost is not None:
            raise lost
        one, *others = present
        for other in others:
            if present[other].log != present[one].log:
                raise UsageError(
                    f"{other} has log {present[other].log} and {one} has log {present[one].log}: "
                    "they are not of one sequence"
                )
        return present

    @contextmanager
    def _unless_gone(self, present: dict[str, Extent], *servers: str) -> Iterator[None]:
        """Skip a hub if something fails because it does not answer."""
        try:
            yield
        except Exception:
            gone = [server for server in servers if not self._answers(server)]
            if not gone:
                raise
            for server in gone:
                present.pop(server, None)

    def _answers(self, server: str) -> bool:
        try:
            with link(self._access[server], at_once=True) as client:
                client.head()
        except (UnreachableError, ClosedError):
            return False
        return True

    def _note_away(self, away: Sequence[str]) -> None:
        for server in away:
            if server not in self.away:
                logger.warning("verify: %s does not answer: it is checked when it does", server)
        self.away = away

    def _range(self, server: str, first: int, last: int) -> DataFrame:
        """Load a range of one hub's log."""
        return self._run.rows(
            server,
            startingOffsets=first,
            endingOffsets=last,
            patience=self._access[server].patience,
            failOnDataLoss=self._run.param("fail_on_data_loss"),
        )

    def _compare_with(
        self, server: str, leader: str, present: Mapping[str, Extent], known: VerifyState
    ) -> list[Finding]:
        """Compare a log with the leader's, as far as both reach."""
        theirs, ours = present[server], present[leader]
        last = min(known.checkers[server].last, known.checkers[leader].last)
        first = max(known.compared[server] + 1, theirs.first, ours.first)
        found: list[Finding] = []
        for low, high in self._not_equal(server, leader, first, last) if first <= last else ():
            here, there = self._range(leader, low, high), self._range(server, low, high)
            blocks = [row.block for row in differing_blocks(here, there).collect()]
            if blocks:
                found += self._compare(server, leader, here, there, blocks)
        known.compared[server] = max(known.compared[server], last)
        known.compared[leader] = max(known.compared[leader], last)
        return found

    def _not_equal(self, server: str, leader: str, first: int, last: int) -> list[tuple[int, int]]:
        """Return what is left of a range to compare by rows, without blocks whose digests both hubs recorded alike."""
        begin = -(-(first - 1) // end_of(1))
        try:
            with link(self._access[leader]) as client:
                ours = client.chain(begin)
            with link(self._access[server]) as client:
                theirs = client.chain(begin)
        except RefusedError:
            # A client that may not read everything gets no digests.
            return [(first, last)]
        equal = [
            block
            for block in range(begin, blocks_in(last))
            if ours.digest(block) is not None and ours.digest(block) == theirs.digest(block)
        ]
        left: list[tuple[int, int]] = []
        for block in [*equal, None]:
            low, high = (last + 1, last) if block is None else block_range(block)
            if first < low:
                left.append((first, low - 1))
            first = max(first, high + 1)
        return left

    def _compare(
        self, server: str, leader: str, here: DataFrame, there: DataFrame, blocks: list[int]
    ) -> Iterator[Finding]:
        from pyspark.sql import functions as F

        chosen = F.expr(f"seq div {BLOCK}").isin(blocks)
        rows = disagreements(here.where(chosen), there.where(chosen)).limit(MAX_DISAGREEMENTS + 1)
        found = sorted(rows.collect(), key=lambda row: int(row.seq))
        for row in found[:MAX_DISAGREEMENTS]:
            yield Finding(
                DISAGREEMENT, row.seq, row.seq, f"{row.evidence}: {leader} and {server}", "", server
            )
        if len(found) > MAX_DISAGREEMENTS:
            for block in blocks:
                evidence = f"not compared one by one: {leader} and {server} differ in too many"
                yield Finding(DISAGREEMENT, block * BLOCK, block * BLOCK + BLOCK - 1, evidence, "", server)

    def _publish(self, known: VerifyState, found: list[Finding], batch: int) -> None:
        if found:
            with storage_errors(self._folder.path):
                self._folder.write(f"findings-{batch:012d}.parquet", _parquet(found))
            for finding in found[:10]:
                logger.warning(
                    "verify: %s, messages %d to %d of %s: %s",
                    finding.kind, finding.first, finding.last, finding.server, finding.evidence,
                )  # fmt: skip
        account = {"findings": sum(known.findings.values()), "kinds": known.findings}
        if found:
            account["newest"] = msgspec.to_builtins(found[-1])
        self._run.publish_services(f"{SERVICE}-{known.id}", batch, {SERVICE: account})


def _parquet(findings: list[Finding]) -> bytes:
    made = BytesIO()
    pq.write_table(table(findings).cast(FINDINGS), made)
    return made.getvalue()
