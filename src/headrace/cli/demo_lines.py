"""The demo for programs: a line of JSON for each thing that happens."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Self

from headrace.demo.audit import Audit
from headrace.demo.play import Play


class Lines:
    """Lines on stdout: ``started``, ``alert``, ``progress`` each second, ``summary``, and ``kept``."""

    def __init__(self, play: Play, data: Path) -> None:
        self._play = play
        self._data = data
        self._alerts = 0
        self._second = 0

    def __enter__(self) -> Self:
        play = self._play
        self._say(
            "started",
            dashboard=play.dashboard,
            doors=dict(play.doors),
            data=str(self._data),
            vehicles=len(play.fleet.vehicles),
            seconds=play.seconds,
            spark=play.spark_wanted,
        )
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left to do."""

    def look(self) -> None:
        """Tell what is new."""
        play = self._play
        for alert in play.alerts[self._alerts :]:
            self._say(
                "alert",
                seconds=round(alert.seconds, 1),
                watch=alert.watch,
                vehicle=alert.vehicle,
                text=alert.text,
                seq=alert.seq,
            )
        self._alerts = len(play.alerts)
        if int(play.elapsed) > self._second:
            self._second = int(play.elapsed)
            self._say(
                "progress",
                phase=play.phase,
                seconds=round(play.elapsed, 1),
                head=play.head,
                received=play.received,
                spark=play.results.fleet or None,
            )

    def tell(self, audit: Audit) -> None:
        """Tell how it went."""
        play = self._play
        end = play.spark_end
        self._say(
            "summary",
            good=audit.good,
            messages=audit.messages,
            head=audit.head,
            alerts=audit.alerts,
            watches={watch.name: watch.received for watch in play.watches},
            findings=[finding._asdict() for finding in audit.findings],
            spark=audit.spark,
            without_spark=None if end is None else end.why,
        )

    def keep(self) -> None:
        """Tell that the hub stays."""
        self._say("kept", dashboard=self._play.dashboard)

    def _say(self, event: str, **facts: Any) -> None:
        sys.stdout.write(json.dumps({"event": event, **facts}, ensure_ascii=False) + "\n")
        sys.stdout.flush()
