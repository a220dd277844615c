"""What goes from one node's log to another's, and what of it is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cluster import Serve
from headrace.log import Log
from headrace.log.replication_frames import unpack
from headrace.message import Batch, Run
from headrace.net.cluster import log_transfer
from headrace.net.cluster.log_transfer import between, served
from headrace.wire.parcel.body import NewState


def batch(first: int, *payloads: bytes) -> Batch:
    return Batch(Run.of(payloads), first=first, time=first, origin="tube")


TWO = [batch(1, b"1", b"2", b"3"), batch(4, b"4", b"5")]


@pytest.mark.parametrize("first", range(1, 6))
@pytest.mark.parametrize("last", range(1, 6))
def test_only_what_is_wanted_is_taken(first: int, last: int) -> None:
    taken = [message.payload for each in between(TWO, first, last) for message in each]
    assert taken == [b"%d" % seq for seq in range(first, last + 1)]


def test_a_node_serves_what_it_has_also_if_it_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(tmp_path, committed=0)
    log.append([TWO[0]])
    log.append([TWO[1]])
    for size, first, last in ((1 << 20, 1, 5), (1 << 20, 3, 5), (1, 1, 3), (1, 4, 5)):
        monkeypatch.setattr(log_transfer, "SERVE_BYTES", size)
        body, bulk = served(log, Serve(20, 7, first, 5, 2))
        assert body == NewState(7, first, last, 2)
        uuid, batches = unpack(bulk, first, last)
        assert uuid == log.uuid
        assert [message.seq for each in batches for message in each] == list(range(first, last + 1))
    assert served(log, Serve(20, 7, 6, 5, 2)) == (NewState(7, 6, 5, 2), b"")
    log.close()
