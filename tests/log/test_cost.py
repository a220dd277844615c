"""What a message costs in the open tail beside its payload: the figures of docs/operations.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.message import Batch, Run, envelope_rows, map_column

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()

PAYLOAD = b"x" * 100
PUBLISHER = "bb00e1d4161344bf84bbfcf02ac1d9b8"
"""As long as a client's own name for itself."""


def plain(count: int, number: int) -> Batch:
    return Batch(
        Run.of([PAYLOAD] * count), origin="tube", publisher=PUBLISHER, number=number, topic="fleet/42"
    )


def attributed(_count: int, number: int) -> Batch:
    columns = envelope_rows({"attributes": map_column("attributes", [{"city": "Praha", "kind": "bus"}])})
    return Batch(
        Run.one(PAYLOAD),
        origin="tube",
        publisher=PUBLISHER,
        number=number,
        topic="fleet/42",
        columns=columns,
    )


@pytest.mark.parametrize(
    ("make", "count", "what", "most"),
    [
        (plain, 1, "published one at a time", 54),
        (attributed, 1, "with two attributes", 566),
        (plain, 1000, "in batches of 1,000", 5),
    ],
    ids=["single", "attributes", "batches"],
)
def test_it_is_what_the_page_says(tmp_path: Path, make: object, count: int, what: str, most: int) -> None:
    log = Log.open(tmp_path)
    hub = Hub(log, 7, max_uncommitted=1 << 30)
    before, messages = log.size, 0
    for turn in range(1000 // count + 20):
        hub.submit(make(count, messages))  # type: ignore[operator]
        hub.turn(turn)
        messages += count
    cost = (log.size - before) / messages - len(PAYLOAD)
    log.close()
    assert cost <= most
    [shown] = re.findall(rf"(\d+) bytes {what}", " ".join(PAGE.split()))
    assert abs(cost - int(shown)) <= 1
