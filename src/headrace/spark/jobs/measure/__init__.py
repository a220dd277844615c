"""``measure``: traffic, publishers, topics and lag in windows of time.

Windows are a second, a minute and an hour long. Each is a row of counts and **sketches**, small summaries that can be
merged without their messages: publishers (HyperLogLog), the most frequent topics and attribute values (frequent items),
percentiles of the lag (KLL). So messages are counted into seconds once, seconds make minutes and hours, and a window
that several micro-batches add to is merged from the parts.

Times never decrease along the sequence, so the watermark is the newest time itself: a window is complete as soon as a
message after its end has come, and nothing is ever late.

What the pipeline itself publishes (origin ``spark``) is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.spark.jobs.job import COMMON, JobRun, RunningJob

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ABOUT: Final = "counts, bytes, publishers, top topics and attributes, and lag, by second, minute and hour"
PARAMETERS: Final = {
    **COMMON,
    "interval": COMMON["interval"]._replace(default="1"),
    "fail_on_data_loss": COMMON["fail_on_data_loss"]._replace(default="false"),
}

SPANS: Final = {"second": 1, "minute": 60, "hour": 3600}
"""Names and lengths of the windows, in seconds; each divides the next."""

OWN_ORIGIN: Final = "spark"
"""The origin of what the pipeline publishes."""

TOP: Final = 10
"""Most topics and attribute values shown."""

_TRACKED: Final = 512
"""Items that a sketch tracks; its top counts are exact up to so many, and close beyond."""
_PUBLISHER_BITS: Final = 11
"""2^11 registers: an error of about 2 %."""
_SEPARATOR: Final = "\x1f"
_MICROSECONDS: Final = 1_000_000
_PERCENTILES: Final = {"lag_p50": 0.5, "lag_p90": 0.9, "lag_p99": 0.99}


def start(run: JobRun) -> RunningJob:
    """Measure the sequence as it grows."""
    from headrace.spark.jobs.measure.run import Measurer

    measurer = Measurer(run)
    rows = run.stream()
    return RunningJob(run.query(rows, measurer.measure), measurer.facts)


def seconds(rows: DataFrame, now: Column | None = None) -> DataFrame:
    """Count messages into windows of a second; ``now`` is when they are read, for the lag."""
    from pyspark.sql import functions as F

    read_at = F.unix_micros(F.current_timestamp() if now is None else now)
    at = F.unix_micros("time")
    pairs = F.transform(
        F.map_entries("attributes"), lambda pair: F.concat(pair.key, F.lit(_SEPARATOR), pair.value)
    )
    # One row for the message itself, then one for each of its attributes.
    items = rows.where(F.col("origin") != OWN_ORIGIN).select(
        F.expr(f"unix_micros(time) div {_MICROSECONDS}").alias("start"),
        at.alias("newest"),
        F.octet_length("payload").alias("size"),
        "publisher",
        "topic",
        F.greatest(read_at - at, F.lit(0)).alias("waited"),
        F.explode(F.concat(F.array(F.lit(None).cast("string")), pairs)).alias("item"),
    )
    message = "filter (where item is null)"
    return items.groupBy("start").agg(
        F.max("newest").alias("newest"),
        F.expr(f"count(*) {message}").alias("messages"),
        F.expr(f"sum(size) {message}").alias("bytes"),
        F.expr(f"hll_sketch_agg(publisher, {_PUBLISHER_BITS}) {message}").alias("publishers"),
        F.expr(
            f"approx_top_k_accumulate(topic, {_TRACKED}) filter (where item is null and topic <> '')"
        ).alias("topics"),
        F.expr(f"approx_top_k_accumulate(item, {_TRACKED}) filter (where item is not null)").alias(
            "attributes"
        ),
        F.expr(f"kll_sketch_agg_bigint(waited) {message}").alias("lag"),
        F.expr(f"max(waited) {message}").alias("lag_max"),
    )


def windows(counted: DataFrame) -> DataFrame:
    """Make windows of all lengths from windows of a second: ``span`` is the length in seconds."""
    from pyspark.sql import functions as F

    spans = F.explode(F.array(*(F.lit(span).cast("long") for span in SPANS.values())))
    spread = counted.withColumn("span", spans).withColumn("start", F.expr("start - start % span"))
    return together(spread)


def together(parts: DataFrame) -> DataFrame:
    """Merge parts of windows that were counted separately."""
    from pyspark.sql import functions as F

    return parts.groupBy("span", "start").agg(
        F.max("newest").alias("newest"),
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.hll_union_agg("publishers").alias("publishers"),
        F.expr(f"approx_top_k_combine(topics, {_TRACKED})").alias("topics"),
        F.expr(f"approx_top_k_combine(attributes, {_TRACKED})").alias("attributes"),
        F.kll_merge_agg_bigint("lag").alias("lag"),
        F.max("lag_max").alias("lag_max"),
    )


def figures(made: DataFrame, *besides: Column) -> DataFrame:
    """Make windows readable: estimates in place of sketches, lags in seconds; and the columns ``besides``."""
    from pyspark.sql import functions as F

    named = F.transform(
        F.expr(f"approx_top_k_estimate(attributes, {TOP})"),
        lambda top: F.struct(
            F.substring_index(top.item, _SEPARATOR, 1).alias("name"),
            # Only a value may contain the separator, so a name ends at the first.
            F.substring(top.item, F.instr(top.item, _SEPARATOR) + 1, F.length(top.item)).alias("value"),
            top["count"].alias("messages"),
        ),
    )
    quantiles = [
        (F.kll_sketch_get_quantile_bigint("lag", F.lit(rank)) / _MICROSECONDS).alias(name)
        for name, rank in _PERCENTILES.items()
    ]
    return made.select(
        "span",
        F.timestamp_seconds("start").alias("start"),
        F.timestamp_seconds(F.col("start") + F.col("span")).alias("end"),
        "messages",
        "bytes",
        F.hll_sketch_estimate("publishers").alias("publishers"),
        F.transform(
            F.expr(f"approx_top_k_estimate(topics, {TOP})"),
            lambda top: F.struct(top.item.alias("topic"), top["count"].alias("messages")),
        ).alias("topics"),
        named.alias("attributes"),
        *quantiles,
        (F.col("lag_max") / _MICROSECONDS).alias("lag_max"),
        *besides,
    )


def measure(rows: DataFrame, now: Column | None = None) -> DataFrame:
    """Compute the figures of all windows of messages."""
    return figures(windows(seconds(rows, now)))
