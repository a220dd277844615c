"""What goes out is handed to the line several pieces at a time, within bounds."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.wire.golden import read

from headrace.tube.compression import TubeCodec
from headrace.tube.options import TubeCounts, TubeOptions
from headrace.tube.outgoing import PIECES_A_TURN, Outgoing
from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.connection import Side, Transport
from headrace.wire.tube.frames import FragmentSize, Message, serialize
from headrace.wire.tube.reassembly import StreamDecoder, TubeLimits

KIB = 1 << 10
OPTIONS = TubeOptions(write_buffer=1 << 20)


class Handed:
    """An outgoing direction whose peer takes fragments of a size, and what it handed over."""

    def __init__(self, fragment_size: int) -> None:
        codec = TubeCodec(Side.CLIENT, Transport.TCP, TubeLimits(), compress=False)
        self.calls: list[list[Buffer]] = []
        self.full_after: int | None = None
        self.outgoing = Outgoing(codec, self.write, lambda: None, OPTIONS, TubeCounts())
        self.outgoing.pump()
        list(codec.receive(serialize(FragmentSize(fragment_size))))
        self.opening = b"".join(piece for call in self.calls for piece in call)
        self.calls.clear()

    def write(self, pieces: Sequence[Buffer]) -> None:
        self.calls.append(list(pieces))
        if len(self.calls) == self.full_after:
            self.outgoing.fill()

    @property
    def messages(self) -> list[bytes]:
        """What the peer would have got."""
        decoder = StreamDecoder(TubeLimits(max_message=1 << 30))
        sent = [self.opening, *(bytes(piece) for call in self.calls for piece in call)]
        return [bytes(frame.data) for frame in read(decoder, sent) if isinstance(frame, Message)]


async def test_a_message_is_handed_over_with_the_lengths_of_its_fragments() -> None:
    handed = Handed(64 * KIB)
    message = os.urandom(500 * KIB)
    handed.outgoing.send((memoryview(message),))
    assert len(handed.calls) == 1
    assert handed.messages == [message]


async def test_no_more_is_handed_over_at_once_than_the_bound() -> None:
    handed = Handed(256 * KIB)
    message = os.urandom(4 << 20)
    handed.outgoing.send((memoryview(message),))
    sizes = [sum(map(len, call)) for call in handed.calls]
    assert max(sizes) < OPTIONS.write_buffer + 256 * KIB
    assert len(sizes) == 4
    assert handed.messages == [message]


async def test_a_line_that_is_full_gets_the_rest_later() -> None:
    handed = Handed(256 * KIB)
    handed.full_after = 1
    first, second = os.urandom(3 << 20), b"after it"
    handed.outgoing.send((memoryview(first),))
    handed.outgoing.send((memoryview(second),))
    assert len(handed.calls) == 1
    assert handed.outgoing.waiting_bytes == len(first) + len(second)
    handed.outgoing.make_room()
    assert handed.messages == [first, second]
    assert handed.outgoing.idle


async def test_messages_that_waited_are_handed_over_together() -> None:
    handed = Handed(256 * KIB)
    handed.outgoing.fill()
    several = [b"%d" % n for n in range(50)]
    for message in several:
        handed.outgoing.send((memoryview(message),))
    assert handed.calls == []
    handed.outgoing.make_room()
    assert len(handed.calls) == 1
    assert handed.messages == several


async def test_a_turn_has_its_share_of_pieces() -> None:
    handed = Handed(16 * KIB)
    handed.outgoing.send((memoryview(bytes(8 << 20)), memoryview(b"")))
    assert sum(map(len, handed.calls)) == PIECES_A_TURN
    assert not handed.outgoing.idle
    handed.outgoing.stop()
