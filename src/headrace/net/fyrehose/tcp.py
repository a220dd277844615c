"""The backbone over TCP: PUSH in, DELIVER out, packets back to back; what its connections share.

All connections (:mod:`~headrace.net.fyrehose.tcp_connection`) receive into one buffer that belongs to the door. What is
committed is encoded once for all who are subscribed, and the newest of it is kept ready to send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final

from headrace.config import Settings
from headrace.hub.backbone.rules import Backbone
from headrace.hub.conversion import backbone_run
from headrace.hub.sequence import Hub
from headrace.message import Batch
from headrace.net.fyrehose.tcp_connection import FyrehoseStream
from headrace.net.server.admission import Connections
from headrace.net.server.encoded_cache import Chunk, Recent
from headrace.wire.fyrehose.stream import deliver_run

RECEIVE_BYTES: Final = 256 << 10
"""What one read may bring: large enough that a turn's batch is worth its overhead."""

_LONGEST_PACKET: Final = 65_535 + 9

RECENT_BYTES: Final = 32 << 20
"""How much of the newest sequence is kept ready to send; who is further behind is fed from the log."""

CHUNK_BYTES: Final = 1 << 20
"""About how much is encoded as one piece: a commit may bring far more than should wait for one connection."""


class FyrehoseTcp:
    """The TCP half of the fyrehose door: what its connections share."""

    def __init__(
        self, hub: Hub, settings: Settings, backbone: Backbone, connections: Connections, readers: Executor
    ) -> None:
        self.hub = hub
        self.settings = settings
        self.backbone = backbone
        self.connections = connections
        self.readers = readers
        self.recent = Recent(RECENT_BYTES)
        self.view = memoryview(bytearray(RECEIVE_BYTES + _LONGEST_PACKET))
        self.streams: set[FyrehoseStream] = set()
        self.subscribers: dict[FyrehoseStream, None] = {}
        self.delivered = hub.counters.counter("delivered", door="fyrehose", transport="tcp")
        self.draining = False
        self.closed = asyncio.Event()
        """Set when, after :meth:`close`, the last connection has gone."""

    def connection(self) -> FyrehoseStream:
        """Make the protocol of a new connection."""
        return FyrehoseStream(self)

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Send newly committed batches to every subscriber that has room."""
        if not self.subscribers:
            self.recent.clear()
            return
        begin = size = 0
        for end, batch in enumerate(batches[:-1], 1):
            size += batch.run.size
            if size >= CHUNK_BYTES:
                self.recent.add(self._encode_batches(batches[begin:end]))
                begin, size = end, 0
        self.recent.add(self._encode_batches(batches[begin:]))
        for stream in tuple(self.subscribers):
            stream.feed.pump()

    def read_chunk(self, first: int, last: int) -> Chunk:
        """Read some messages from the log as DELIVER packets; runs in a reader thread."""
        return self._encode_batches(self.hub.log.read(first, last))

    def tick(self, now: float) -> None:
        """Let subscriptions lapse and cut off those who take nothing; called about each second."""
        for stream in tuple(self.streams):
            stream.tick(now)

    def relieved(self) -> None:
        """Read from publishers again."""
        for stream in self.streams:
            stream.resume_reading()

    def stop(self) -> None:
        """Accept and read nothing more; what is committed is still sent."""
        self.draining = True
        for stream in self.streams:
            stream.pause_reading()

    def close(self) -> None:
        """Close every connection after what is buffered for it has gone out."""
        self.draining = True
        for stream in tuple(self.streams):
            stream.close()
        if not self.streams:
            self.closed.set()

    def abort(self) -> None:
        """Close every connection that is still open, whatever is buffered for it."""
        for stream in tuple(self.streams):
            stream.abort()

    def _encode_batches(self, batches: Sequence[Batch]) -> Chunk:
        parts = []
        hollow = 0
        for batch in batches:
            data, missing = deliver_run(backbone_run(batch), batch.first)
            parts.append(data)
            hollow += missing
        if hollow:
            self.hub.counters.add("hollow", hollow, door="fyrehose", transport="tcp")
        return Chunk(batches[0].first, batches[-1].last, parts[0] if len(parts) == 1 else b"".join(parts))
