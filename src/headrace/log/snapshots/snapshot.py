"""Snapshots: the hub's state at a place in the log, so that a restart need not read the whole log.

A snapshot file holds named sections (services, holds, …), opaque to the log, after a header with the log's uuid, the
operation and the newest message, all under one CRC32C. A large state comes, and is written, in pieces
(:mod:`~headrace.log.snapshots.pieces`): nobody has to wait for all of it. The two newest are kept: if one is damaged or
of another log it is skipped and counted, and the older one is used, as long as the log still has what comes after it.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from headrace.errors import DamagedError
from headrace.log.checksum import crc32c
from headrace.log.files import check_version, write_whole
from headrace.log.snapshots.pieces import Section, binary_header, in_pieces, map_header
from headrace.platforms import sync_path

KEPT: Final = 2

_HEAD: Final = struct.Struct("<8s16sQQI")
_MAGIC: Final = b"HRSNAP\x02\n"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after operation ``op``, when the newest message was ``seq``."""

    uuid: UUID
    op: int
    seq: int
    sections: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class FrozenState:
    """The content of a snapshot to be: the state as it was after ``op``, whatever has changed since."""

    op: int
    seq: int
    sections: Mapping[str, Section]


def pieces_of(uuid: UUID, state: FrozenState | Snapshot) -> list[bytes]:
    """Serialize a snapshot in pieces; the first begins with the checksum of all."""
    pieces: list[bytes] = [map_header(len(state.sections))]
    for name, section in state.sections.items():
        made = list(in_pieces(section))
        pieces += [msgspec.msgpack.encode(name), binary_header(sum(map(len, made))), *made]
    head = _HEAD.pack(_MAGIC, uuid.bytes, state.op, state.seq, 0)[:-4]
    crc = crc32c(head)
    for piece in pieces:
        crc = crc32c(piece, crc)
    return [head + crc.to_bytes(4, "little"), *pieces]


def serialize(snapshot: Snapshot) -> bytes:
    """Serialize a snapshot for a file or a message."""
    return packed(snapshot.uuid, snapshot)


def packed(uuid: UUID, state: FrozenState | Snapshot) -> bytes:
    """Serialize a state for a message, in a thread if it is large.

    The pieces are joined one by one: joining hundreds of megabytes at once would stop every other thread meanwhile.
    """
    whole = io.BytesIO()
    for piece in pieces_of(uuid, state):
        whole.write(piece)
    return whole.getvalue()


def parse(data: bytes, name: str = "snapshot") -> Snapshot:
    """Parse a snapshot; raise if it is damaged, naming its source."""
    check_version(Path(name), data, b"HRSNAP", 2)
    if len(data) < _HEAD.size:
        raise DamagedError(name, 0, 1, None, "the snapshot is cut short")
    magic, uuid, op, seq, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc != crc32c(data[_HEAD.size :], crc32c(data[: _HEAD.size - 4])):
        raise DamagedError(name, 0, 1, None, "the snapshot does not match its checksum")
    try:
        sections = msgspec.msgpack.decode(data[_HEAD.size :], type=dict[str, bytes])
    except msgspec.DecodeError as error:
        reason = f"the snapshot has an unknown format ({error})"
        raise DamagedError(name, _HEAD.size, seq, seq, reason) from None
    return Snapshot(UUID(bytes=uuid), op, seq, sections)


def write(directory: Path, snapshot: Snapshot, *, sync: bool) -> Path:
    """Write a snapshot and remove all but the newest :data:`KEPT`."""
    return write_frozen(directory, snapshot.uuid, snapshot, sync=sync)


def write_frozen(directory: Path, uuid: UUID, state: FrozenState | Snapshot, *, sync: bool) -> Path:
    """Write a state as the newest snapshot and remove all but the newest :data:`KEPT`."""
    path = path_of(directory, state.op)
    write_whole(path, *pieces_of(uuid, state), sync=sync)
    if sync:
        sync_path(directory)
    for old in paths(directory)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def path_of(directory: Path, op: int) -> Path:
    """The file of the snapshot at an operation."""
    return directory / f"{op:016d}.snapshot"


def paths(directory: Path) -> list[Path]:
    """Snapshot files, newest first."""
    return sorted(directory.glob("[0-9]" * 16 + ".snapshot"), reverse=True)


def read(path: Path) -> Snapshot:
    """Read the snapshot in a file, whose name must be its operation."""
    named = int(path.stem)
    snapshot = parse(path.read_bytes(), str(path))
    if snapshot.op != named:
        reason = f"it is the snapshot at {snapshot.op}, not at {named} as its name says"
        raise DamagedError(str(path), 0, snapshot.seq, snapshot.seq, reason)
    return snapshot


def newest(directory: Path, uuid: UUID) -> tuple[Snapshot | None, list[DamagedError]]:
    """The newest good snapshot of this log, and the newer ones that were skipped."""
    skipped: list[DamagedError] = []
    for path in paths(directory):
        try:
            snapshot = read(path)
        except DamagedError as error:
            skipped.append(error)
            continue
        if snapshot.uuid == uuid:
            return snapshot, skipped
        reason = f"it belongs to log {snapshot.uuid}, not to log {uuid}"
        skipped.append(DamagedError(str(path), 0, snapshot.seq, snapshot.seq, reason))
    return None, skipped
