"""What a hostile peer may send to a door: random bytes, mutated ones, and frames put together by a grammar's rules.

Mutations and grammars begin with the seeds of the fuzz targets, which are valid in the door's own protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

CORPUS = Path(__file__).parent.parent.parent / "fuzz" / "corpus"

SPOKEN = {
    "fyrehose": "fyrehose",
    "spp": "spp",
    "parcel": "parcel",
    "sdk": "sdk",
    "router": "attribute",
    "dispatcher": "attribute",
    "publisher": "attribute",
    "status": "attribute",
    "tube_tcp": "tube",
    "tube_ws": "websocket",
    "http": "http",
}
"""The protocol of each door."""

_PATHS = (
    "/",
    "/healthz",
    "/api/status",
    "/metrics",
    "/api/messages",
    "/sdk/sub/preauth",
    "/" + "a" * 3000,
    "*",
)
_FIELDS = (
    "Host",
    "Content-Length",
    "Transfer-Encoding",
    "Authorization",
    "Range",
    "Upgrade",
    "Connection",
    "X",
)
_VALUES = (
    "localhost",
    "-1",
    "chunked",
    "Basic !!!!",
    "bytes=9-1",
    "websocket",
    "x" * 500,
    "\x00",
    "18446744073709551616",
)

_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: tube\r\n\r\n"
)


def seeds(door: str) -> list[bytes]:
    """Return bytes that are valid, or nearly so, at a door."""
    protocol = SPOKEN[door]
    if protocol == "http":
        return [
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"POST /sdk/sub/preauth HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        ]
    if protocol == "websocket":
        return [
            _UPGRADE,
            _UPGRADE + b"\x82\x83\x00\x00\x00\x00\x0c\xc8\x01",
            _UPGRADE + b"\x89\x80\x00\x00\x00\x00",
        ]
    # The first byte of a seed tells the fuzz target how to cut the rest.
    return [path.read_bytes()[1:] for path in sorted((CORPUS / protocol).iterdir())]


def random_bytes(_door: str, random: Random) -> bytes:
    """Make bytes without any sense."""
    return random.randbytes(random.choice((1, 7, 64, 1000, 20_000)))


def mutated_bytes(door: str, random: Random) -> bytes:
    """Change something valid in a few places."""
    data = bytearray(random.choice(seeds(door)))
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(data) + 1)
        match random.randrange(5):
            case 0 if data:
                data[place % len(data)] ^= 1 << random.randrange(8)
            case 1:
                del data[place:]
            case 2:
                data[place:place] = random.randbytes(random.randint(1, 8))
            case 3:
                # Where lengths and counts stand, these are the extremes.
                data[place : place + 4] = random.choice(
                    (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4), b"\x00\x10\x00\x00")
                )
            case _:
                data[place:place] = data[: random.randrange(len(data) + 1)]
    return bytes(data)


def grammar_made_bytes(door: str, random: Random) -> bytes:
    """Put whole frames together in an order that nobody would."""
    if SPOKEN[door] == "http":
        method, version = random.choice(("GET", "PUT", "BREW", "")), random.choice(("1.1", "9.9", ""))
        lines = [f"{method} {random.choice(_PATHS)} HTTP/{version}"]
        lines += [f"{random.choice(_FIELDS)}: {random.choice(_VALUES)}" for _ in range(random.randrange(8))]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + random.randbytes(random.randrange(40))
    valid = seeds(door)
    return b"".join(random.choice(valid) for _ in range(random.randint(2, 12)))


WAYS: dict[str, Callable[[str, Random], bytes]] = {
    "random": random_bytes,
    "mutated": mutated_bytes,
    "grammar-made": grammar_made_bytes,
}
"""How hostile bytes are made."""
