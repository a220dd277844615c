"""The play as it goes: who is on stage, what is known at each moment, and how it ends.

Listeners come first, so that nothing is missed. Then the fleet drives for as long as was asked. At the end everyone
gets the time to take what is still under way: the hub has read all that was sent before the fleet's clients close, the
Spark job is waited for until it has counted every message, and then :mod:`~headrace.demo.audit` judges.
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
from headrace.demo.listening import Alert, Counter, Listener, Neighbour, Results, Watch, watches
from headrace.demo.town import Way, fleet

LOOK: Final = 0.25
"""Seconds from look to look."""
RATES: Final = 40
"""Rates that are remembered, a second apart."""
SPARK_SECONDS: Final = 90.0
"""How long, after the fleet has stopped, Spark may take to count all: as much as a start on a busy machine."""
CATCH_UP_SECONDS: Final = 60.0
"""The same for everybody else: the first message that is matched on a machine waits for a compiler."""

Look = Callable[[], None]


class SparkEnd(NamedTuple):
    """Why the Spark job has ended."""

    why: str
    missing: bool
    """Whether this machine has no Spark, which is no failure."""


class Play:
    """Everything that is known while it runs; a view reads it, and :meth:`run` moves it on."""

    def __init__(
        self,
        doors: Mapping[str, str],
        *,
        vehicles: int,
        seconds: float,
        spark: Callable[[], SparkEnd | None] | None,
    ) -> None:
        """``spark`` tells why the Spark job has ended, if it has; ``None`` where none was started."""
        self.doors = doors
        self.seconds = seconds
        self.fleet = Fleet(fleet(vehicles), doors)
        self.watches: list[Watch] = watches()
        self.alerts: list[Alert] = []
        self.counter = Counter()
        self.neighbour = Neighbour()
        self.results = Results([vehicle.name for vehicle in self.fleet.vehicles])
        self.phase = "starting"
        """``starting``, ``driving``, ``finishing`` or ``over``."""
        self.elapsed = 0.0
        self.head = 0
        self.received: dict[str, int] = {}
        """Messages that the hub has taken, by protocol."""
        self.rates: dict[str, deque[float]] = {}
        self.pipeline: dict[str, Any] | None = None
        """What the Spark pipeline reports of itself."""
        self._spark = spark
        self._begun = 0.0
        self._counted: tuple[float, dict[str, int]] = (0.0, {})

    @property
    def now(self) -> float:
        """The clock that listeners stamp with."""
        return self._begun + self.elapsed

    @property
    def dashboard(self) -> str:
        """Where a browser sees the same."""
        return f"http://{self.doors['http']}/"

    @property
    def spark_wanted(self) -> bool:
        """Whether a Spark job was started."""
        return self._spark is not None

    @property
    def spark_end(self) -> SparkEnd | None:
        """Why it has ended, if it has."""
        return None if self._spark is None else self._spark()

    @property
    def failed(self) -> dict[str, str]:
        """The Spark jobs that have failed, and why; each is started again, and the others go on."""
        jobs = (self.pipeline or {}).get("jobs", {})
        return {name: facts["error"] for name, facts in jobs.items() if facts.get("error")}

    async def run(self, look: Look) -> Audit:
        """Play; ``look`` is called at each look."""
        loop = asyncio.get_running_loop()
        async with connect("tube://", self.doors["tube_tcp"], name="demo", reconnect_timeout=5.0) as link:
            self._begun = loop.time()
            listeners = await self._enter()
            try:
                await self._drive(link, look)
                self.phase = "finishing"
                await self._until(link, look, self._spark_done, SPARK_SECONDS)
                log = await read_log(link, self.watches)
                await self._until(
                    link, look, lambda: log.taken_by(self.counter, self.watches), CATCH_UP_SECONDS
                )
                failures = [f"{each.name}: {each.failure}" for each in listeners if each.failure is not None]
            finally:
                await asyncio.gather(*(listener.stop() for listener in listeners))
            self.phase = "over"
        return judge(self, log, failures)

    def _alert(self, watch: str, vehicle: str, text: str, seq: int) -> None:
        now = asyncio.get_running_loop().time()
        self.alerts.append(Alert(now - self._begun, watch, vehicle, text, seq))

    async def _enter(self) -> list[Listener]:
        """Have everyone listen, and wait until those who would miss something do."""
        doors = self.doors
        ready = [asyncio.Event() for _ in self.watches]
        work: list[tuple[str, Any]] = [
            (watch.name, watch.listen(doors["sdk"], self._alert, event))
            for watch, event in zip(self.watches, ready, strict=True)
        ]
        work += [
            ("sequence", self.counter.listen(doors["fyrehose"])),
            ("services", self.results.listen(doors["spp"])),
            ("parcel", self.neighbour.listen(doors["parcel"])),
        ]
        listeners = [Listener(name, each) for name, each in work]
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await asyncio.gather(*(event.wait() for event in ready))
        except TimeoutError:
            # Whoever does not listen is told of at the end.
            pass
        except BaseException:
            await asyncio.gather(*(listener.stop() for listener in listeners))
            raise
        return listeners

    async def _drive(self, link: LinkClient, look: Look) -> None:
        async with AsyncExitStack() as stack:
            await self.fleet.tune(stack)
            self._begun = asyncio.get_running_loop().time()
            self.phase = "driving"
            driving = asyncio.ensure_future(self.fleet.drive(self._begun, self.seconds))
            try:
                while not driving.done():
                    await self._look(link)
                    look()
                    await asyncio.wait([driving], timeout=LOOK)
            finally:
                driving.cancel()
            await driving

    async def _until(
        self, link: LinkClient, look: Look, condition: Callable[[], bool], seconds: float
    ) -> None:
        """Wait for something, for so long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            await self._look(link)
            look()
            if condition() or loop.time() > deadline:
                return
            await asyncio.sleep(LOOK)

    def _spark_done(self) -> bool:
        if self._spark is None or self._spark() is not None:
            return True
        return int(self.results.fleet.get("messages", 0)) >= sum(self.fleet.sent.values())

    async def _look(self, link: LinkClient) -> None:
        """See how far the hub is."""
        status = await link.status()
        now = asyncio.get_running_loop().time()
        self.elapsed = now - self._begun
        self.head = status["head"]
        self.pipeline = status.get("pipeline")
        self.received = {
            name: count for name, count in status["counters"].get("received", {}).items() if name != "log"
        }
        then, before = self._counted
        if now - then >= 1.0:
            for name in (*Way, "spark"):
                rates = self.rates.setdefault(name, deque(maxlen=RATES))
                passed = now - then if then else 1.0
                rates.append((self.received.get(name, 0) - before.get(name, 0)) / passed)
            self._counted = now, dict(self.received)
