"""Keep the balance of every account: state that outlives the program, and a live service for each.

A booking is a message with the attribute ``account`` and the number ``amount``. A balance is the sum of them all, kept
by Spark from micro-batch to micro-batch and over restarts, each booking counted once. An account that goes below zero
is told to everybody, as a message on the topic ``overdrawn``.

    python examples/spark_balances.py [HOST:PORT] [--once]
    headrace pub 'rent' --attr account=ada --attr amount=-900
    headrace services watch balance/ada
"""

from __future__ import annotations

import sys

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.spark import session


def balances(messages: DataFrame) -> DataFrame:
    """The account, its balance, and how many bookings made it."""
    account: Column = F.col("attributes")["account"]
    bookings = messages.where("origin <> 'spark' and numbers['amount'] is not null").where(
        account.isNotNull()
    )
    return bookings.groupBy(account.alias("account")).agg(
        F.sum(F.col("numbers")["amount"]).alias("balance"), F.count("*").alias("bookings")
    )


def as_services(made: DataFrame) -> DataFrame:
    """Each account's balance as its service."""
    return made.selectExpr(
        "'balance/' || account as service", "to_json(struct(balance, bookings)) as payload"
    )


def overdrawn(made: DataFrame) -> DataFrame:
    """A message for each account that is below zero."""
    return made.where("balance < 0").selectExpr(
        "'overdrawn' as topic", "to_json(struct(account, balance)) as payload"
    )


def main(servers: str, *, once: bool) -> None:
    spark = session("local[2]")
    stream = spark.readStream.format("headrace").option("servers", servers)
    messages = stream.option("startingOffsets", "earliest").load()

    def publish(made: DataFrame, batch: int) -> None:
        # Spark runs a micro-batch again if it was killed in the middle. Each of the two writes has a name of its own,
        # by which the hub knows whether it has this batch.
        for name, rows in (("balances", as_services(made)), ("overdrawn", overdrawn(made))):
            writer = rows.write.format("headrace").option("servers", servers)
            writer.option("txnAppId", name).option("txnVersion", batch).mode("append").save()

    trigger = {"availableNow": True} if once else {"processingTime": "1 second"}
    writer = balances(messages).writeStream.outputMode("update").foreachBatch(publish)
    writer.option("checkpointLocation", "checkpoint-balances").trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    main(next((word for word in sys.argv[1:] if ":" in word), "127.0.0.1:8081"), once="--once" in sys.argv)
