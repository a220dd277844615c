"""``verify`` as it runs: each micro-batch of the first hub's log, and of the others as far as they are.

The first of ``servers`` leads: its micro-batches are judged as they come. Each other hub is read up to the same
message, or as far as it has come, judged likewise, and compared. Findings are rows of Parquet files, one file for each
micro-batch that has any, and a short account of them is the service ``verify``, which changes only when they do.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec
import pyarrow.parquet as pq

from headrace.errors import UsageError
from headrace.spark.jobs.folder import Folder, blaming
from headrace.spark.jobs.job import Run
from headrace.spark.jobs.judging import DISAGREEMENT, FINDINGS, HOLE, Finding, Judge, table
from headrace.spark.jobs.publishing import publish_services
from headrace.spark.jobs.verify import BLOCK, differing_blocks, disagreements, segments
from headrace.spark.links import link
from headrace.spark.options import Access

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("headrace")

SERVICE: Final = "verify"

MAX_DISAGREEMENTS: Final = 10_000
"""Messages of one comparison that are looked at one by one; beyond, their blocks are named."""


class Known(msgspec.Struct):
    """What is kept from micro-batch to micro-batch."""

    id: str
    """Whose micro-batches these are, for the hub to know one that comes again."""
    judges: dict[str, Judge]
    findings: dict[str, int]
    """How many there are of each kind."""
    told: bool = False


class Verifier:
    """A run of ``verify``."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._folder: Folder = run.folder
        self._kept = run.kept()
        self._servers = [server.strip() for server in run.access.servers.split(",")]
        self._access = {server: replace(run.access, servers=server) for server in self._servers}
        self.through = 0
        self.findings: Mapping[str, int] = {}
        with blaming(self._folder.path):
            if not any(name.endswith(".parquet") for name in self._folder.names()):
                # So that whoever reads the folder finds rows, if only none of them.
                self._folder.write("findings.parquet", _parquet([]))

    @property
    def leader(self) -> str:
        """The hub whose micro-batches lead."""
        return self._servers[0]

    def verify(self, rows: DataFrame, batch: int) -> None:
        """Look at one micro-batch."""
        content = self._kept.before(batch)
        known = Known(uuid4().hex, {}, {}) if content is None else msgspec.json.decode(content, type=Known)
        judge = known.judges.setdefault(self.leader, Judge())
        found = list(self._judge(judge, self.leader, rows))
        for server in self._servers[1:]:
            found += self._follow(server, known.judges.setdefault(server, Judge()), judge)
        known.findings = dict(Counter(known.findings) + Counter(finding.kind for finding in found))
        if found or not known.told:
            self._tell(known, found, batch)
        known.told = True
        self._kept.after(batch, msgspec.json.encode(known))
        self.through, self.findings = judge.last, known.findings

    def _judge(self, judge: Judge, server: str, rows: DataFrame) -> Iterator[Finding]:
        found = judge.judge(segments(rows).toArrow())
        with link(self._access[server]) as client:
            oldest = client.head().first
        for finding in found:
            # Retention removed them before they were looked at: nobody can tell, and nothing is wrong.
            if finding.kind != HOLE or finding.last >= oldest:
                yield _of(finding, server)

    def _follow(self, server: str, judge: Judge, leader: Judge) -> Iterator[Finding]:
        """Judge another hub's log as far as it has come, and compare it with the leader's."""
        with link(self._access[server]) as client, link(self._access[self.leader]) as leading:
            theirs, ours = client.head(), leading.head()
        if theirs.log != ours.log:
            raise UsageError(
                f"{server} has log {theirs.log} and {self.leader} has log {ours.log}: they are not of one sequence"
            )
        first = max(judge.last + 1, theirs.first, ours.first)
        last = min(theirs.head, leader.last)
        if first > last:
            return
        where = {"startingOffsets": first, "endingOffsets": last, "entries": True}
        there = self._run.rows(server, **where)
        yield from self._judge(judge, server, there)
        here = self._run.rows(self.leader, **where)
        blocks = [row.block for row in differing_blocks(here, there).collect()]
        if blocks:
            yield from self._compare(server, here, there, blocks)

    def _compare(
        self, server: str, here: DataFrame, there: DataFrame, blocks: list[int]
    ) -> Iterator[Finding]:
        from pyspark.sql import functions as F

        chosen = F.expr(f"seq div {BLOCK}").isin(blocks)
        rows = disagreements(here.where(chosen), there.where(chosen)).limit(MAX_DISAGREEMENTS + 1)
        found = sorted(rows.collect(), key=lambda row: int(row.seq))
        for row in found[:MAX_DISAGREEMENTS]:
            yield Finding(
                DISAGREEMENT, row.seq, row.seq, f"{row.evidence}: {self.leader} and {server}", "", server
            )
        if len(found) > MAX_DISAGREEMENTS:
            for block in blocks:
                evidence = f"not looked at one by one: {self.leader} and {server} differ in too many"
                yield Finding(DISAGREEMENT, block * BLOCK, block * BLOCK + BLOCK - 1, evidence, "", server)

    def _tell(self, known: Known, found: list[Finding], batch: int) -> None:
        if found:
            with blaming(self._folder.path):
                self._folder.write(f"findings-{batch:012d}.parquet", _parquet(found))
            for finding in found[:10]:
                logger.warning(
                    "verify: %s, messages %d to %d of %s: %s",
                    finding.kind, finding.first, finding.last, finding.server, finding.evidence,
                )  # fmt: skip
        account = {"findings": sum(known.findings.values()), "kinds": known.findings}
        if found:
            account["newest"] = msgspec.to_builtins(found[-1])
        access: Access = self._access[self.leader]
        publish_services(access, f"{SERVICE}-{known.id}", batch, {SERVICE: account})


def _of(finding: Finding, server: str) -> Finding:
    return msgspec.structs.replace(finding, server=server)


def _parquet(findings: list[Finding]) -> bytes:
    made = BytesIO()
    pq.write_table(table(findings).cast(FINDINGS), made)
    return made.getvalue()
