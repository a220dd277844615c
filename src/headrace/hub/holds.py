"""Holds: names that keep messages from being trimmed, each from a sequence number on.

Entry ``hold/NAME``: payload ``{"seq": n}`` keeps what follows from ``n``; an empty payload lets go. Doors write no
entry past the limits. One that was passed on may be anything: past the limits it changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headrace.message import MAX_SEQUENCE, Batch

MAX_HOLDS: Final = 256
MAX_NAME: Final = 255
"""Characters of a hold's name. Neither limit is a setting: the state would then depend on more than the log."""


class _Hold(msgspec.Struct, frozen=True):
    seq: Annotated[int, Meta(ge=1, le=MAX_SEQUENCE + 1)]


class Holds(dict[str, int]):
    """The holds there are: name to the first sequence number kept for it."""

    name = "hold"
    follows_messages = False

    def apply(self, name: str, payload: bytes, _seq: int) -> None:
        """Follow a ``hold`` entry."""
        if not payload:
            self.pop(name, None)
            return
        seq = msgspec.json.decode(payload, type=_Hold).seq
        if name not in self and (len(self) >= MAX_HOLDS or len(name) > MAX_NAME):
            raise msgspec.ValidationError(f"{MAX_HOLDS} holds at most, of names of {MAX_NAME} characters")
        self[name] = seq

    def follow(self, _batch: Batch) -> None:
        """Messages change nothing here."""

    def dump(self) -> bytes:
        """The holds as a snapshot's section."""
        return msgspec.msgpack.encode(dict(self))

    def load(self, section: bytes) -> None:
        """Take the holds over from a snapshot."""
        self.clear()
        self.update(msgspec.msgpack.decode(section, type=dict[str, int]))


def hold(seq: int | None) -> bytes:
    """The payload of an entry that keeps messages from ``seq`` on, or lets go of them (``None``)."""
    return b"" if seq is None else msgspec.json.encode(_Hold(seq))
