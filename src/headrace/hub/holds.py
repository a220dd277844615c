"""Holds: names that keep messages from being trimmed, each from a sequence number on.

Entry ``hold/NAME``: payload ``{"seq": n}`` keeps messages from ``n`` on; an empty payload releases them. Doors write no
entry beyond the limits; an entry from elsewhere that exceeds them changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headrace.message import MAX_SEQUENCE

MAX_HOLDS: Final = 256
MAX_NAME: Final = 255
"""Most characters of a hold's name. The limits are not settings, since the state must depend on the log alone."""


class _Hold(msgspec.Struct, frozen=True):
    seq: Annotated[int, Meta(ge=1, le=MAX_SEQUENCE + 1)]


class Holds(dict[str, int]):
    """All holds: the first sequence number kept, by name."""

    name = "hold"

    def apply(self, name: str, payload: bytes, _seq: int, _op: int) -> None:
        """Apply a ``hold`` entry."""
        if not payload:
            self.pop(name, None)
            return
        seq = msgspec.json.decode(payload, type=_Hold).seq
        if name not in self and (len(self) >= MAX_HOLDS or len(name) > MAX_NAME):
            raise msgspec.ValidationError(f"{MAX_HOLDS} holds at most, of names of {MAX_NAME} characters")
        self[name] = seq

    def dump(self) -> bytes:
        """Return the holds as a snapshot's section."""
        return msgspec.msgpack.encode(dict(self))

    def load(self, section: bytes) -> None:
        """Restore the holds from a snapshot."""
        self.clear()
        self.update(msgspec.msgpack.decode(section, type=dict[str, int]))


def hold(seq: int | None) -> bytes:
    """Return the payload of an entry that keeps messages from ``seq`` on, or releases them (``None``)."""
    return b"" if seq is None else msgspec.json.encode(_Hold(seq))
