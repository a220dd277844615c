"""Reports of a user's own streaming queries to a hub, whose Pipeline page shows them beside the included jobs.

A listener of Spark's notes what each query tells of its progress; a thread reports it every second, whether or not
there was any, so that a query that hangs is seen to fall behind.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace.errors import HeadraceError
from headrace.spark.failures import failure_of
from headrace.spark.hub_connections import link
from headrace.spark.options import HubOptions, parse_sink_options
from headrace.spark.runner import REPORT
from headrace.spark.supervised_job import figures_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("headrace")

MAX_QUERIES: Final = 64
"""Queries of one process that are reported; those that ended first give way."""
_SECONDS: Final = 1.0
_SHOWN: Final = 500
"""Characters of a failure that are shown."""
_UPDATE: Final = "headrace does not support Update mode"


class QueryReports(StreamingQueryListener):
    """Reports the queries of a session until it is stopped."""

    def __init__(self, access: HubOptions, master: str | None = None) -> None:
        self._access = replace(access, patience=2.0)
        self._since = datetime.now(UTC).isoformat(timespec="seconds")
        self._master = master
        self._names: dict[str, str] = {}
        self._queries: dict[str, dict[str, object]] = {}
        self._newest: int | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, name="headrace-report", daemon=True)
        self._thread.start()

    def note_running(self, queries: Iterable[StreamingQuery]) -> None:
        """Note queries that began before this listened: what it has heard of since is newer."""
        for query in queries:
            if str(query.id) not in self._queries:
                self.onQueryStarted(query)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Note a query that begins."""
        with self._lock:
            self._names[str(event.id)] = event.name or str(event.id)[:8]
            self._note(str(event.id), {"state": "running"})

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Note a query's progress."""
        told = json.loads(event.progress.json)
        with self._lock:
            self._note(told["id"], {"state": "running", **figures_of(told, self._newest)})

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Note a query's end, and why."""
        name = self._names.get(str(event.id), str(event.id)[:8])
        facts: dict[str, object] = {"state": "stopped"}
        if event.exception:
            error = str(failure_of(name, None, event.exception)).removeprefix(f"{name}: ")
            facts = {"state": "failed", "error": error[:_SHOWN]}
            if _UPDATE in event.exception:
                logger.warning(
                    'write the rows of outputMode("update") from foreachBatch: batch.write.format("headrace")'
                    '.option("txnVersion", batch_id).mode("append").save()'
                )
        with self._lock:
            self._note(str(event.id), facts)

    def stop(self) -> None:
        """Report a last time, and no more."""
        self._ended.set()
        self._thread.join(5.0)

    def facts(self) -> dict[str, object]:
        """Return what is reported."""
        with self._lock:
            jobs = {self._names.get(query, query[:8]): dict(facts) for query, facts in self._queries.items()}
        state = "stopped" if self._ended.is_set() else "running"
        return {
            "state": state, "pid": os.getpid(), "since": self._since, "master": self._master, "jobs": jobs,
        }  # fmt: skip

    def _note(self, query: str, facts: Mapping[str, object]) -> None:
        kept = self._queries.get(query, {})
        self._queries[query] = {**kept, **facts}
        if len(self._queries) > MAX_QUERIES:
            ended = (each for each, known in self._queries.items() if known["state"] != "running")
            oldest = next(ended, next(iter(self._queries)))
            del self._queries[oldest]
            self._names.pop(oldest, None)

    def _report(self) -> None:
        over = False
        while not over:
            over = self._ended.wait(_SECONDS)
            with contextlib.suppress(HeadraceError), link(self._access, at_once=True) as client:
                self._newest = client.head().head
                self._catch_up()
                client.report(REPORT, self.facts())

    def _catch_up(self) -> None:
        """Count anew how far each query is behind: it may have told of nothing for a while."""
        with self._lock:
            for facts in self._queries.values():
                if isinstance(seq := facts.get("seq"), int) and self._newest is not None:
                    facts["behind"] = max(self._newest - seq, 0)


def watch(spark: SparkSession, **options: str) -> QueryReports:
    """Report the streaming queries of a session to a hub; ``options`` are those of the sink, such as ``servers``.

    >>> from headrace.spark import session
    >>> from headrace.testing import Hub
    >>> spark = session("local[2]")
    >>> with Hub() as hub, hub.connect_sync("tube") as link:
    ...     servers = hub.doors["tube_tcp"]
    ...     reports = watch(spark, servers=servers)
    ...     stream = spark.readStream.format("headrace").option("servers", servers).load()
    ...     query = stream.writeStream.format("noop").queryName("mine").start()
    ...     while "mine" not in link.status().get("pipeline", {}).get("jobs", {}):
    ...         _ = query.awaitTermination(0.2)
    ...     query.stop()
    ...     spark.streams.removeListener(reports)
    ...     reports.stop()
    """
    from headrace.spark.runtime.session import is_connect

    master = None if is_connect(spark) else spark.sparkContext.master
    reports = QueryReports(parse_sink_options(options).access, master)
    spark.streams.addListener(reports)
    reports.note_running(spark.streams.active)
    return reports
