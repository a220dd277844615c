"""A large state is written while the event loop goes on turning."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import process_time, thread_time

from headrace.config import load
from headrace.hub.sequence import Hub
from headrace.hub.services.entries import ServiceKind, create
from headrace.hub.state_parts import StateParts
from headrace.log import Log
from headrace.log.snapshots import snapshot
from headrace.log.snapshots.pieces import in_pieces
from headrace.message import Batch, Run
from headrace.net.server.log.maintenance import LogMaintenance

SERVICES = 400
BYTES = 500_000
"""About 200 MB in all, half of it JSON."""


async def test_no_turn_of_the_loop_takes_long_while_a_large_state_is_written(tmp_path: Path) -> None:
    parts = StateParts()
    hub = Hub(Log.open(tmp_path / "log", fsync="never"), 7, max_uncommitted=1 << 30, state=parts.state())
    word = b"x" * BYTES
    for number in range(SERVICES):
        kind = ServiceKind.JSON if number % 2 else ServiceKind.LAST
        hub.submit(create(f"service/{number}", kind))
        payload = b'{"value": "%s"}' % word if number % 2 else b"%d " % number + word
        hub.submit(Batch(Run.one(payload), origin="test", topic=f"service/{number}"))
        hub.turn(number)
    with ThreadPoolExecutor(1) as disk:
        upkeep = LogMaintenance(hub, load(environ={}), disk)
        writing = asyncio.ensure_future(upkeep.snapshot())
        # What the loop computes, not how long it waits: the machine may be busy with something else.
        turns, longest, begun = 0, 0.0, process_time()
        before = thread_time()
        while not writing.done():
            # What changes meanwhile is not in the snapshot.
            if turns in (1, 20):
                hub.submit(Batch(Run.one(b"changed"), origin="test", topic="service/398"))
                hub.submit(create(f"later/{turns}", ServiceKind.LAST))
                hub.turn(SERVICES)
            await asyncio.sleep(0.001)
            now = thread_time()
            turns, longest, before = turns + 1, max(longest, now - before), now
        await writing
    whole = process_time() - begun
    print(f"{turns} turns, {whole * 1e3:.0f} ms computed, {longest * 1e3:.1f} ms in the longest turn")
    assert longest < whole / 8, f"{longest:.3f} of {whole:.3f} s in one turn: the state was written in one go"
    pieces = [piece for section in hub.state.freeze().sections.values() for piece in in_pieces(section)]
    assert max(map(len, pieces)) < 1 << 20, "a thread that makes one long piece stops the loop all the same"
    assert hub.log.snapshot is not None
    (path,) = snapshot.paths(tmp_path / "log")
    again = StateParts()
    again.state().load(snapshot.read(path))
    assert len(again.services) == SERVICES
    kept = again.services.get("service/398")
    assert kept is not None
    assert kept.snapshot == b"398 " + word
    assert hub.log.snapshot.op == 2 * SERVICES
    hub.log.close()
