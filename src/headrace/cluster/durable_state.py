"""What a node of the cluster must not forget: the file it keeps, and what nodes tell one another of it.

The file is small and written whole, synced, only when a view changes or a node recovers, never for a batch. It is
lost with the disk and with nothing else, so its absence is what tells a new or emptied node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from headrace.cluster.history import MAX_SPANS, History
from headrace.errors import DamagedError, MalformedError
from headrace.log.checksum import crc32c
from headrace.log.files import sync_directory, translating, write_whole

MAX_NODES: Final = 64
"""The most nodes that vote; each of them hears each message."""

_MAGIC: Final = b"HRCLST\x01\n"
_U64 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Node = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
_Nodes = Annotated[tuple[_Node, ...], msgspec.Meta(max_length=MAX_NODES)]
_Incarnations = Annotated[dict[_Node, _U64], msgspec.Meta(max_length=MAX_NODES)]
_Spans = Annotated[tuple[tuple[_U64, _U64], ...], msgspec.Meta(max_length=MAX_SPANS)]


@dataclass(frozen=True, slots=True)
class State:
    """What is on the disk before a node says anything that depends on it."""

    view: int = 0
    last_normal: int = 0
    """The last view whose log this node had whole, and in which it took part."""
    commit: int = 0
    """At least this much is committed, and on this node's disk where that counts."""
    voter: bool = False
    """Whether the node may vote; not while it is new, or has lost something and not recovered yet."""
    nodes: tuple[int, ...] = ()
    """The ids of the configured cluster, ascending: who is primary of which view. Empty while new."""
    incarnations: Mapping[int, int] = field(default_factory=dict)
    """How often each node has lost its memory, as far as known: votes from an earlier life do not count."""
    history: History = field(default_factory=History)


@dataclass(frozen=True, slots=True)
class Kept:
    """A state as its file has it, with what tells whether the log beside it is still the same."""

    state: State
    boot: str
    """The boot of the machine in which it was written."""
    log: str
    """The uuid of the log."""


class Testimony(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a node tells of itself behind DoViewChange, StartView and RecoveryResponse, as their bulk."""

    voter: bool
    nodes: _Nodes
    incarnations: _Incarnations
    spans: _Spans

    @property
    def history(self) -> History:
        """The spans; what cannot be a history raises."""
        return History(self.spans)


def tell(state: State, history: History) -> bytes:
    """A node's testimony as bulk."""
    spans = tuple((span.view, span.first) for span in history.spans)
    return _ENCODER.encode(Testimony(state.voter, state.nodes, dict(state.incarnations), spans))


def hear(bulk: bytes) -> Testimony:
    """A testimony from bulk; whatever it is not raises."""
    try:
        heard = _DECODER.decode(bulk)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise MalformedError("parcel", "bulk", bulk, f"must be a testimony ({error})") from None
    _ = heard.history
    return heard


def save(path: Path, kept: Kept) -> None:
    """Bring the state to the disk: when this returns, it lasts through a power failure."""
    body = _KEPT.encode(_File.of(kept))
    with translating(path):
        write_whole(path, _MAGIC + crc32c(body).to_bytes(4, "little") + body, sync=True)
        sync_directory(path.parent)


def load(path: Path) -> Kept | None:
    """The state that was saved last; None where there is none."""
    with translating(path):
        if not path.exists():
            return None
        data = path.read_bytes()
    head, body = data[: len(_MAGIC)], data[len(_MAGIC) + 4 :]
    if head != _MAGIC or data[len(_MAGIC) : len(_MAGIC) + 4] != crc32c(body).to_bytes(4, "little"):
        raise DamagedError(str(path), 0, 1, None, "the cluster's state does not match its checksum")
    try:
        return _FILE.decode(body).kept()
    except (msgspec.DecodeError, MalformedError) as error:
        reason = f"the cluster's state is of an unknown form ({error})"
        raise DamagedError(str(path), len(_MAGIC), 1, None, reason) from None


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

    @classmethod
    def of(cls, kept: Kept) -> _File:
        state = kept.state
        spans = tuple((span.view, span.first) for span in state.history.spans)
        return cls(
            view=state.view,
            last_normal=state.last_normal,
            commit=state.commit,
            voter=state.voter,
            nodes=state.nodes,
            incarnations=dict(state.incarnations),
            spans=spans,
            boot=kept.boot,
            log=kept.log,
        )

    def kept(self) -> Kept:
        history = History(self.spans)
        state = State(
            self.view, self.last_normal, self.commit, self.voter, self.nodes, self.incarnations, history
        )
        return Kept(state, self.boot, self.log)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Testimony)
_KEPT: Final = msgspec.msgpack.Encoder()
_FILE: Final = msgspec.msgpack.Decoder(_File)
