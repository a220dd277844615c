"""A node's memory of its part in the cluster: the file on its disk, and the testimony that nodes send one another.

The file is small. It is written whole and synced when a view changes or a node recovers, never for a batch. It is lost
only with the disk, so a node without it is new, or was emptied. How much is committed is noted beside it some times a
second (:mod:`headrace.log.watermark`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final
from uuid import uuid4

import msgspec

from headrace.cluster.history import MAX_SPANS, History
from headrace.errors import DamagedError, MalformedError
from headrace.log import Log, watermark
from headrace.log.checksum import crc32c
from headrace.log.files import Descriptor, check_version, translating, write_whole
from headrace.log.maintained import Fsync
from headrace.platforms import sync_path

MAX_NODES: Final = 64
"""The most nodes that vote; each of them gets each operation."""

STATE_FILE: Final = "cluster.state"
"""Beside the segments: it is lost with them, and never without them."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_NAME: Final = b"HRCLST"
_VERSION: Final = 2
_MAGIC: Final = _NAME + bytes([_VERSION]) + b"\n"

_FORM: Final = 2
"""The form of testimonies; it changes with what nodes count, so that nodes which count differently never agree."""

_U64 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Node = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
_Nodes = Annotated[tuple[_Node, ...], msgspec.Meta(max_length=MAX_NODES)]
_Incarnations = Annotated[dict[_Node, _U64], msgspec.Meta(max_length=MAX_NODES)]
_Spans = Annotated[tuple[tuple[_U64, _U64], ...], msgspec.Meta(max_length=MAX_SPANS)]


@dataclass(frozen=True, slots=True)
class DurableState:
    """The state that is on the disk before a node says anything that depends on it."""

    view: int = 0
    last_normal: int = 0
    """The last view whose log this node had whole, and in which it took part."""
    commit: int = 0
    """Operations up to this one at least are committed, and synced on this node if only synced ones count."""
    voter: bool = False
    """Whether the node may vote; not while it is new, or has lost something and not recovered yet."""
    nodes: tuple[int, ...] = ()
    """Ids of the configured cluster, ascending: they determine each view's primary. Empty while new."""
    incarnations: Mapping[int, int] = field(default_factory=dict)
    """How often each node has lost its memory, as far as known: votes of an earlier incarnation do not count."""
    history: History = field(default_factory=History)


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state as stored in its file, with what is needed to check that the log beside it is still the same."""

    state: DurableState
    boot: str
    """Id of the machine's boot during which it was written."""
    log: str
    """Uuid of the log."""
    fsync: Fsync = "never"
    """How the log has been written since: what counts after a power failure, whatever is configured by then."""


class Testimony(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node's account of itself: the bulk of DoViewChange, StartView and RecoveryResponse."""

    form: Annotated[int, msgspec.Meta(ge=_FORM, le=_FORM)]
    voter: bool
    nodes: _Nodes
    incarnations: _Incarnations
    spans: _Spans

    @property
    def history(self) -> History:
        """The spans as a history; raises if they are none."""
        return History(self.spans)


def serialize_testimony(state: DurableState, history: History) -> bytes:
    """Make bulk of a node's testimony."""
    spans = tuple((span.view, span.first) for span in history.spans)
    return _ENCODER.encode(Testimony(_FORM, state.voter, state.nodes, dict(state.incarnations), spans))


def parse_testimony(bulk: bytes) -> Testimony:
    """Parse a testimony."""
    try:
        heard = _DECODER.decode(bulk)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        rule = f"must be a testimony of form {_FORM}: all nodes need the same release ({error})"
        raise MalformedError("parcel", "bulk", bulk, rule) from None
    _ = heard.history
    return heard


def save(path: Path, stored: StoredState) -> None:
    """Write the state; when this returns, it survives a power failure."""
    state = stored.state
    file = _File(
        state.view,
        state.last_normal,
        state.commit,
        state.voter,
        state.nodes,
        dict(state.incarnations),
        tuple((span.view, span.first) for span in state.history.spans),
        stored.boot,
        stored.log,
        stored.fsync,
    )
    body = _ENCODER.encode(file)
    with translating(path):
        write_whole(path, _MAGIC + crc32c(body).to_bytes(4, "little") + body, sync=True)
        sync_path(path.parent)


def load(path: Path) -> StoredState | None:
    """Read the state that was saved last; None if there is none. A damaged or older file raises: it is not none."""
    with translating(path):
        if not path.exists():
            return None
        data = path.read_bytes()
    check_version(path, data, _NAME, _VERSION)
    head, body = data[: len(_MAGIC)], data[len(_MAGIC) + 4 :]
    if head != _MAGIC or data[len(_MAGIC) : len(_MAGIC) + 4] != crc32c(body).to_bytes(4, "little"):
        raise DamagedError(str(path), 0, 1, None, "the cluster's state does not match its checksum")
    try:
        return _FILE.decode(body).stored()
    except (msgspec.DecodeError, MalformedError) as error:
        reason = f"the cluster's state is of an unknown form ({error})"
        raise DamagedError(str(path), len(_MAGIC), 1, None, reason) from None


def open_log(directory: Path, *, fsync: Fsync, segment_bytes: int) -> tuple[Log, StoredState | None]:
    """Open a node's log, of which only what is known to be committed is shown, and read its state."""
    stored = load(directory / STATE_FILE) if directory.exists() else None
    if stored is not None and stored.fsync == "never" and fsync != "never":
        # Opening the log syncs its tails. What was sealed meanwhile has never been synced at all.
        _sync_files(directory)
    if stored is not None:
        stored = _with_commit(directory, stored)
    committed = None if stored is None else stored.state.commit
    return Log.open(directory, fsync=fsync, segment_bytes=segment_bytes, committed=committed), stored


def _with_commit(directory: Path, stored: StoredState) -> StoredState:
    """Return a state with the commit number that was noted last, which is rarely that of the state's own."""
    noted = watermark.read(directory, watermark.COMMITTED)
    if noted is None or str(noted[0]) != stored.log or noted[1] <= stored.state.commit:
        return stored
    return replace(stored, state=replace(stored.state, commit=noted[1]))


def is_intact(log: Log, stored: StoredState | None) -> bool:
    """Whether everything this node may have vouched for is still there; when in doubt, it is not."""
    if stored is None or stored.log != str(log.uuid):
        return False
    return stored.fsync == "always" or stored.boot == _boot()


def is_current(log: Log, stored: StoredState) -> bool:
    """Whether a state tells how the log is written from now on; if not, it is saved before the first append."""
    return (stored.fsync, stored.boot) == (log.fsync, _boot())


def remember(log: Log, state: DurableState) -> StoredState:
    """Save the state beside the log it belongs to, all of which is on the disk unless ``fsync`` is ``never``."""
    stored = StoredState(state, _boot(), str(log.uuid), log.fsync)
    save(log.directory / STATE_FILE, stored)
    return stored


def _boot() -> str:
    """The id of this boot of the machine; without one, every start counts as a boot."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return uuid4().hex


def _sync_files(directory: Path) -> None:
    """Put every file of a log on the disk."""
    with translating(directory):
        for path in directory.iterdir():
            if path.is_file():
                descriptor = Descriptor(path, os.O_RDONLY)
                os.fsync(descriptor.fd)
        sync_path(directory)


class _File(msgspec.Struct):
    """The file's content; keys by name, so that a later version may add some."""

    view: _U64
    last_normal: _U64
    commit: _U64
    voter: bool
    nodes: _Nodes
    incarnations: _Incarnations
    spans: _Spans
    boot: str
    log: str
    fsync: Fsync = "never"
    """A state that does not tell is of an earlier release: the least is assumed."""

    def stored(self) -> StoredState:
        state = DurableState(
            self.view,
            self.last_normal,
            self.commit,
            self.voter,
            self.nodes,
            self.incarnations,
            History(self.spans),
        )
        return StoredState(state, self.boot, self.log, self.fsync)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Testimony)
_FILE: Final = msgspec.msgpack.Decoder(_File)
