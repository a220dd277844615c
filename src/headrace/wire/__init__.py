"""Bytes to frames and back, one module or package per protocol.

No sockets, no clock, no asyncio: a decoder is fed bytes in any chunks and yields frames; an encoder
returns bytes. The owner of the socket decides what to do with them.

Every module follows one pattern:

- ``parse_*`` stands beside ``serialize``: pure functions between one frame and its bytes. Frames are frozen, slotted
  dataclasses in a union, consumed by ``match``.
- ``Decoder.feed(data)`` yields the frames that the bytes complete; kinds that flow in bulk come as *runs* (one buffer
  and the offsets of many frames). Any chunking of a stream gives the same frames. Bytes that break the protocol raise a
  :class:`~headrace.errors.WireError` after all before them has been yielded; then the decoder refuses everything.
- A length is compared with its limit before any memory is taken for it, and a decoder never keeps more than one
  unfinished frame.
"""
