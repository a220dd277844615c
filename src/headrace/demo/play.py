"""The running play: its clients, its state at each moment, and its end.

Listeners come first, so that nothing is missed. Then the fleet drives. At the end everyone gets time to catch up: the
fleet's clients close once the hub has read everything, the play waits until the Spark job has counted every message,
and then :mod:`~headrace.demo.audit` judges.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

from headrace.client import connect
from headrace.client.link.client import LinkClient
from headrace.demo.audit import Audit, judge, read_log
from headrace.demo.fleet import Fleet
from headrace.demo.listeners import (
    Alert,
    ListenerTask,
    Neighbour,
    SequenceChecker,
    SparkResults,
    Watch,
    watches,
)
from headrace.demo.town import VehicleProtocol, fleet

UPDATE_SECONDS: Final = 0.25
"""Seconds between two updates of the view."""
RATES: Final = 40
"""Rates that are kept, a second apart."""
SPARK_SECONDS: Final = 90.0
"""How long Spark may take to catch up after the fleet has stopped: as long as a start on a busy machine."""
CATCH_UP_SECONDS: Final = 60.0
"""The same for everyone else: the first message that is matched on a machine waits for a compiler."""

UpdateView = Callable[[], None]


class SparkEnd(NamedTuple):
    """Why the Spark job has ended."""

    why: str
    missing: bool
    """Whether this machine has no Spark, which is not a failure."""


class Play:
    """The state of the play, which a view reads and :meth:`run` changes."""

    def __init__(
        self,
        doors: Mapping[str, str],
        *,
        vehicles: int,
        seconds: float,
        spark: Callable[[], SparkEnd | None] | None,
    ) -> None:
        """``spark`` gives the reason why the Spark job has ended, if it has; ``None`` where none was started."""
        self.doors = doors
        self.seconds = seconds
        self.fleet = Fleet(fleet(vehicles), doors)
        self.watches: list[Watch] = watches()
        self.alerts: list[Alert] = []
        self.checker = SequenceChecker()
        self.neighbour = Neighbour()
        self.results = SparkResults([vehicle.name for vehicle in self.fleet.vehicles])
        self.phase = "starting"
        """``starting``, ``driving``, ``finishing`` or ``over``."""
        self.elapsed = 0.0
        self.head = 0
        self.received: dict[str, int] = {}
        """Messages that the hub has received, by protocol."""
        self.rates: dict[str, deque[float]] = {}
        self.pipeline: dict[str, Any] | None = None
        """The status of the Spark pipeline."""
        self._spark = spark
        self._begun = 0.0
        self._counted: tuple[float, dict[str, int]] = (0.0, {})

    @property
    def now(self) -> float:
        """The time by the listeners' clock."""
        return self._begun + self.elapsed

    @property
    def dashboard(self) -> str:
        """The URL of the dashboard."""
        return f"http://{self.doors['http']}/"

    @property
    def spark_wanted(self) -> bool:
        """Whether a Spark job was started."""
        return self._spark is not None

    @property
    def spark_end(self) -> SparkEnd | None:
        """Why the Spark job has ended, if it has."""
        return None if self._spark is None else self._spark()

    @property
    def failed(self) -> dict[str, str]:
        """The Spark jobs that have failed, and why; each is restarted while the others go on."""
        jobs = (self.pipeline or {}).get("jobs", {})
        return {name: facts["error"] for name, facts in jobs.items() if facts.get("error")}

    async def run(self, update: UpdateView) -> Audit:
        """Play, calling ``update`` whenever the view should be drawn."""
        loop = asyncio.get_running_loop()
        async with connect("tube://", self.doors["tube_tcp"], name="demo", reconnect_timeout=5.0) as link:
            self._begun = loop.time()
            listeners = await self._start_listeners()
            try:
                await self._drive(link, update)
                self.phase = "finishing"
                await self._until(link, update, self._spark_done, SPARK_SECONDS)
                log = await read_log(link, self.watches)
                await self._until(
                    link, update, lambda: log.received_by(self.checker, self.watches), CATCH_UP_SECONDS
                )
                failures = [f"{each.name}: {each.failure}" for each in listeners if each.failure is not None]
            finally:
                await asyncio.gather(*(listener.stop() for listener in listeners))
            self.phase = "over"
        return judge(self, log, failures)

    def _alert(self, watch: str, vehicle: str, text: str, seq: int) -> None:
        now = asyncio.get_running_loop().time()
        self.alerts.append(Alert(now - self._begun, watch, vehicle, text, seq))

    async def _start_listeners(self) -> list[ListenerTask]:
        """Start all listeners, and wait until those that would miss something are ready."""
        doors = self.doors
        ready = [asyncio.Event() for _ in self.watches]
        work: list[tuple[str, Any]] = [
            (watch.name, watch.listen(doors["sdk"], self._alert, event))
            for watch, event in zip(self.watches, ready, strict=True)
        ]
        work += [
            ("sequence", self.checker.listen(doors["fyrehose"])),
            ("services", self.results.listen(doors["spp"])),
            ("parcel", self.neighbour.listen(doors["parcel"])),
        ]
        listeners = [ListenerTask(name, each) for name, each in work]
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await asyncio.gather(*(event.wait() for event in ready))
        except TimeoutError:
            # The audit reports listeners that are not ready.
            pass
        except BaseException:
            await asyncio.gather(*(listener.stop() for listener in listeners))
            raise
        return listeners

    async def _drive(self, link: LinkClient, update: UpdateView) -> None:
        async with AsyncExitStack() as stack:
            await self.fleet.connect_radios(stack)
            self._begun = asyncio.get_running_loop().time()
            self.phase = "driving"
            driving = asyncio.ensure_future(self.fleet.drive(self._begun, self.seconds))
            try:
                while not driving.done():
                    await self._read_status(link)
                    update()
                    await asyncio.wait([driving], timeout=UPDATE_SECONDS)
            finally:
                driving.cancel()
            await driving

    async def _until(
        self, link: LinkClient, update: UpdateView, condition: Callable[[], bool], seconds: float
    ) -> None:
        """Wait for a condition, for at most this many seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            await self._read_status(link)
            update()
            if condition() or loop.time() > deadline:
                return
            await asyncio.sleep(UPDATE_SECONDS)

    def _spark_done(self) -> bool:
        if self._spark is None or self._spark() is not None:
            return True
        return int(self.results.fleet.get("messages", 0)) >= sum(self.fleet.sent.values())

    async def _read_status(self, link: LinkClient) -> None:
        """Take the hub's status."""
        status = await link.status()
        now = asyncio.get_running_loop().time()
        self.elapsed = now - self._begun
        self.head = status["head"]
        self.pipeline = status.get("pipeline")
        self.received = status["counters"].get("received", {})
        then, before = self._counted
        if now - then >= 1.0:
            for name in (*VehicleProtocol, "spark"):
                rates = self.rates.setdefault(name, deque(maxlen=RATES))
                passed = now - then if then else 1.0
                rates.append((self.received.get(name, 0) - before.get(name, 0)) / passed)
            self._counted = now, dict(self.received)
