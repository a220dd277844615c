"""What was sent, what is in the log, and whether the one is the other.

A :class:`Source` makes messages that prove themselves: each carries who sent it, a count and a checksum of the rest.
:class:`History` is a stopped hub's log as one buffer, so that a million messages are compared in a few operations.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.log import Log
from headrace.log.damage.findings import Problem
from headrace.log.damage.verify import verify
from headrace.message import Bytes
from headrace.wire.fyrehose.stream import DeliverRun

_STAMP = struct.Struct("!HQI")
_STAMPS = np.dtype([("source", ">u2"), ("count", ">u8"), ("checksum", ">u4")])
_POOL_BYTES = 1 << 16


class Source:
    """One publisher's messages, over all the connections it needs for them."""

    def __init__(self, number: int, random: Random, longest: int = 2_000) -> None:
        self.number = number
        self.count = 0
        self._random = random
        self._longest = longest
        self._pool = random.randbytes(_POOL_BYTES)

    def take(self, count: int) -> list[bytes]:
        """The next messages, each of another length."""
        messages = []
        for _ in range(count):
            self.count += 1
            length = self._random.randrange(self._longest)
            begin = self._random.randrange(_POOL_BYTES - length)
            filler = self._pool[begin : begin + length]
            messages.append(_STAMP.pack(self.number, self.count, zlib.crc32(filler, self.count)) + filler)
        return messages


def stamps(content: Bytes, edges: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The stamps of sources' messages, which lie side by side; fails if one does not match its message."""
    begins, ends = edges[:-1], edges[1:]
    assert (ends - begins >= _STAMP.size).all()
    found = content[begins[:, None] + np.arange(_STAMP.size)].view(_STAMPS).ravel()
    whole = content.data
    for (_, count, checksum), begin, end in zip(found.tolist(), begins.tolist(), ends.tolist(), strict=True):
        assert zlib.crc32(whole[begin + _STAMP.size : end], count) == checksum
    return found


class History:
    """Everything a log holds: message ``first + i`` is ``content[edges[i]:edges[i + 1]]``."""

    def __init__(self, directory: Path) -> None:
        problems = [found for found in verify(directory) if isinstance(found, Problem)]
        assert not problems
        log = Log.open(directory, read_only=True)
        self.uuid = log.uuid
        self.first = log.first
        self.head = log.head
        self.segments = len(log.segments)
        following, lengths, contents = log.first, [np.zeros(1, np.int64)], [np.zeros(0, np.uint8)]
        for batch in log.scan(log.first):
            assert batch.first == following
            following = batch.last + 1
            lengths.append(batch.run.lengths.astype(np.int64))
            contents.append(batch.run.content)
        log.close()
        assert following == self.head + 1
        self.edges = np.concatenate(lengths).cumsum()
        self.content = np.concatenate(contents)

    def __len__(self) -> int:
        return len(self.edges) - 1

    def compare(self, seen: Iterable[DeliverRun]) -> int:
        """Fail unless all that was seen and is still kept is here, the same; return how many messages that were."""
        compared = 0
        for run in seen:
            assert int(run.seqs.max()) <= self.head, "a message that a subscriber saw is not in the log"
            cuts = (np.diff(run.seqs) != 1).nonzero()[0] + 1
            for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(run.seqs)], strict=True):
                compared += self._compare_consecutive(run, begin, end)
        return compared

    def stamps(self) -> npt.NDArray[Any]:
        """Each message's stamp, its checksum found right."""
        return stamps(self.content, self.edges)

    def _compare_consecutive(self, run: DeliverRun, begin: int, end: int) -> int:
        begin += max(0, self.first - int(run.seqs[begin]))
        if begin >= end:
            return 0
        place = int(run.seqs[begin]) - self.first
        kept = self.edges[place : place + end - begin + 1]
        seen = run.run.slice(begin, end)
        where = f"messages {run.seqs[begin]} to {run.seqs[end - 1]} are other ones in the log"
        assert np.array_equal(seen.lengths, np.diff(kept)), where
        assert np.array_equal(seen.content, self.content[kept[0] : kept[-1]]), where
        return end - begin
