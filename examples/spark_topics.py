"""Count messages by topic and ten seconds, and give each topic a live service ``counts/TOPIC``.

python examples/spark_topics.py [HOST:PORT] [--once]     watch with: headrace services watch counts/TOPIC
"""

import sys

from pyspark.sql import functions as F

from headrace.spark import session

servers = next((word for word in sys.argv[1:] if ":" in word), "127.0.0.1:8081")
until = {"availableNow": True} if "--once" in sys.argv else {"processingTime": "1 second"}

spark = session("local[2]")
stream = spark.readStream.format("headrace").option("servers", servers).option("startingOffsets", "earliest")
messages = stream.load().where("origin <> 'spark'").withWatermark("time", "10 seconds")
counts = messages.groupBy("topic", F.window("time", "10 seconds")).count()
changes = counts.selectExpr(
    "'counts/' || topic as service", "to_json(struct(window.start, count)) as payload"
)


def publish(rows, batch):
    # With the batch's number, rows that Spark writes again after a failure are in the log once.
    options = {"servers": servers, "txnVersion": batch}
    rows.write.format("headrace").options(**options).mode("append").save()


sink = changes.writeStream.outputMode("update").option("checkpointLocation", "checkpoint-topics")
sink.trigger(**until).foreachBatch(publish).start().awaitTermination()
