"""Promise 3, for those who do not read: they cost the others nothing, the hub little, and are told how far they got."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from tests.conftest import SOAK
from tests.hubprocess import HubProcess
from tests.system.observing import FREED_AT_ONCE, counter, eventually, head, memory, status
from tests.system.rawclient import Address, Publisher, Subscriber

from headrace.message import Run
from headrace.net.fyrehose.tcp import CACHE_BYTES
from headrace.wire.fyrehose.stream import DeliverRun, push_run

MESSAGE_BYTES = 1024
BLOCK = np.random.default_rng(1).integers(0, 256, (1024, MESSAGE_BYTES), np.uint8)
"""A mebibyte of messages. Only whole blocks are published, by one at a time, so a number tells which message it is."""

MIB = 1 << 20

KERNEL_BYTES = 100 * MIB
"""What numba and its kernels take at most, which load beside the first traffic: less than one of three is owed."""


class Reader(Subscriber):
    """A subscriber that compares every byte with what was published, and keeps none."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, on_run=_check, receive_buffer=128 << 10)

    def stop_taking(self) -> None:
        """Take nothing from now on; the subscription is still renewed."""
        assert self.subscribed.wait(10)
        self.taking.clear()


def test_one_that_stops_reading_costs_the_others_nothing(tmp_path: Path) -> None:
    few, many, stalled = (48, 1024, 16) if SOAK else (48, 128, 3)
    # One segment, for sealing has a memory of its own.
    settings = ("limits.slow_seconds=600", "log.segment_bytes=8GiB")
    with HubProcess.start(tmp_path, *settings, environ=FREED_AT_ONCE) as hub, ExitStack() as stack:
        address = hub.address("fyrehose")
        quick = [stack.enter_context(Reader(address)) for _ in range(2)]
        assert all(reader.subscribed.wait(10) for reader in quick)
        publish(hub, few)
        follow(hub, quick)
        before = memory(hub)
        slow = [stack.enter_context(Reader(address)) for _ in range(stalled)]
        for reader in slow:
            reader.stop_taking()
        publish(hub, many)
        follow(hub, quick)
        assert [reader.received for reader in quick] == [(few + many) * len(BLOCK)] * 2
        assert max(reader.last for reader in slow) < head(hub) - 32 * len(BLOCK)
        # Each is owed all of it. What waits for each is one queue (limits.queue_bytes) and the chunk that passed it.
        _check_grown(memory(hub) - before, stalled)
        for reader in slow:
            reader.taking.set()
        follow(hub, slow)
        assert {reader.received for reader in slow} == {many * len(BLOCK)}
        assert all(reader.breaks == [] for reader in quick + slow)
        _check_grown(memory(hub) - before, stalled)
        # Those who had fallen behind follow the live sequence again.
        publish(hub, 1)
        follow(hub, quick + slow)
        hub.terminate()


def test_one_that_takes_nothing_is_cut_off_and_its_range_told(tmp_path: Path) -> None:
    with HubProcess.start(tmp_path, "limits.slow_seconds=0.5") as hub, ExitStack() as stack:
        quick, deaf = (stack.enter_context(Reader(hub.address("fyrehose"))) for _ in range(2))
        assert quick.subscribed.wait(10)
        deaf.stop_taking()
        publish(hub, 32)
        follow(hub, [quick])
        eventually("the hub cuts off who takes nothing", lambda: counter(hub, "refused", "fyrehose/slow"))
        assert status(hub)["subscribers"]["fyrehose_tcp"] == 1
        line = re.search(rf"cut_off: messages (\d+) to (\d+): .*{deaf.name_there}", hub.stderr)
        assert line is not None
        first, last = int(line[1]), int(line[2])
        # A slow machine may not have published all of it by then.
        assert 1 < first < last <= 32 * len(BLOCK)
        assert counter(hub, "cut_off") == last - first + 1
        # The other one is not touched, and the range that was told can be had again.
        publish(hub, 1)
        follow(hub, [quick])
        with Reader(hub.address("fyrehose")) as again:
            again.request(first, last)
            eventually("the range that was cut off", lambda: again.received == last - first + 1)
            assert again.breaks == []
        hub.terminate()


def test_one_that_falls_behind_retention_is_cut_off_and_its_range_told(tmp_path: Path) -> None:
    settings = ("log.segment_bytes=1MiB", "log.segment_seconds=0.05", "log.retain_bytes=4MiB")
    with HubProcess.start(tmp_path, *settings) as hub, ExitStack() as stack:
        quick, slow = (stack.enter_context(Reader(hub.address("fyrehose"))) for _ in range(2))
        assert quick.subscribed.wait(10)
        slow.stop_taking()
        publish(hub, 64)
        follow(hub, [quick])
        newest = head(hub)
        eventually("the log is trimmed", lambda: status(hub)["first"] > newest - 8 * len(BLOCK))
        slow.taking.set()
        slow.join(30)
        assert slow.breaks == []
        assert counter(hub, "refused", "fyrehose/lagging") == 1
        line = re.search(r"undeliverable: messages (\d+) to (\d+)", hub.stderr)
        assert line is not None
        first, last = int(line[1]), int(line[2])
        assert (first, last) == (slow.last + 1, newest)
        assert counter(hub, "undeliverable") == last - first + 1
        publish(hub, 1)
        follow(hub, [quick])
        assert quick.breaks == []
        hub.terminate()


def publish(hub: HubProcess, blocks: int) -> None:
    """Push blocks, and wait until all are committed."""
    goal = head(hub) + blocks * len(BLOCK)
    pushed = push_run(Run.of(message.tobytes() for message in BLOCK))
    with Publisher(hub.address("fyrehose")) as publisher:
        for _ in range(blocks):
            publisher.sock.sendall(pushed)
        publisher.finish()
    eventually("everything published is committed", lambda: head(hub) == goal)


def follow(hub: HubProcess, readers: list[Reader]) -> None:
    """Wait until readers have everything there is."""
    newest = head(hub)
    eventually(f"everybody has message {newest}", lambda: all(reader.last == newest for reader in readers))


def _check_grown(grown: int, stalled: int) -> None:
    # What is kept of the newest messages while anybody lags is there once for all who do. Kernels may load meanwhile.
    assert grown - CACHE_BYTES - KERNEL_BYTES < (8 + 2 * stalled) * MIB, (
        f"{grown / MIB:.1f} MiB for {stalled} that do not read"
    )


def _check(run: DeliverRun) -> None:
    assert (run.run.lengths == MESSAGE_BYTES).all()
    expected = BLOCK[(run.seqs - 1) % len(BLOCK)]
    assert np.array_equal(run.run.content.reshape(-1, MESSAGE_BYTES), expected), (
        f"wrong bytes near {run.seqs[0]}"
    )
