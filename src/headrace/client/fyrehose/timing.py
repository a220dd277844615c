"""How long a subscriber waits for missing messages, and how much it keeps meanwhile: over UDP, and over TCP."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.message import MAX_SEQUENCE


@dataclass(frozen=True, slots=True)
class RepairTiming:
    """Delays in seconds, and limits in messages and bytes. The defaults are for UDP.

    ``reorder`` is how long a message may be overtaken before it counts as missing, ``retry`` and ``retry_most`` the
    first and the longest delay between REQUESTs for a hole, ``probe`` and ``probe_most`` the same for probes into
    silence, ``hole`` how long a hole may make no progress before it is lost, ``silence`` how long the backbone may be
    silent before that clock stops. ``max_request`` is the maximum number of messages that one REQUEST asks for.
    """

    reorder: float = 0.005
    retry: float = 0.05
    retry_most: float = 1.0
    probe: float = 0.2
    probe_most: float = 2.0
    hole: float = 30.0
    silence: float = 5.0
    max_request: int = 1_024
    max_early: int = 65_536
    max_early_bytes: int = 16 * 1024 * 1024


TCP_TIMING = RepairTiming(
    reorder=0.0,
    retry=1.0,
    retry_most=5.0,
    probe=10.0,
    probe_most=60.0,
    hole=5.0,
    silence=2.5,
    max_request=MAX_SEQUENCE,
)
"""For TCP: what is missing was never sent (a subscription lapsed, a connection was lost), and a hub sends a whole range
next when asked. So an answer does not take long unless the hub is silent altogether, and a needless probe costs as much
as all that is on its way."""
