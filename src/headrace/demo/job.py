"""The demo's Spark job: how far and how fast each vehicle has gone, by the order of the sequence.

It is a job like any other of the pipeline: a function of the rows of a micro-batch (:func:`legs`), and totals that are
kept from batch to batch (:class:`Logbook`). Spark follows each vehicle's positions from one to the next; the driver
adds that to the totals, and publishes ``spark/vehicle/NAME`` for each vehicle in the batch and ``spark/fleet`` for all.
A batch that is repeated gives the same totals, because it starts from those before it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from headrace.spark.jobs.job import COMMON, JobRun, RunningJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ABOUT: Final = "how far and how fast each vehicle of the demo has gone"
PARAMETERS: Final = {
    **COMMON,
    "interval": COMMON["interval"]._replace(default="1"),
    "fail_on_data_loss": COMMON["fail_on_data_loss"]._replace(default="true"),
}

REPORT_SCHEMA: Final = "vehicle string, x double, y double, speed double, battery double, temperature double"
"""The payload of a vehicle's message."""


def start(run: JobRun) -> RunningJob:
    """Follow the fleet."""
    journal = _Journal(run)
    return RunningJob(run.query(run.stream(), journal.add), journal.facts)


def legs(rows: DataFrame) -> DataFrame:
    """Sum up some messages by vehicle: how many, how fast, how far from the first position to the last."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    report = F.from_json(F.col("payload").cast("string"), REPORT_SCHEMA)
    reports = (
        rows.where(F.col("origin") != "spark")
        .select("seq", "origin", report.alias("report"))
        .select("seq", "origin", "report.*")
        .where("vehicle is not null")
    )
    # A vehicle's own messages, in the order of the sequence.
    before = Window.partitionBy("vehicle").orderBy("seq")
    placed = F.col("x").isNotNull()
    # The last position before this message, skipping telemetry, which has none.
    was_x, was_y = (
        F.last(F.col(name), ignorenulls=True).over(before.rowsBetween(Window.unboundedPreceding, -1))
        for name in ("x", "y")
    )
    moved = F.hypot(F.col("x") - was_x, F.col("y") - was_y)
    return (
        reports.withColumn("moved", moved)
        .groupBy("vehicle", "origin")
        .agg(
            F.count("*").alias("messages"),
            F.count("x").alias("positions"),
            F.max("seq").alias("seq"),
            F.coalesce(F.sum("moved"), F.lit(0.0)).alias("metres"),
            F.coalesce(F.max("speed"), F.lit(0.0)).alias("top_speed"),
            F.min_by(F.struct("x", "y"), F.when(placed, F.col("seq"))).alias("first"),
            F.max_by(F.struct("x", "y"), F.when(placed, F.col("seq"))).alias("last"),
            F.min("battery").alias("battery"),
        )
    )


class VehicleTotals(msgspec.Struct):
    """The totals of a vehicle."""

    origin: str
    messages: int = 0
    metres: float = 0.0
    top_speed: float = 0.0
    battery: float | None = None
    position: tuple[float, float] | None = None


class Logbook(msgspec.Struct):
    """The totals of all vehicles."""

    seq: int = 0
    vehicles: dict[str, VehicleTotals] = {}

    def add(self, leg: dict[str, Any]) -> None:
        """Add one vehicle's part of a micro-batch."""
        vehicle = self.vehicles.setdefault(leg["vehicle"], VehicleTotals(leg["origin"]))
        vehicle.messages += leg["messages"]
        vehicle.metres += leg["metres"]
        vehicle.top_speed = max(vehicle.top_speed, leg["top_speed"])
        vehicle.battery = leg["battery"] if leg["battery"] is not None else vehicle.battery
        if leg["positions"]:
            first, last = leg["first"], leg["last"]
            if vehicle.position is not None:
                # From its position at the end of the batch before.
                vehicle.metres += math.dist(vehicle.position, (first["x"], first["y"]))
            vehicle.position = (last["x"], last["y"])
        self.seq = max(self.seq, leg["seq"])

    def fleet(self) -> dict[str, object]:
        """Return the service ``spark/fleet``."""
        by_protocol: dict[str, int] = {}
        for vehicle in self.vehicles.values():
            by_protocol[vehicle.origin] = by_protocol.get(vehicle.origin, 0) + vehicle.messages
        furthest = max(self.vehicles, key=lambda name: self.vehicles[name].metres)
        return {
            "messages": sum(by_protocol.values()),
            "by_protocol": by_protocol,
            "vehicles": len(self.vehicles),
            "metres": round(sum(vehicle.metres for vehicle in self.vehicles.values())),
            "top_speed": max(vehicle.top_speed for vehicle in self.vehicles.values()),
            "furthest": furthest,
            "seq": self.seq,
        }

    def vehicle(self, name: str) -> dict[str, object]:
        """Return the service ``spark/vehicle/NAME``."""
        known = self.vehicles[name]
        return {
            "messages": known.messages,
            "metres": round(known.metres),
            "top_speed": known.top_speed,
            "battery": known.battery,
        }


class _Journal:
    """A run of the job."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._memory = run.memory()
        self._id = f"demo-{uuid4().hex}"
        self._seq = 0

    def facts(self) -> dict[str, object]:
        """Return the job's own part of the pipeline's status."""
        return {"through": self._seq}

    def add(self, rows: DataFrame, batch: int) -> None:
        """Add one micro-batch, and publish the totals."""
        content = self._memory.before(batch)
        book = Logbook() if content is None else msgspec.json.decode(content, type=Logbook)
        found = legs(rows).toArrow().to_pylist()
        for leg in found:
            book.add(leg)
        if found:
            # Publishing without news would itself be the next message, and so on for ever.
            changes = {f"spark/vehicle/{leg['vehicle']}": book.vehicle(leg["vehicle"]) for leg in found}
            self._run.publish_services(self._id, batch, {**changes, "spark/fleet": book.fleet()})
        self._seq = book.seq
        self._memory.after(batch, msgspec.json.encode(book))
