"""The doors, the schemes of their URLs, and the origins that messages have: one list of each."""

from __future__ import annotations

from typing import Final

PORTS: Final = {
    "fyrehose": 2323,
    "spp": 3002,
    "parcel": 7878,
    "sdk": 7253,
    "router": 7353,
    "dispatcher": 6000,
    "publisher": 8000,
    "status": 5500,
    "tube_ws": 8080,
    "tube_tcp": 8081,
    "http": 8470,
}
"""Each door's default port, by the name it has in ``listen``, in the ready file and in recordings."""

SCHEMES: Final = {
    "fyrehose": "fyrehose",
    "fyrehose+udp": "fyrehose",
    "spp": "spp",
    "sdk": "sdk",
    "publisher": "publisher",
    "tube": "tube_tcp",
    "ws": "tube_ws",
    "fyrehose+tls": "fyrehose",
    "spp+tls": "spp",
    "sdk+tls": "sdk",
    "publisher+tls": "publisher",
    "tube+tls": "tube_tcp",
    "wss": "tube_ws",
}
"""The door of each URL scheme that clients speak; of a door's schemes the plain one comes first."""


def is_tls(scheme: str) -> bool:
    """Whether a URL's scheme says TLS.

    >>> is_tls("tube+tls"), is_tls("wss"), is_tls("tube")
    (True, True, False)
    """
    return scheme.endswith("+tls") or scheme in ("wss", "https")


def with_tls(scheme: str) -> str:
    """Return the scheme of the same door under TLS.

    >>> with_tls("tube"), with_tls("ws"), with_tls("http")
    ('tube+tls', 'wss', 'https')
    """
    if is_tls(scheme):
        return scheme
    return {"ws": "wss", "http": "https", "fyrehose+udp": "fyrehose+tls"}.get(scheme, f"{scheme}+tls")


NOT_A_MESSAGE: Final = "log"
"""The origin of log entries. They keep the hub's own state (a service created, a cursor moved), stand after a
message and have no sequence number; no door that carries messages shows them."""

DEAD_LETTER: Final = "consumer"
"""The origin of dead letters."""

HTTP: Final = "http"
"""The origin of messages that were posted."""

HUBS_OWN_NAMES: Final = "headrace/"
"""The prefix of publishers' names that hubs give themselves; no client may use one."""

PUSHED_ORIGINS: Final = ("fyrehose", "spp", "attribute")
"""Origins whose publishers do not wait for an acknowledgement."""

PUBLISHED_ORIGINS: Final = (*PUSHED_ORIGINS, "tube", "spark", "replay")
"""Origins that a publisher at the link may name."""

ORIGINS: Final = (*PUBLISHED_ORIGINS, HTTP, DEAD_LETTER, NOT_A_MESSAGE)
"""Every origin. The hub counts by origin, so any other would cost it memory."""
