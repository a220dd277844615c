"""The result of matching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

CLIENT_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class Matches:
    """The clients of message ``i`` are ``clients[offsets[i]:offsets[i + 1]]``: 12 bytes each, unordered, distinct."""

    offsets: npt.NDArray[np.int64]
    clients: npt.NDArray[np.uint8]
    owners: npt.NDArray[np.uint8] | None = None
    """The owner of each of these clients; ``None`` if each is its own."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> list[bytes]:
        """The clients of a message; not for the hot path."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return [row.tobytes() for row in self.clients[self.offsets[index] : self.offsets[index + 1]]]


class Memory(NamedTuple):
    """Bytes that subscriptions take."""

    total: int
    per_subscription: float


def nobody(count: int) -> Matches:
    """The matches of messages that no client wants."""
    return Matches(np.zeros(count + 1, np.int64), np.empty((0, CLIENT_BYTES), np.uint8))
