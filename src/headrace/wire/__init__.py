"""Bytes to frames and back, one module or package per protocol.

No sockets, no clock, no asyncio: a decoder is fed bytes in any chunks and yields frames; an encoder
returns bytes. The owner of the socket decides what to do with them.

Every module follows one pattern.

``parse_*`` stands beside ``serialize``
    Pure functions between one frame and its bytes. Frames are frozen, slotted dataclasses joined in a
    union, consumed by ``match``.

``Decoder.feed(data)`` yields
    what the bytes complete: single frames, and *runs* (one buffer with the offsets of many frames of one
    kind) for the kinds that flow in bulk. Any chunking of a stream gives the same frames. Bytes that break
    the protocol raise a :class:`~headrace.errors.WireError` where they stand, after all that came before
    them has been yielded; from then on the decoder refuses everything.

Limits first
    A length is compared with its limit before any memory is taken for it, and a decoder never keeps more
    than one unfinished frame.
"""
