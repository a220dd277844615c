"""The audit log on disk: JSON lines in the data directory, bounded and rotating, one pair of files per kind of record.

A thread writes the gathered records a few times a second, so that no door waits for the disk. A file that reaches
:data:`FILE_BYTES` replaces its predecessor, so each kind takes at most twice that much, and a flood of one kind does
not displace the others.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future
from heapq import merge
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.hub.access.audit import AuditKind
from headrace.hub.counters import Counters

DIRECTORY: Final = "audit"
FILE_BYTES: Final = 4 << 20
WAITING: Final = 4096
"""Most records that wait for the disk; further ones are counted and dropped."""

logger = logging.getLogger("headrace")


class AuditFile:
    """The files of one hub; ``disk`` runs the writes."""

    def __init__(self, data: Path, disk: Executor, counters: Counters) -> None:
        self._directory = data / DIRECTORY
        self._disk = disk
        self._counters = counters
        self._waiting: list[tuple[AuditKind, bytes]] = []
        self._writing: Future[None] | None = None

    def write(self, kind: AuditKind, record: Mapping[str, Any]) -> None:
        """Add a record to those that the next :meth:`tick` writes."""
        if len(self._waiting) >= WAITING:
            self._counters.add("audit_dropped")
            return
        self._waiting.append((kind, msgspec.json.encode(record) + b"\n"))

    def tick(self) -> None:
        """Have a thread write the waiting records."""
        if not self._waiting or (self._writing is not None and not self._writing.done()):
            return
        lines, self._waiting = self._waiting, []
        try:
            self._writing = self._disk.submit(self._write, lines)
        except RuntimeError:
            # The hub is stopping and takes no more work for its threads.
            self._write(lines)

    def close(self) -> None:
        """Write the waiting records."""
        if self._writing is not None:
            self._writing.result()
        lines, self._waiting = self._waiting, []
        if lines:
            self._write(lines)

    def _write(self, lines: list[tuple[AuditKind, bytes]]) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for kind in AuditKind:
                content = b"".join(line for each, line in lines if each is kind)
                if content:
                    _append(path_of(self._directory, kind), content)
        except OSError as error:
            self._counters.add("audit_dropped", len(lines))
            if self._counters.failed("background_failures"):
                logger.error("the audit log cannot be written: %s", error)


def path_of(directory: Path, kind: AuditKind) -> Path:
    """Return the file with the newest records of a kind."""
    return directory / f"{kind}.jsonl"


def read_audit(data: Path) -> Iterator[dict[str, Any]]:
    """Read all records of a data directory, oldest first; torn lines are left out."""
    directory = data / DIRECTORY
    streams = [_records(path_of(directory, kind)) for kind in AuditKind]
    return merge(*streams, key=lambda record: record["time"])


def _append(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, content)
        full = os.fstat(file).st_size >= FILE_BYTES
    finally:
        os.close(file)
    if full:
        path.replace(_older(path))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for each in (_older(path), path):
        try:
            content = each.read_bytes()
        except FileNotFoundError:
            continue
        for line in content.splitlines():
            try:
                record = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(record, dict) and isinstance(record.get("time"), int | float):
                yield record


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")
