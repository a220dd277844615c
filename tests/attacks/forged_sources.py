"""Datagrams whose source is a lie, sent to a hub of this process; prints what was sent, and what the victim got.

Run as a program: ``python -m tests.attacks.forged_sources DIRECTORY``. It moves into a network of its own, where it may
forge the source of a datagram and where addresses are not the loopback's. Where the system does not let it, the
datagrams come from the victim's own socket, and the hub takes the loopback for something else; to the hub, that is the
same.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
from contextlib import closing
from ipaddress import IPv4Network
from pathlib import Path

_NEW_NETWORK = 0x40000000
_NEW_USER = 0x10000000
_SET_ADDRESS, _SET_FLAGS, _SET_MASK = 0x8916, 0x8914, 0x891C
_UP = 0x1

MESSAGES, MESSAGE_BYTES, ROUNDS = 60, 1000, 20

Endpoint = tuple[str, int]


def in_a_network_of_its_own() -> bool:
    """Leave this machine's network; return whether that was allowed. To be called before there is any thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    user = os.getuid()
    if libc.unshare(_NEW_NETWORK) != 0:
        if libc.unshare(_NEW_NETWORK | _NEW_USER) != 0:
            return False
        try:
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        except OSError:
            return False
    try:
        with closing(socket.socket(type=socket.SOCK_DGRAM)) as sock:
            for name, place in ((b"lo", "127.0.0.1"), (b"lo:1", "10.66.0.1")):
                address = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(place))
                mask = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton("255.255.255.0"))
                fcntl.ioctl(sock, _SET_ADDRESS, address)
                fcntl.ioctl(sock, _SET_MASK, mask)
                fcntl.ioctl(sock, _SET_FLAGS, struct.pack("16sh14x", name, _UP))
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).close()
    except OSError:
        return False
    return True


def forged(data: bytes, source: Endpoint, target: Endpoint) -> bytes:
    """Make an IP packet with a datagram."""
    datagram = struct.pack("!HHHH", source[1], target[1], 8 + len(data), 0) + data
    addresses = socket.inet_aton(source[0]) + socket.inet_aton(target[0])
    return (
        struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(datagram), 0, 0, 64, socket.IPPROTO_UDP, 0)
        + addresses
        + datagram
    )


async def attack(directory: Path, *, alone: bool) -> dict[str, object]:
    """Send KEEPALIVEs and REQUESTs in a victim's name, and count."""
    from tests.net.raw import address_of, keepalive, push, request, running_hub, until

    from headrace.net.fyrehose import door

    here, there = ("10.66.0.1", "10.66.0.2") if alone else ("127.0.0.1", "127.0.0.2")
    if not alone:
        door._LOOPBACK = IPv4Network("192.0.2.0/24")
    settings = (f"listen.fyrehose={here}:0", "auth.insecure=true")
    sent = received = 0
    async with running_hub(directory, *settings) as server:
        _, writer = await asyncio.open_connection(*address_of(server))
        writer.write(push(bytes(MESSAGE_BYTES)) * MESSAGES)
        await until(lambda: server.hub.log.head == MESSAGES)
        target = address_of(server)
        with closing(socket.socket(type=socket.SOCK_DGRAM)) as victim:
            victim.bind((there, 0))
            victim.setblocking(False)
            liar = victim
            if alone:
                liar = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            for _ in range(ROUNDS):
                for data in (keepalive(), request(1, MESSAGES), keepalive(), request(1, 1)):
                    packet = forged(data, victim.getsockname(), target) if alone else data
                    liar.sendto(packet, target)
                    sent += len(data)
                    await asyncio.sleep(0.001)
            await until(
                lambda: server.hub.counters.get("refused", door="fyrehose", reason="unproven") > ROUNDS
            )
            writer.write(push(b"a message that subscribers get"))
            await until(lambda: server.hub.log.head == MESSAGES + 1)
            await asyncio.sleep(0.1)
            while True:
                try:
                    received += len(victim.recv(1 << 16))
                except BlockingIOError:
                    break
            if liar is not victim:
                liar.close()
        writer.close()
    return {"network": "its own" if alone else "the loopback", "sent": sent, "received": received}


if __name__ == "__main__":
    apart = in_a_network_of_its_own()
    print(json.dumps(asyncio.run(attack(Path(sys.argv[1]), alone=apart))))
