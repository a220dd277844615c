"""Holds: names that keep messages from being trimmed, each from a sequence number on.

Entry ``hold/NAME``: payload ``{"seq": n}`` keeps what follows from ``n``; an empty payload lets go.
"""

from __future__ import annotations

import msgspec

from headrace.message import Batch


class _Hold(msgspec.Struct, frozen=True):
    seq: int


class Holds(dict[str, int]):
    """The holds there are: name to the first sequence number kept for it."""

    name = "hold"
    follows_messages = False

    def apply(self, name: str, payload: bytes, _seq: int) -> None:
        """Follow a ``hold`` entry."""
        if payload:
            self[name] = msgspec.json.decode(payload, type=_Hold).seq
        else:
            self.pop(name, None)

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
