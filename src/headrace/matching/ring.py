"""The ring: which matcher a client's subscription belongs to.

Places are SHA-1 digests, numbers below 2^160. A matcher has a start (by default the SHA-1 of its name) and 16 *vnodes*:
the start and every sixteenth of the ring from there. A client belongs to the first vnode at or after the SHA-1 of its
12 bytes, around the ring. So a matcher that joins takes a share from the others and moves nothing between them, and one
that leaves gives its share to them. If two matchers have the same place, the one whose name sorts first owns it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.matching.matches import CLIENT_BYTES

VNODES: Final = 16
PLACE_BYTES: Final = 20

_PLACES: Final = 1 << (8 * PLACE_BYTES)


class Ring:
    """Matchers by name, and which one owns each client."""

    def __init__(self, *matchers: str) -> None:
        self._starts: dict[str, int] = {}
        self._places: npt.NDArray[np.bytes_] = np.empty(0, f"S{PLACE_BYTES}")
        self._owners: npt.NDArray[np.intp] = np.empty(0, np.intp)
        self._names: tuple[str, ...] = ()
        for matcher in matchers:
            self.join(matcher)

    def __len__(self) -> int:
        return len(self._starts)

    def __contains__(self, matcher: object) -> bool:
        return matcher in self._starts

    @property
    def matchers(self) -> tuple[str, ...]:
        """Their names, sorted."""
        return self._names

    @property
    def starts(self) -> Mapping[str, bytes]:
        """The start of each matcher."""
        return {name: start.to_bytes(PLACE_BYTES) for name, start in self._starts.items()}

    def join(self, matcher: str, start: bytes | None = None) -> None:
        """Add a matcher, or move it to another start."""
        if start is None:
            start = hashlib.sha1(matcher.encode(), usedforsecurity=False).digest()
        if len(start) != PLACE_BYTES:
            raise UsageError(f"a start of {len(start)} bytes: a place on the ring has {PLACE_BYTES}")
        self._starts[matcher] = int.from_bytes(start)
        self._place()

    def leave(self, matcher: str) -> bool:
        """Remove a matcher; return whether it was there."""
        if self._starts.pop(matcher, None) is None:
            return False
        self._place()
        return True

    def vnodes(self, matcher: str) -> list[bytes]:
        """The places of a matcher, its start first."""
        if matcher not in self._starts:
            raise UsageError(f"{matcher} is not on the ring")
        return [place.to_bytes(PLACE_BYTES) for place in _vnodes(self._starts[matcher])]

    def owner(self, client: bytes) -> str:
        """The matcher that owns a client.

        >>> ring = Ring("a", "b")
        >>> ring.owner(bytes(12)) in ring.matchers
        True
        """
        if len(client) != CLIENT_BYTES:
            raise UsageError(f"a client id of {len(client)} bytes: it has {CLIENT_BYTES}")
        return self._names[int(self.owners(np.frombuffer(client, np.uint8).reshape(1, -1))[0])]

    def owners(self, clients: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
        """The matchers that own these clients (12 bytes per row), as indices into :attr:`matchers`."""
        if not self._names:
            raise UsageError("there is no matcher on the ring")
        if clients.ndim != 2 or clients.shape[1] != CLIENT_BYTES:
            raise UsageError(f"clients of shape {clients.shape}: {CLIENT_BYTES} bytes per row")
        raw = np.ascontiguousarray(clients).tobytes()
        digests = b"".join(
            hashlib.sha1(raw[at : at + CLIENT_BYTES], usedforsecurity=False).digest()
            for at in range(0, len(raw), CLIENT_BYTES)
        )
        # Numpy pads byte strings with zeros to compare them, so the trailing zeros it drops do not affect the order.
        found = np.searchsorted(self._places, np.frombuffer(digests, f"S{PLACE_BYTES}"))
        return self._owners[found % len(self._places)]

    def _place(self) -> None:
        self._names = tuple(sorted(self._starts))
        # Sorted by place, then by name: searchsorted finds the leftmost, whose name sorts first.
        placed = sorted(
            (place, index) for index, name in enumerate(self._names) for place in _vnodes(self._starts[name])
        )
        self._places = np.array([place.to_bytes(PLACE_BYTES) for place, _ in placed], f"S{PLACE_BYTES}")
        self._owners = np.array([index for _, index in placed], np.intp)


def _vnodes(start: int) -> list[int]:
    return [(start + index * (_PLACES // VNODES)) % _PLACES for index in range(VNODES)]
