"""The files of used tokens: they make a token valid only once, even across restarts.

Each token is written before it is accepted, so a killed process forgets none, and synced in the background right after.
A power cut may still lose tokens. So if the machine restarted before the hub had closed its files, or a token could not
be written, the hub accepts only tokens signed after its own start (:attr:`UsedTokenFiles.signed_after`).

There are two files, each a header and records of equal length. Once the newer one has been written to for a token's
whole lifetime, the older one contains only expired tokens and is started over. That bounds both.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from concurrent.futures import Executor
from pathlib import Path
from threading import Lock
from time import time
from typing import Final

from headrace.hub.access.authentication import WINDOW_SECONDS
from headrace.hub.access.used_tokens import DIGEST_BYTES, UsedToken
from headrace.hub.counters import Counters
from headrace.wire.attribute.messages import CLIENT_ID_BYTES

NAMES: Final = ("used-tokens.0", "used-tokens.1")

RECORD: Final = struct.Struct(f">d{CLIENT_ID_BYTES}s{DIGEST_BYTES}s")
HEADER: Final = struct.Struct(">8s36s")
MAGIC: Final = b"HRTOKEN1"
CLOSED: Final = b"closed".ljust(36)
"""Stands where the machine's boot id would: the files were closed, so every token is on disk."""

GOOD_SECONDS: Final = 2 * WINDOW_SECONDS
"""The longest time from a token's use to its expiry, since the signer's clock may be ahead."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

logger = logging.getLogger("headrace")


class UsedTokenFiles:
    """Both files, created with the first token or by :meth:`open`. ``known`` are the tokens of earlier runs."""

    def __init__(self, directory: Path, disk: Executor, counters: Counters) -> None:
        self._directory = directory
        self._disk = disk
        self._counters = counters
        self.known: list[UsedToken] = []
        complete = True
        for name in NAMES:
            tokens, whole = _read(directory / name)
            self.known += tokens
            complete = complete and whole
        began = time()
        self.signed_after = 0.0 if complete else began
        """Time before which a token must not be signed, since it may have been used already."""
        if not complete:
            logger.warning("tokens signed before this start are refused: not all used ones may be known")
        self._files: list[int] = []
        self._newer = 0
        self._since = began
        self._failed = self._closed = False
        self._in_use = Lock()
        """Held while a thread syncs a file, so that no other thread closes it."""
        self._syncing = self._unsynced = False

    def open(self) -> None:
        """Open the files now, so that the first token need not wait for that."""
        for name in NAMES[len(self._files) :]:
            self._files.append(_open(self._directory / name))

    def remember(self, token: UsedToken) -> None:
        """Write a token."""
        if self._failed:
            return
        now = time()
        try:
            self.open()
            if now - self._since > GOOD_SECONDS:
                self._newer, self._since = 1 - self._newer, now
                os.ftruncate(self._files[self._newer], HEADER.size)
                os.lseek(self._files[self._newer], 0, os.SEEK_END)
            if os.write(self._files[self._newer], RECORD.pack(*token)) != RECORD.size:
                raise OSError("there is no room")
        except OSError as error:
            self._fail(error)
        else:
            self._sync()

    def close(self) -> None:
        """Sync both files, and note that every token is in them."""
        with self._in_use:
            self._closed = True
        for file in self._files:
            try:
                if not self._failed:
                    os.fsync(file)
                    os.pwrite(file, HEADER.pack(MAGIC, CLOSED), 0)
                    os.fsync(file)
            except OSError as error:
                logger.warning("closing the files of used tokens: %s", error)
            finally:
                os.close(file)

    def _fail(self, error: OSError) -> None:
        """Continue without the files, so that a full disk locks nobody out; empty them to let the next start know."""
        self._failed = True
        self._counters.add("background_failures")
        logger.error("used tokens cannot be written; the next start refuses older ones: %s", error)
        for file in self._files:
            try:
                os.ftruncate(file, 0)
            except OSError as worse:
                logger.error("%s: %s", self._directory, worse)

    def _sync(self) -> None:
        if self._syncing:
            self._unsynced = True
            return
        self._syncing, self._unsynced = True, False
        syncing = asyncio.get_running_loop().run_in_executor(
            self._disk, self._sync_file, self._files[self._newer]
        )
        syncing.add_done_callback(self._synced)

    def _sync_file(self, file: int) -> None:
        with self._in_use:
            if not self._closed:
                os.fsync(file)

    def _synced(self, done: asyncio.Future[None]) -> None:
        self._syncing = False
        error = None if done.cancelled() else done.exception()
        if isinstance(error, OSError):
            self._fail(error)
        elif self._unsynced and not self._closed:
            self._sync()


def _read(path: Path) -> tuple[list[UsedToken], bool]:
    """Return the tokens of a file that have not expired, and whether it has every token that was written to it."""
    now = time()
    try:
        content = path.read_bytes()
        changed = path.stat().st_mtime
    except FileNotFoundError:
        return [], True
    if len(content) < HEADER.size:
        return [], False
    magic, written_in = HEADER.unpack_from(content)
    if magic != MAGIC:
        return [], False
    end = len(content) - (len(content) - HEADER.size) % RECORD.size
    tokens = [UsedToken(*fields) for fields in RECORD.iter_unpack(content[HEADER.size : end])]
    # If every token that could be missing has expired, none is missed.
    whole = written_in in (CLOSED, _boot_id()) or now - changed > GOOD_SECONDS
    return [token for token in tokens if token.expires >= now], whole


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        length = max(os.fstat(file).st_size, HEADER.size)
        # A record that a crash cut short is written over.
        os.lseek(file, length - (length - HEADER.size) % RECORD.size, os.SEEK_SET)
        os.pwrite(file, HEADER.pack(MAGIC, _boot_id()), 0)
        os.fsync(file)
    except BaseException:
        os.close(file)
        raise
    return file


def _boot_id() -> bytes:
    try:
        return _BOOT_ID.read_bytes().strip().ljust(36)[:36]
    except OSError:
        # Then any start may be the first after a power cut.
        return b"unknown".ljust(36)
