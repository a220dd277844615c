"""Track a fleet: where each vehicle is, and which geofences it is in, as live services.

A position is a message with the attribute ``vehicle`` and the numbers ``lat`` and ``lon``. A geofence is a name and a
range of each. For every vehicle, Spark keeps the newest position by the sequence, which is the order in which the hub
has taken them, and publishes ``fleet/VEHICLE`` when it changes.

    python examples/spark_fleet.py [HOST:PORT] [--once]
    headrace pub 'here' --attr vehicle=tram-42 --attr lat=46.95 --attr lon=7.44
    headrace services watch fleet/tram-42
"""

from __future__ import annotations

import sys

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.spark import session

FENCES = {
    # name: (south, north, west, east)
    "bern": (46.90, 47.00, 7.35, 7.55),
    "bern station": (46.945, 46.952, 7.432, 7.445),
    "zurich": (47.32, 47.43, 8.44, 8.62),
}


def inside(lat: Column, lon: Column) -> Column:
    """The names of the geofences that a place is in."""
    return F.array_compact(
        F.array(
            *(
                F.when(lat.between(south, north) & lon.between(west, east), F.lit(name))
                for name, (south, north, west, east) in FENCES.items()
            )
        )
    )


def fleet(messages: DataFrame) -> DataFrame:
    """Each vehicle's newest position and its geofences."""
    lat, lon = F.col("numbers")["lat"], F.col("numbers")["lon"]
    positions = messages.where("origin <> 'spark' and attributes['vehicle'] is not null")
    positions = positions.where(lat.isNotNull() & lon.isNotNull())
    newest = positions.groupBy(F.col("attributes")["vehicle"].alias("vehicle")).agg(
        F.max_by(F.struct(lat.alias("lat"), lon.alias("lon"), "time"), "seq").alias("at"),
        F.count("*").alias("positions"),
    )
    return newest.select(
        "vehicle", "at.*", "positions", inside(F.col("at.lat"), F.col("at.lon")).alias("fences")
    )


def main(servers: str, *, once: bool) -> None:
    spark = session("local[2]")
    stream = spark.readStream.format("headrace").option("servers", servers)
    messages = stream.option("startingOffsets", "earliest").load()
    changes = fleet(messages).selectExpr(
        "'fleet/' || vehicle as service", "to_json(struct(lat, lon, time, positions, fences)) as payload"
    )

    def publish(rows: DataFrame, batch: int) -> None:
        writer = rows.write.format("headrace").option("servers", servers)
        writer.option("txnVersion", batch).mode("append").save()

    trigger = {"availableNow": True} if once else {"processingTime": "1 second"}
    writer = changes.writeStream.outputMode("update").foreachBatch(publish)
    writer.option("checkpointLocation", "checkpoint-fleet").trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    main(next((word for word in sys.argv[1:] if ":" in word), "127.0.0.1:8081"), once="--once" in sys.argv)
