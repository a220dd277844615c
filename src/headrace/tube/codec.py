"""The codec's conversation, for a caller that compresses where it likes and has messages in several parts.

:class:`~headrace.wire.tube.connection.Connection` compresses a message inside ``send``. Somebody who owns an event
loop wants to compress a long message elsewhere, and to ask first whether it is worth it: so here the two
outcomes are two calls.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.tube.message_parts import Parts, join, pieces
from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.connection import Compression, Connection, Evidence
from headrace.wire.tube.frames import DEFLATE


class Conversation(Connection):
    """One end of one tube, without its socket."""

    @property
    def may_compress(self) -> bool:
        """Whether a compressed message may be sent now: never during the trial of the first."""
        return self.compression.allows(Evidence.SENT)

    @property
    def owes(self) -> bool:
        """Whether answers wait to be written."""
        return bool(self._outbox)

    def send_raw(self, parts: Parts) -> Iterator[Buffer]:
        """Queue a message as it is; return all there is to write."""
        self._outbox.append(pieces(self.transport, parts, self._opened("message")))
        return self.data_to_send()

    def send_deflated(self, packed: bytes, parts: Parts) -> Iterator[Buffer]:
        """Queue a message that was compressed, which must be allowed; return all there is to write."""
        self._queue_message(packed, DEFLATE)
        if self.compression.state is Compression.UNTRIED:
            # "The sender then repeats that message uncompressed": so the first is kept until its Ping is answered.
            self._kept = bytes(join(parts))
            self._queue_ping()
            self._trial = self._pings
        self.compression.step(Evidence.SENT)
        return self.data_to_send()
