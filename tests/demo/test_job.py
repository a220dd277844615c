"""The demo's Spark job: distances, speeds and counts as a plain loop has them, however rows are cut into batches."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs.rows import frame, rows

from headrace.demo.fleet import TURN
from headrace.demo.job import Logbook, legs
from headrace.demo.town import fleet, payload

TURNS = 30


def said() -> tuple[list[dict[str, Any]], list[str]]:
    words, origins = [], []
    for turn in range(TURNS):
        for number, vehicle in enumerate(fleet(8)):
            told = (
                vehicle.telemetry(turn * TURN) if (turn + number) % 7 == 0 else vehicle.position(turn * TURN)
            )
            words.append(told)
            origins.append(vehicle.protocol.value)
    return words, origins


def messages() -> pa.Table:
    words, origins = said()
    payloads = [payload(told) for told in words]
    # What is no vehicle's message counts for nothing: Spark's own, and what is no JSON.
    payloads += [payloads[0], b"hello", b""]
    origins += ["spark", "tube", "fyrehose"]
    return rows(1, len(payloads), origin=origins, payload=payloads)


def naming_job() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for told in said()[0]:
        one = found.setdefault(
            told["vehicle"], {"messages": 0, "metres": 0.0, "top_speed": 0.0, "place": None}
        )
        one["messages"] += 1
        if "x" in told:
            if one["place"] is not None:
                one["metres"] += math.dist(one["place"], (told["x"], told["y"]))
            one["place"] = told["x"], told["y"]
            one["top_speed"] = max(one["top_speed"], told["speed"])
    return found


@pytest.mark.parametrize("cut", [10_000, 37], ids=["one batch", "several"])
def test_it_comes_to_the_same_as_a_plain_loop(spark: SparkSession, cut: int) -> None:
    table, book = messages(), Logbook()
    for begin in range(0, table.num_rows, cut):
        for leg in legs(frame(spark, table.slice(begin, cut))).toArrow().to_pylist():
            book.add(leg)
    expected = naming_job()
    assert set(book.vehicles) == set(expected)
    for name, vehicle in book.vehicles.items():
        assert vehicle.messages == expected[name]["messages"]
        assert vehicle.metres == pytest.approx(expected[name]["metres"])
        assert vehicle.top_speed == expected[name]["top_speed"]
    total = TURNS * 8
    told = book.fleet()
    assert (told["messages"], told["vehicles"], told["seq"]) == (total, 8, total)
    assert sum(told["by_protocol"].values()) == total  # type: ignore[attr-defined]
    assert json.dumps(book.vehicle("tram-1"))
