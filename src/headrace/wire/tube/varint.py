"""Avro's variable-length integer, as the tube carries it: zig-zag, then base 128, least significant first.

Zig-zag folds the sign into the lowest bit (0, -1, 1, -2 … become 0, 1, 2, 3 …), so that small numbers of
either sign stay short. Each byte then carries seven bits, and its highest bit says that another follows.
The tube's integers are signed and 32 bits wide, hence at most five bytes. A longer form of a number than
necessary (``80 00`` for 0) is read, as Avro readers do, and never written.
"""

from __future__ import annotations

from headrace.errors import LimitError, MalformedError, Protocol
from headrace.wire.receive_buffer import Buffer

MAX_BYTES = 5
"""32 bits in groups of seven."""

MIN_VALUE = -(1 << 31)
MAX_VALUE = (1 << 31) - 1

_LAST_BYTE = 0x0F
"""The most the fifth byte can hold: 32 bits less the 28 of the four before it."""


def serialize_varint(value: int, *, protocol: Protocol = "tube", field: str = "varint") -> bytes:
    """Return the shortest bytes of a signed 32-bit number.

    >>> serialize_varint(100).hex(" ")
    'c8 01'
    """
    if not MIN_VALUE <= value <= MAX_VALUE:
        raise LimitError(protocol, field, value, f"{MIN_VALUE} to {MAX_VALUE}")
    rest = (value << 1) ^ (value >> 31)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def parse_varint(
    data: Buffer, start: int = 0, *, protocol: Protocol = "tube", field: str = "varint", offset: int = 0
) -> tuple[int, int] | None:
    """Return the number that begins at ``start`` and where it ends, or ``None`` while its end is missing.

    ``offset`` is where on the connection the number begins, for the error.

    >>> parse_varint(b"\\xc8\\x01")
    (100, 2)
    >>> parse_varint(b"\\xc8") is None
    True
    """
    folded = shift = 0
    for at in range(start, min(len(data), start + MAX_BYTES)):
        byte = data[at]
        folded |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 28 and byte > _LAST_BYTE:
                raise MalformedError(protocol, field, bytes(data[start : at + 1]), "32 bits", offset=offset)
            return (folded >> 1) ^ -(folded & 1), at + 1
        shift += 7
    if len(data) - start >= MAX_BYTES:
        value = bytes(data[start : start + MAX_BYTES])
        raise MalformedError(protocol, field, value, f"at most {MAX_BYTES} bytes", offset=offset)
    return None
