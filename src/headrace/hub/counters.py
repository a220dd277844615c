"""All of the hub's counters; every refusal goes through :meth:`Counters.refuse`.

Every refusal is counted, but few are logged: for each peer and reason the first, the tenth, the hundredth, and every
thousandth. So a peer that floods the hub can neither fill the disk nor hide what others did. Peers are identified by
their addresses without ports.

A counter has a name and labels. ``/api/status`` shows them as nested JSON, ``/metrics`` as Prometheus series.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping

from headrace.message import NOT_A_MESSAGE

logger = logging.getLogger("headrace")

Labels = tuple[tuple[str, str], ...]

_SHOWN_SINGLY = 20
"""Events of one kind, or peers refused for one reason, that are all logged; then every thousandth."""

_PEERS = 4096
"""Peers and reasons to remember; the oldest is forgotten first."""


class Counter:
    """One count; hot paths keep it and add to ``value``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Counters:
    """Named, labelled counts that only grow."""

    __slots__ = ("_at_will", "_counters", "_peers")

    def __init__(self) -> None:
        self._counters: dict[tuple[str, Labels], Counter] = {}
        self._at_will: defaultdict[str, int] = defaultdict(int)
        self._peers: dict[tuple[str, str, str], int] = {}
        """Refusals by door, reason and address."""

    def counter(self, name: str, **labels: str) -> Counter:
        """Return the counter of ``name``; callers that count often keep it."""
        return self._counters.setdefault((name, _key(labels)), Counter())

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add ``amount`` to the count of ``name``."""
        self.counter(name, **labels).value += amount

    def get(self, name: str, **labels: str) -> int:
        """Return the count of ``name``."""
        counter = self._counters.get((name, _key(labels)))
        return 0 if counter is None else counter.value

    def refuse(self, door: str, reason: str, peer: str, detail: object) -> None:
        """Count and log a refusal of something that a peer sent."""
        counter = self.counter("refused", door=door, reason=reason)
        counter.value += 1
        if self._is_told(door, reason, peer):
            logger.warning("%s: refused %s (%s, %d so far): %s", door, peer, reason, counter.value, detail)

    def _is_told(self, door: str, reason: str, peer: str) -> bool:
        """Whether to log one more refusal of a peer for this reason."""
        key = (door, reason, address_of(peer))
        count = self._peers.get(key, 0) + 1
        if count == 1:
            if len(self._peers) >= _PEERS:
                del self._peers[next(iter(self._peers))]
            self._peers[key] = 1
            # If many peers are refused, even first refusals are too many to log.
            return self._is_logged(f"peers refused: {door}, {reason}", at_will=True)
        self._peers[key] = count
        return count in (10, 100) or count % 1000 == 0

    def failed(self, name: str) -> bool:
        """Count a failure that a peer may cause at will; return whether to log it."""
        self.add(name)
        return self._is_logged(name, at_will=True)

    def report(
        self, name: str, first: int, last: int, detail: str, *, at_will: bool = False, **labels: str
    ) -> None:
        """Count and log an event that affects messages ``first`` to ``last``.

        Events that a peer can cause ``at_will`` are logged as sparingly as refusals.
        """
        self.add(name, last - first + 1, **labels)
        if self._is_logged(name, at_will=at_will):
            logger.warning("%s: messages %d to %d: %s", name, first, last, detail)

    def report_foreign(self, name: str, msg_id: bytes, detail: str, **labels: str) -> None:
        """Count and log something that a peer can cause at will to a message without a sequence number."""
        self.add(name, 1, **labels)
        if self._is_logged(name, at_will=True):
            logger.warning("%s: message with the MsgId %s: %s", name, msg_id.hex(), detail)

    def _is_logged(self, name: str, *, at_will: bool) -> bool:
        if not at_will:
            return True
        self._at_will[name] += 1
        count = self._at_will[name]
        return count <= _SHOWN_SINGLY or count % 1000 == 0

    def __iter__(self) -> Iterator[tuple[str, dict[str, str], int]]:
        for (name, labels), counter in sorted(self._counters.items(), key=lambda item: item[0]):
            yield name, dict(labels), counter.value

    def as_dict(self) -> dict[str, object]:
        """Return the counters for JSON: a number where a name has no labels, else numbers by ``value/value``."""
        groups: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for name, labels, value in self:
            groups[name]["/".join(labels.values())] = value
        return {name: group[""] if group.keys() == {""} else group for name, group in groups.items()}


class ReceivedCounters(dict[str, Counter]):
    """Counters of received messages by origin, and of entries; each is made when it is first needed."""

    def __init__(self, counters: Counters) -> None:
        super().__init__()
        self._counters = counters

    def __missing__(self, origin: str) -> Counter:
        if origin == NOT_A_MESSAGE:
            counter = self._counters.counter("entries")
        else:
            counter = self._counters.counter("received", origin=origin)
        self[origin] = counter
        return counter


def address_of(peer: str) -> str:
    """Return the address in a peer's name, which may also have a port and the client's name.

    >>> [address_of(peer) for peer in ("10.0.0.1:4711 (a client)", "[::1]:80", "::1:5000", "message 7 for 'a'")]
    ['10.0.0.1', '[::1]', '::1', "message 7 for 'a'"]
    """
    address, colon, port = peer.partition(" (")[0].rpartition(":")
    return address if colon and port.isdecimal() else peer


def _key(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))
