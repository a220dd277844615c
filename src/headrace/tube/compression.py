"""Compression of messages: whether, where, and how the codec is told.

The rule itself is the codec's (:func:`~headrace.wire.tube.frames.deflate`): a message of some length that shrinks
enough. A message too long to be compressed between two turns of the event loop is first judged by a sample, by that
same rule; only if the sample shrinks does the message go to a thread (zlib releases the interpreter).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from headrace.tube.message_parts import Parts, join, pieces
from headrace.tube.options import Policy
from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.connection import Compression, Evidence, TubeConnection
from headrace.wire.tube.frames import COMPRESS_FROM, DEFLATE, deflate

INLINE_BYTES = 64 << 10
"""Compressed in the event loop up to here: about half a millisecond."""

_SAMPLE = 4 << 10


class CompressIn(Enum):
    """Where a message is to be compressed."""

    NOWHERE = "nowhere"
    LOOP = "the event loop"
    THREAD = "a thread"


def choose_place(parts: Parts, policy: Policy | None) -> CompressIn:
    """Choose for one message; a policy can only forbid what the rule allows."""
    length = sum(map(len, parts))
    if length < COMPRESS_FROM:
        return CompressIn.NOWHERE
    longest = max(parts, key=len)
    if policy is not None and not policy(longest):
        return CompressIn.NOWHERE
    if length <= INLINE_BYTES:
        return CompressIn.LOOP
    begin = max(0, (len(longest) - _SAMPLE) // 2)
    return CompressIn.NOWHERE if deflate(longest[begin : begin + _SAMPLE]) is None else CompressIn.THREAD


def pack(parts: Parts) -> bytes | None:
    """Compress a message; return ``None`` if it is better sent as it is."""
    return deflate(join(parts))


class TubeCodec(TubeConnection):
    """One end of one tube without its socket, for a caller that compresses messages itself and has them in parts."""

    @property
    def may_compress(self) -> bool:
        """Whether a compressed message may be sent now: never during the trial of the first."""
        return self.compression.allows(Evidence.SENT)

    @property
    def on_trial(self) -> bool:
        """Whether the peer has yet to say if it supports our compression: the first message may have to be repeated."""
        return self.compression.state is Compression.ON_TRIAL

    def send_raw(self, parts: Parts) -> Iterator[Buffer]:
        """Queue a message as it is; return everything to be written."""
        self.outbox.append(self._framed(pieces(self.transport, parts, self._opened("message"))))
        return self.data_to_send()

    def send_deflated(self, packed: bytes, parts: Parts) -> Iterator[Buffer]:
        """Queue a compressed message, which must be allowed; return everything to be written."""
        self._queue_message(packed, DEFLATE)
        if self.compression.state is Compression.UNTRIED:
            # "The sender then repeats that message uncompressed": so the first is kept until its Ping is answered.
            self._kept = bytes(join(parts))
            self._queue_ping()
            self._trial = self._pings
        self.compression.step(Evidence.SENT)
        return self.data_to_send()
