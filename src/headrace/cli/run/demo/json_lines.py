"""The demo for programs: a line of JSON for each event."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from headrace.cli.terminal.output import print_json_line
from headrace.demo.audit import Audit
from headrace.demo.play import Play


class DemoLines:
    """Lines on stdout: ``started``, ``alert``, ``progress`` each second, ``summary``, and ``kept``."""

    def __init__(self, play: Play, data: Path) -> None:
        self._play = play
        self._data = data
        self._alerts = 0
        self._second = 0

    def __enter__(self) -> Self:
        play = self._play
        self._print(
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
        """Do nothing: the lines are printed."""

    def update(self) -> None:
        """Print what is new."""
        play = self._play
        for alert in play.alerts[self._alerts :]:
            self._print(
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
            self._print(
                "progress",
                phase=play.phase,
                seconds=round(play.elapsed, 1),
                head=play.head,
                received=play.received,
                spark=play.results.fleet or None,
            )

    def show_summary(self, audit: Audit) -> None:
        """Print the summary."""
        play = self._play
        end = play.spark_end
        self._print(
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

    def show_kept(self) -> None:
        """Print that the hub stays."""
        self._print("kept", dashboard=self._play.dashboard)

    def _print(self, event: str, **facts: Any) -> None:
        print_json_line({"event": event, **facts})
