"""A client's own copy of a service's object, and the changes its readers have not seen yet: no sockets, no waiting.

The first Info after a Subscribe, and after the service was offered again, is the whole object; each later one is a
change. SPP does not tell a service's kind. Unless the caller does, it is guessed at each whole object: a JSON object
makes it ``json``. If a ``last`` service happens to hold a JSON object, the first change that is not one reveals it.

A :class:`CopyReader` sees each change, as long as it keeps up. When too much waits for it, a single change, from what
it last saw to the present, replaces everything that waits, just as the hub does with a subscriber that lags.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal

from headrace.errors import WireError
from headrace.hub.services.merge_patch import apply, diff, parse_object

Kind = Literal["json", "last"]

PENDING_BYTES: Final = 8 << 20
"""Limits of the changes that may wait for one reader before a single one replaces them."""

_CHANGE_COST: Final = 256
"""Bytes of memory that a change takes besides its own."""

NOTHING: Final[Any] = object()


class ObjectCopy:
    """The object of one service, as far as this client knows it."""

    def __init__(self, service_id: str, kind: Kind | None = None) -> None:
        self.id = service_id
        self.kind: Kind | None = kind
        self.value: Any = NOTHING
        """The object: a ``dict`` or ``bytes``, never changed in place; :data:`NOTHING` before it is known."""
        self.removed = False
        """Whether the service is no longer offered."""
        self.readers: list[CopyReader] = []
        self.wanted_kind = kind
        self._awaits_whole = True

    def expect_whole(self) -> None:
        """Take the next Info as the whole object."""
        self._awaits_whole = True

    def inform(self, message: bytes) -> None:
        """Take the message of an Info."""
        patch = None if self.wanted_kind == "last" else _object(message)
        if patch is None and self.wanted_kind == "json":
            return  # Not of the kind that the caller expects.
        before = self.value
        if self._awaits_whole:
            self._awaits_whole = False
            self.value = message if patch is None else patch
            change = self.value if before is NOTHING else since(before, self.value)
            if before is not NOTHING and (change == {} or change == before):
                return  # Connected again, and nothing has happened meanwhile.
        elif patch is None or isinstance(before, bytes):
            self.value = change = message
        else:
            self.value = apply(before, patch)
            change = patch
        self.kind = "last" if isinstance(self.value, bytes) else "json"
        for reader in self.readers:
            reader.tell(change, len(message))


class CopyReader:
    """Follows a copy; ``wake`` is called when there is something to :meth:`take`."""

    def __init__(self, copy: ObjectCopy, wake: Callable[[], None]) -> None:
        self.conflated = 0
        """Changes that this reader did not see as such, because one change stood for several."""
        self.copy = copy
        self._wake = wake
        self._seen = copy.value
        self._pending: deque[tuple[Any, Any, int]] = deque()
        self._weight = 0
        self._skipped = 0
        copy.readers.append(self)

    def tell(self, change: Any, size: int) -> None:
        """Note a change."""
        value = self.copy.value
        if self._seen is NOTHING:
            # The object as first received is not a change.
            self._seen = value
        elif self._skipped:
            self._skipped += 1
        else:
            cost = size + _CHANGE_COST
            self._pending.append((change, value, cost))
            self._weight += cost
            if self._weight > PENDING_BYTES and len(self._pending) > 1:
                self._skipped = len(self._pending)
                self._pending.clear()
                self._weight = 0
        self._wake()

    def take(self) -> Any:
        """Return the next change, or :data:`NOTHING`."""
        if self._skipped:
            self.conflated += self._skipped
            self._skipped = 0
            before, self._seen = self._seen, self.copy.value
            return since(before, self._seen)
        if not self._pending:
            return NOTHING
        change, self._seen, cost = self._pending.popleft()
        self._weight -= cost
        return change

    def close(self) -> None:
        """Stop following."""
        if self in self.copy.readers:
            self.copy.readers.remove(self)


def since(before: Any, now: Any) -> Any:
    """Return the one change that leads from one value to another."""
    return diff(before, now) if isinstance(before, dict) and isinstance(now, dict) else now


def _object(message: bytes) -> dict[str, Any] | None:
    try:
        return parse_object(message)
    except WireError:
        return None
