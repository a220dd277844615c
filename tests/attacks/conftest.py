"""A hub that all attacks are made on, one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.attacks.good_client import AttackedHub, GoodClient
from tests.attacks.turns import Turns
from tests.system.observing import FREED_AT_ONCE

SOAK = bool(os.environ.get("HEADRACE_SOAK"))
"""Whether attacks last minutes, and budgets are those that a hub has by default."""

MIB = 1 << 20
STATE_BYTES = (512 if SOAK else 24) * MIB
STATE_BYTES_PER_CLIENT = (256 if SOAK else 16) * MIB


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedHub]:
    settings = (
        "fyrehose.subscriber_seconds=600",
        "limits.slow_seconds=1",
        "limits.handshake_seconds=1",
        f"limits.state_bytes={STATE_BYTES}",
        f"limits.state_bytes_per_client={STATE_BYTES_PER_CLIENT}",
        f"log.snapshot_seconds={5 if SOAK else 0.5}",
    )
    directory = tmp_path_factory.mktemp("hub")
    turns = Turns(directory)
    environ = {**FREED_AT_ONCE, **turns.environ}
    with AttackedHub.start(directory, *settings, environ=environ) as running:
        running.turns = turns
        # What is loaded and compiled at the first use is no harm that an attack does.
        with GoodClient(running) as good:
            good.waits(20)
        yield running
        running.terminate()
