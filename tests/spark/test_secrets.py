"""What Spark writes about its queries has no secret in it: plans, events, errors, settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.hubs import Hub

CLIENT, KEY, OTHER = "00112233445566778899aabb", "a key of the hub's client", "a key that is wrong"


@pytest.mark.spark
def test_no_key_is_in_plans_events_errors_or_checkpoints(
    spark: SparkSession, start: Callable[..., Hub], tmp_path: Path
) -> None:
    hub = start("auth.required=true", f'auth.clients={{{CLIENT} = "{KEY}"}}')
    for name, key in (("key", KEY), ("wrong", OTHER)):
        (tmp_path / name).write_text(key)
        (tmp_path / name).chmod(0o600)
    options = {"servers": hub.servers, "clientId": CLIENT, "keyFile": str(tmp_path / "key")}
    told: list[str] = []
    context, jvm = spark.sparkContext._jsc.sc(), spark.sparkContext._jvm
    assert jvm is not None
    events = tmp_path / "events"
    events.mkdir()
    conf = context.conf().clone().set("spark.eventLog.compress", "false")
    logging = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "searched", jvm.scala.Option.empty(), jvm.java.net.URI(events.as_uri()), conf
    )
    logging.start()
    context.addSparkListener(logging)
    try:
        spark.createDataFrame([(b"one",)], ["payload"]).write.format("headrace").options(**options).mode(
            "append"
        ).save()
        rows = spark.read.format("headrace").options(**options).load()
        assert rows.count() == 1
        told.append(rows._jdf.queryExecution().toString())
        stream = spark.readStream.format("headrace").options(**options, startingOffsets="earliest").load()
        writer = stream.writeStream.format("parquet").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
        query.awaitTermination()
        told += [str(query.lastProgress), query._jsq.toString()]
        with pytest.raises(PySparkException, match="auth") as refused:
            spark.read.format("headrace").options(
                **{**options, "keyFile": str(tmp_path / "wrong")}
            ).load().count()
        told.append(str(refused.value))
    finally:
        context.listenerBus().waitUntilEmpty()
        context.removeSparkListener(logging)
        logging.stop()
    told.append(str(spark.sparkContext.getConf().getAll()))
    written = [
        path.read_bytes()
        for path in (*events.rglob("*"), *(tmp_path / "checkpoint").rglob("*"))
        if path.is_file()
    ]
    everything = b"\n".join([*written, *(text.encode() for text in told)])
    assert b"SparkListenerSQLExecutionStart" in everything, "the events were written"
    for secret in (KEY, OTHER):
        assert secret.encode() not in everything
