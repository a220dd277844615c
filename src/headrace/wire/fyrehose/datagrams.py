"""fyrehose over UDP: a datagram is one packet, or several PUSHes or DELIVERs back to back.

Invariants:

- A datagram is taken whole or refused whole, and one that is refused disturbs no other.
- The PUSHes of datagrams that came together are gathered into one run by a compiled kernel
  (:mod:`headrace.wire.fyrehose.kernels`); a datagram that came alone is read in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np

from headrace.errors import LimitError, MalformedError, WireError
from headrace.message import MAX_RUN_BYTES, Offsets, Run
from headrace.wire.fyrehose.packet import (
    AT_CLIENT,
    AT_HUB,
    DELIMITED,
    MAX_DATAGRAM,
    Challenge,
    Deliver,
    Forward,
    Frame,
    Keepalive,
    KeepaliveAck,
    Proof,
    Push,
    Request,
    Type,
    packet_size,
    read,
    read_example,
)
from headrace.wire.fyrehose.runs import empty_run


@dataclass(frozen=True, slots=True)
class PushDatagrams:
    """Datagrams of nothing but PUSHes: number ``first + i`` brought the next ``counts[i]`` payloads."""

    first: int
    counts: Offsets
    run: Run


@dataclass(frozen=True, slots=True)
class LoneDatagram:
    """Datagram number ``index`` was this one packet."""

    index: int
    frame: Request | Keepalive | Proof


@dataclass(frozen=True, slots=True)
class BadDatagram:
    """Datagram number ``index`` is refused whole."""

    index: int
    error: WireError


Arrival = PushDatagrams | LoneDatagram | BadDatagram


_SHORT: Final = 256
"""Bytes of a datagram that kernels need not read: a longer one may bring twenty thousand PUSHes."""


def parse_datagram(data: bytes) -> list[Push | Request | Keepalive | Proof]:
    """Read a datagram that came to the hub: one packet, or several PUSHes back to back."""
    example = read_example(data)
    if example is not None:
        return [example]
    return cast("list[Push | Request | Keepalive | Proof]", _read_datagram(data, AT_HUB))


def parse_client_datagram(data: bytes) -> list[Deliver | Forward | KeepaliveAck | Challenge]:
    """Read a datagram that came to a client: one packet, or several DELIVERs back to back."""
    return cast("list[Deliver | Forward | KeepaliveAck | Challenge]", _read_datagram(data, AT_CLIENT))


def parse_datagrams(datagrams: Sequence[bytes]) -> list[Arrival]:
    """Read many datagrams that came to the hub, in order; one that is refused disturbs no other.

    Each is read as :func:`parse_datagram` reads it; the PUSHes of datagrams side by side come as one run.
    """
    if len(datagrams) == 1 and not _brings_many(datagrams[0]):
        return [_arrival(0, datagrams[0])]
    from headrace.wire.fyrehose import kernels

    buffer = np.frombuffer(b"".join(datagrams), np.uint8)
    edges = np.zeros(len(datagrams) + 1, np.int64)
    np.cumsum([len(datagram) for datagram in datagrams], out=edges[1:])
    counts = np.empty(len(datagrams), np.int32)
    arrivals: list[Arrival] = []
    at = 0
    while at < len(datagrams):
        count, size, stop = kernels.measure_datagrams(buffer, edges, at, MAX_RUN_BYTES, counts)
        if stop == at:
            begin, end = int(edges[at]), int(edges[at + 1])
            if end - begin >= _SHORT:
                _, _, good = kernels.measure_pushes(buffer, begin, end, MAX_RUN_BYTES, end)
                arrivals.append(_arrival(at, datagrams[at], good - begin if good < end else 0))
            else:
                arrivals.append(_arrival(at, datagrams[at]))
            at += 1
        else:
            run = empty_run(count, size)
            kernels.gather_pushes(buffer, int(edges[at]), run.data, run.offsets)
            arrivals.append(PushDatagrams(at, counts[at:stop], run))
            at = stop
    return arrivals


def _brings_many(data: bytes) -> bool:
    """Whether a datagram has several packets, and so many bytes that they may be thousands."""
    return len(data) >= _SHORT and 3 + (data[1] << 8 | data[2]) < len(data)


def _read_datagram(data: bytes, allowed: frozenset[int], at: int = 0) -> list[Frame]:
    if len(data) > MAX_DATAGRAM:
        raise LimitError("fyrehose", "datagram size", len(data), MAX_DATAGRAM)
    frames: list[Frame] = []
    while at < len(data) or not frames:
        size = packet_size(data, at, len(data), allowed)
        rest = len(data) - at
        if size > rest:
            raise MalformedError(
                "fyrehose", "packet size", size, f"at most the datagram's {rest} bytes", offset=at
            )
        if data[at] not in DELIMITED and size != len(data):
            raise MalformedError(
                "fyrehose", "datagram size", len(data), f"a {Type(data[at]).name} stands alone", offset=at
            )
        frames.append(read(data[at : at + size], at))
        at += size
    return frames


def _arrival(index: int, datagram: bytes, good: int = 0) -> Arrival:
    """Read a datagram; if it is bad after so many bytes of PUSHes, those need not be read."""
    try:
        if good:
            _read_datagram(datagram, AT_HUB, good)
        frames = parse_datagram(datagram)
    except WireError as error:
        return BadDatagram(index, error)
    match frames:
        case [Request() | Keepalive() | Proof() as frame]:
            return LoneDatagram(index, frame)
        case [Push(data)]:
            run = Run.one(data)
        case _:
            run = Run.of(frame.data for frame in frames if isinstance(frame, Push))
    return PushDatagrams(index, np.array((len(run),), np.int32), run)
