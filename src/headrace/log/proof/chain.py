"""The chain: a SHA-256 for each block of messages, and one over those from the first block on.

Block ``k`` (from 0) is messages ``k * 65,536 + 1`` to ``(k + 1) * 65,536``. Its digest is the SHA-256 of their
canonical bytes, side by side. The chain begins with the log's uuid, and each block is chained to those before it::

    chain(0) = SHA-256("headrace chain 1" + uuid)
    chain(n) = SHA-256(chain(n - 1) + digest of block n - 1)

So the chain after n blocks stands for every message up to ``n * 65,536``, and does not depend on files, segments or
batches. The last block, while it is not full, is *open*: its digest so far is available too, and can be resumed.

A log that begins in the middle of a block, without the digests before it, has digests from the next block on. That is
enough to compare it with another copy, but not enough for a chain.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol
from uuid import UUID

import pyarrow as pa

from headrace.errors import DamagedError, UsageError
from headrace.log.checksum import crc32c
from headrace.log.proof.canonical import canonical
from headrace.log.proof.resumable_sha256 import STATE_BYTES, Sha256
from headrace.message import Offsets

BLOCK: Final = 65_536
"""Messages of a block."""
DIGEST_BYTES: Final = 32
FINGERPRINT: Final = 32
"""Hexadecimal digits of a fingerprint."""

_GENESIS: Final = b"headrace chain 1"
_HEAD: Final = struct.Struct("<8s16sQQQB")
_MAGIC: Final = b"HRCHAIN\x01"


def block_of(seq: int) -> int:
    """The block of a message.

    >>> block_of(1), block_of(65_536), block_of(65_537)
    (0, 0, 1)
    """
    return (seq - 1) // BLOCK


def blocks_in(seq: int) -> int:
    """How many blocks are full once message ``seq`` is there."""
    return seq // BLOCK


def end_of(blocks: int) -> int:
    """The last message of the first ``blocks`` blocks."""
    return blocks * BLOCK


def block_range(block: int) -> tuple[int, int]:
    """The first and the last message of a block."""
    return block * BLOCK + 1, (block + 1) * BLOCK


@dataclass(frozen=True, slots=True)
class Chain:
    """The digests known of a log's messages up to ``through``; immutable."""

    uuid: UUID
    through: int = 0
    base: int = 0
    """The first block whose digest is known; 0 unless the log begins later, without the digests before."""
    digests: bytes = b""
    """The digests of the full blocks from ``base`` on."""
    open: bytes | None = Sha256().state()
    """The state of the open block's digest; ``None`` if its beginning is not known."""

    @classmethod
    def beginning_at(cls, uuid: UUID, first: int) -> Chain:
        """Return the chain of a log whose first message is ``first``, with nothing known about those before it."""
        begins_block = (first - 1) % BLOCK == 0
        return cls(uuid, first - 1, -(-(first - 1) // BLOCK), b"", Sha256().state() if begins_block else None)

    @property
    def blocks(self) -> int:
        """How many blocks are full."""
        return self.through // BLOCK

    @property
    def value(self) -> bytes | None:
        """The chain over all full blocks; ``None`` if those before ``base`` are not known."""
        return chained(chain_start(self.uuid), self.digests) if self.base == 0 else None

    @property
    def open_digest(self) -> bytes | None:
        """The digest of the open block's messages so far; ``None`` if they are not known."""
        return None if self.open is None else Sha256(self.open).digest()

    @property
    def fingerprint(self) -> str | None:
        """A short text that stands for every message up to ``through``; ``None`` if not all of them are known."""
        value, rest = self.value, self.open_digest
        if value is None or rest is None:
            return None
        return fingerprint_of(value, rest)

    def digest(self, block: int) -> bytes | None:
        """The digest of a full block, if it is known."""
        at = (block - self.base) * DIGEST_BYTES
        return self.digests[at : at + DIGEST_BYTES] or None if at >= 0 else None

    def since(self, block: int) -> Chain:
        """Return the chain without the digests of blocks before ``block``."""
        skipped = max(min(block, self.blocks) - self.base, 0)
        return replace(self, base=self.base + skipped, digests=self.digests[skipped * DIGEST_BYTES :])

    def cut_back(self, blocks: int) -> Chain:
        """Return the chain after its first ``blocks`` full blocks, which must be known."""
        kept = self.digests[: max(blocks - self.base, 0) * DIGEST_BYTES]
        return Chain(self.uuid, blocks * BLOCK, self.base, kept)

    def extended(self, rows: Iterable[pa.RecordBatch], last: int) -> Chain:
        """The chain with more messages, which must follow one another up to ``last``."""
        extension = ChainExtension(self, last)
        for each in rows:
            extension.add(each)
        return extension.finish()

    def serialize(self) -> bytes:
        """The chain as bytes, for a file or a snapshot."""
        head = _HEAD.pack(
            _MAGIC, self.uuid.bytes, self.through, self.base, len(self.digests), self.open is not None
        )
        body = head + self.digests + (self.open or b"")
        return body + crc32c(body).to_bytes(4, "little")

    @classmethod
    def parse(cls, data: bytes, name: str) -> Chain:
        """Parse a chain; raise if it is damaged, naming its source."""
        if len(data) < _HEAD.size + 4 or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise DamagedError(name, 0, 1, None, "the digests do not match their checksum")
        magic, uuid, through, base, size, begun = _HEAD.unpack_from(data)
        end = _HEAD.size + size
        state = data[end:-4]
        known = DIGEST_BYTES * max(through // BLOCK - base, 0)
        if magic != _MAGIC or size != known or len(state) != STATE_BYTES * begun:
            raise DamagedError(name, 0, 1, None, "the digests have an unknown format")
        return cls(UUID(bytes=uuid), through, base, data[_HEAD.size : end], state if begun else None)


class Hash(Protocol):
    """A digest under way: of ``hashlib``, or one that can be resumed."""

    def update(self, data: memoryview, /) -> None:
        """Take more bytes."""

    def digest(self) -> bytes:
        """The digest of all bytes taken so far."""


class ChainExtension:
    """Messages being added to a chain, batch by batch, up to a known end."""

    def __init__(self, chain: Chain, last: int) -> None:
        self._chain = chain
        self._full = last // BLOCK
        """The number of blocks that will be full: only the open one after them needs a digest that can be resumed."""
        self._through = chain.through
        self._digests = [chain.digests]
        self._state: Hash | None = None if chain.open is None else self._hash(chain.open)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add messages; they must follow those before."""
        first, last = rows.column("seq")[0].as_py(), rows.column("seq")[-1].as_py()
        if first != self._through + 1 or last - first + 1 != rows.num_rows:
            raise UsageError(f"messages {first} to {last} cannot follow message {self._through} in a chain")
        for data, edges in canonical(rows):
            self._add(data.data, edges)

    @property
    def digests(self) -> bytes:
        """The digests of the blocks that are full so far."""
        return b"".join(self._digests)

    def finish(self) -> Chain:
        """Return the chain with all messages added."""
        state = self._state
        if state is not None and not isinstance(state, Sha256):
            raise UsageError(f"the chain was to be extended further than message {self._through}")
        return replace(
            self._chain,
            through=self._through,
            digests=self.digests,
            open=None if state is None else state.state(),
        )

    def _add(self, data: memoryview, edges: Offsets) -> None:
        for piece, count, is_full in block_pieces(self._through, data, edges):
            if self._state is not None:
                self._state.update(piece)
            self._through += count
            if is_full:
                if self._state is not None:
                    self._digests.append(self._state.digest())
                self._state = self._hash()

    def _hash(self, state: bytes | None = None) -> Hash:
        """Begin or resume the open block's digest: with ``hashlib``, which is faster, if the block will be full."""
        begins = self._through % BLOCK == 0
        if begins and self._through // BLOCK < self._full:
            return hashlib.sha256()
        return Sha256(state)


def block_pieces(through: int, data: memoryview, edges: Offsets) -> Iterator[tuple[memoryview, int, bool]]:
    """Cut canonical bytes of messages after ``through`` where blocks end.

    Yields the bytes of each piece, its number of messages, and whether its block is full then.
    """
    at, count = 0, len(edges) - 1
    while at < count:
        end = min(at + BLOCK - (through + at) % BLOCK, count)
        yield data[edges[at] : edges[end]], end - at, (through + end) % BLOCK == 0
        at = end


def fingerprint_of(value: bytes, open_digest: bytes) -> str:
    """Make the fingerprint of a chain over full blocks and the digest of the open one."""
    return hashlib.sha256(value + open_digest).hexdigest()[:FINGERPRINT]


def chain_start(uuid: UUID) -> bytes:
    """The chain of a log before its first block."""
    return hashlib.sha256(_GENESIS + uuid.bytes).digest()


def chained(value: bytes, digests: bytes) -> bytes:
    """The chain ``value`` with more blocks, by their digests."""
    for at in range(0, len(digests), DIGEST_BYTES):
        value = hashlib.sha256(value + digests[at : at + DIGEST_BYTES]).digest()
    return value
