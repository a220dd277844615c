"""The chain of a log on disk: the file ``chain``, extended as segments are sealed.

The chain covers sealed messages. It is extended while a tail is sealed, from the rows at hand, and saved when the
segment is in place. If it lags (the log is older than its chain, or a save has failed) it is extended step by
step. A late start takes it from the snapshot it begins with. Digests of removed messages stay in it.

A chain that cannot be read, belongs to another log, or does not fit the log is rebuilt from what the log still has.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from headrace.errors import DamagedError, TrimmedError
from headrace.log.files import translating, write_whole
from headrace.log.proof.chain import (
    DIGEST_BYTES,
    Chain,
    ChainExtension,
    block_of,
    block_range,
    blocks_in,
    chain_start,
    chained,
    end_of,
)
from headrace.log.proof.fingerprint import History
from headrace.message import merge

if TYPE_CHECKING:
    from headrace.log.store import Log

T = TypeVar("T")

FILE: Final = "chain"
SECTION: Final = "chain"
"""The section of a snapshot with the chain up to its newest message, for logs that begin after it."""

_READ_BYTES: Final = 4 << 20

_ASKED: Final = 32
"""Requested chains, and histories, kept in memory."""

_STEP: Final = 1 << 20
"""Messages by which a lagging chain is extended at a time: about a second's work."""


def write_chain(directory: Path, section: bytes | None, *, sync: bool) -> None:
    """Give a log that begins after a snapshot the chain that came with it, or none."""
    path = directory / FILE
    if section is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, section, sync=sync)


class LogChain:
    """The chain of one open log; any thread may use it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._path = log.directory / FILE
        self._kept: Chain | None = None
        self._asked: dict[int, Chain] = {}
        """The chains requested last, the newest last; a later one is computed from the nearest before it."""
        self._histories: dict[int, History] = {}
        """The same of the histories whose fingerprints were requested."""
        self._lock = threading.Lock()

    def load(self, *, sync: bool) -> None:
        """Read the chain when the log is opened for writing.

        A chain ahead of the log must be cut back on the disk too, before its numbers go to other messages. A damaged
        one is replaced at once; otherwise it would be reported until something is sealed.
        """
        found = self._read()
        fitting = self._fitting(found)
        if fitting is not found and self._path.exists():
            self.keep(fitting, sync=sync)
        else:
            self._kept = fitting

    @property
    def kept(self) -> Chain:
        """The chain as far as it is kept on disk."""
        with self._lock:
            kept = self._read() if self._kept is None else self._kept
            fitting = self._fitting(kept)
            if fitting is not self._kept:
                self._kept, self._asked, self._histories = fitting, {}, {}
            return fitting

    def extension(self, first: int, last: int) -> ChainExtension | None:
        """Begin to extend the chain by messages that are being sealed, if they are the next."""
        chain = self.kept
        return ChainExtension(chain, last) if chain.through + 1 == first <= last else None

    def keep(self, chain: Chain, *, sync: bool) -> None:
        """Keep an extended chain. If it cannot be written, the next extension tries again."""
        with self._lock:
            self._kept = chain
        with contextlib.suppress(OSError):
            write_whole(self._path, chain.serialize(), sync=sync)

    def advance(self, *, sync: bool) -> bool:
        """Extend the chain by some sealed messages that it lacks; return whether there were any."""
        chain = self.kept
        sealed = [segment for segment in self._log.segments[:-1] if segment.last >= segment.first]
        following = next((segment for segment in sealed if segment.last > chain.through), None)
        if following is None or following.path.suffix != ".arrow":
            return False
        self.keep(self._extended(chain, min(following.last, chain.through + _STEP)), sync=sync)
        return True

    def at(self, seq: int) -> Chain:
        """The chain up to a committed message, in memory."""
        kept, asked = self.kept, self._asked
        if (found := asked.get(seq)) is not None:
            return found
        # Readers ask again and again, each a little further on.
        nearest = max((at for at in tuple(asked) if at < seq), default=0)
        chain = kept
        if kept.through > seq or nearest > kept.through:
            near = asked.get(nearest)
            useful = near is not None and (
                nearest > kept.through or block_of(nearest + 1) == block_of(seq + 1)
            )
            chain = near if near is not None and useful else self._back_to(kept, seq)
        chain = self._extended(chain, seq)
        with self._lock:
            if asked is self._asked:
                _keep(asked, seq, chain)
        return chain

    def fingerprint(self, seq: int) -> str | None:
        """The fingerprint of all messages up to a committed one; ``None`` if not all of them are known."""
        kept, histories = self.kept, self._histories
        if (found := histories.get(seq)) is not None:
            return found.fingerprint
        if kept.base:
            return None
        blocks = min(kept.blocks, blocks_in(seq))
        nearest = histories.get(max((at for at in tuple(histories) if at < seq), default=-1))
        if nearest is None or nearest.through < end_of(blocks):
            if end_of(blocks) + 1 < self._log.first_here:
                # The open block's beginning is gone; its digest is kept in a form that takes longer to go on from.
                return self.at(seq).fingerprint
            known = 0 if nearest is None else blocks_in(nearest.through)
            value = chain_start(kept.uuid) if nearest is None else nearest.value
            more = kept.digests[known * DIGEST_BYTES : blocks * DIGEST_BYTES]
            nearest = History.of_blocks(chained(value, more), end_of(blocks))
        made = nearest.extended(_rows(self._log, nearest.through + 1, seq))
        with self._lock:
            if histories is self._histories:
                _keep(histories, seq, made)
        return made.fingerprint

    def fingerprint_at_hand(self, seq: int) -> str | None:
        """The fingerprint of all messages up to one, if it need not be computed."""
        found = self._histories.get(seq)
        return None if found is None else found.fingerprint

    def _extended(self, chain: Chain, last: int) -> Chain:
        return chain.extended(_rows(self._log, chain.through + 1, last), last)

    def _read(self) -> Chain | None:
        try:
            with translating(self._path):
                return Chain.parse(self._path.read_bytes(), str(self._path)) if self._path.exists() else None
        except DamagedError:
            return None

    def _fitting(self, chain: Chain | None) -> Chain:
        """Return as much of the chain as fits this log as it is now, or a new chain if none of it does.

        An empty log may become another one, and on a full disk messages are removed before they are sealed.
        """
        log = self._log
        if chain is not None and chain.uuid == log.uuid and chain.through >= log.first - 1:
            if chain.through <= log.tail:
                return chain
            with contextlib.suppress(TrimmedError):
                return self._back_to(chain, log.tail)
        return Chain.beginning_at(log.uuid, log.first)

    def _back_to(self, chain: Chain, seq: int) -> Chain:
        """Cut the chain back to the last block that was full at a message; digest its open part again."""
        block = block_of(seq + 1)
        first, _ = block_range(block)
        if first < self._log.first:
            raise TrimmedError(first, seq, self._log.first)
        return chain.cut_back(block)


def _keep(kept: dict[int, T], seq: int, made: T) -> None:
    """Keep what was computed up to a message, and forget what was kept first."""
    kept[seq] = made
    while len(kept) > _ASKED:
        del kept[next(iter(kept))]


def _rows(log: Log, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Yield committed messages as record batches, however small the batches in the log are."""
    while first <= last:
        batches = log.read(first, last, _READ_BYTES)
        yield merge(batches)
        first = batches[-1].last + 1
