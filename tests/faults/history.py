"""What clients were told, in the order in which they were: nothing else is known of a hub or a cluster.

    history = History()
    op = history.invoked("meter-7", [b"21.5", b"21.7"])
    history.acknowledged(op, 5, 6, node="hub")      # or history.failed(op, "unreachable")
    history.saw("tail", 5, b"21.5")                 # a reader was given a message
    history.told("watch", "hub", 6, since=mark)     # a node said where its head is
    history.read_all("at the end", 1, 6)            # a reader has read everything there was
    history.forgot(5)                               # a power failure took what was not synced, from 6 on

A history is written to a file as lines of JSON and read from it again, so that a failure can be looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Invoked:
    """A publisher has sent some messages, which it will not send under other names."""

    op: int
    publisher: str
    payloads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """They are in the log, from number ``first`` to ``last``; or somewhere, if these are ``None``."""

    op: int
    first: int | None
    last: int | None
    node: str | None
    """The node that said so, if one alone can have."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Nobody knows whether they are in the log, or they are not if ``refused``."""

    op: int
    why: str
    refused: bool


@dataclass(frozen=True, slots=True)
class Saw:
    """A reader was given a message."""

    reader: str
    seq: int
    payload: bytes
    whole: bool = True
    """Whether its numbers are to be whole; a durable consumer's may come again, and in any order."""


@dataclass(frozen=True, slots=True)
class Told:
    """A node said where its head is; it was asked when the history had ``since`` events."""

    reader: str
    node: str
    head: int
    since: int


@dataclass(frozen=True, slots=True)
class ReadAll:
    """A reader has asked for all messages from ``first`` to ``last``, everything there was, and has seen them."""

    reader: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Forgot:
    """A power failure took what was not synced yet: everything after ``kept``, as the settings allow."""

    kept: int


Event: TypeAlias = Invoked | Acknowledged | Failed | Saw | Told | ReadAll | Forgot
_KINDS = {kind.__name__: kind for kind in (Invoked, Acknowledged, Failed, Saw, Told, ReadAll, Forgot)}


class History:
    """Events in the order in which they happened, as one process has seen them."""

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self.events: list[Event] = list(events)
        self._ops = 0
        self._payloads: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def invoked(self, publisher: str, payloads: Sequence[bytes]) -> int:
        """Note that a publisher sends messages; return the operation's number."""
        self._ops += 1
        self.events.append(Invoked(self._ops, publisher, tuple(payloads)))
        return self._ops

    def acknowledged(self, op: int, first: int | None, last: int | None, node: str | None = None) -> None:
        """Note that they were acknowledged."""
        self.events.append(Acknowledged(op, first, last, node))

    def failed(self, op: int, why: str, *, refused: bool = False) -> None:
        """Note that they were not."""
        self.events.append(Failed(op, why, refused))

    def saw(self, reader: str, seq: int, payload: bytes, *, whole: bool = True) -> None:
        """Note that a reader was given a message."""
        # All readers are given the same: one copy is enough.
        known = self._payloads.setdefault(seq, payload)
        self.events.append(Saw(reader, seq, known if known == payload else payload, whole))

    def told(self, reader: str, node: str, head: int, since: int) -> None:
        """Note where a node said that its head is."""
        self.events.append(Told(reader, node, head, since))

    def read_all(self, reader: str, first: int, last: int) -> None:
        """Note that a reader has read everything that there was."""
        self.events.append(ReadAll(reader, first, last))

    def forgot(self, kept: int) -> None:
        """Note that a power failure took messages after ``kept``, which was allowed."""
        self.events.append(Forgot(kept))

    def save(self, path: Path) -> None:
        """Write it to a file."""
        with path.open("w") as file:
            for event in self.events:
                fields = {"event": type(event).__name__, **asdict(event)}
                file.write(json.dumps(fields, default=bytes.hex) + "\n")

    @classmethod
    def load(cls, path: Path) -> History:
        """Read what :meth:`save` has written."""
        events: list[Event] = []
        for line in path.read_text().splitlines():
            fields = json.loads(line)
            kind = _KINDS[fields.pop("event")]
            if kind is Saw:
                fields["payload"] = bytes.fromhex(fields["payload"])
            elif kind is Invoked:
                fields["payloads"] = tuple(map(bytes.fromhex, fields["payloads"]))
            events.append(kind(**fields))
        return cls(events)
