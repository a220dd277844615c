"""The Arrow file of a segment: its bytes, and the record batches in it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.log.files import Descriptor
from headrace.message import SCHEMA, Bytes


def unpack(message: Bytes | bytes) -> pa.RecordBatch:
    """Unpack bytes whose CRC was checked."""
    return pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(message)), SCHEMA)


def record_batches(data: Bytes) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Yield the position of each record batch of an Arrow file, and the batch, without an index.

    After the magic, a file is a stream of messages; its footer must count as many record batches.
    """
    whole = pa.ipc.open_file(pa.py_buffer(data))
    if not whole.schema.equals(SCHEMA):
        raise pa.ArrowInvalid("it is in another schema")
    source = pa.BufferReader(pa.py_buffer(data))
    source.seek(8)
    pa.ipc.read_message(source)
    for _ in range(whole.num_record_batches):
        begin = source.tell()
        message = pa.ipc.read_message(source)
        yield begin, source.tell(), pa.ipc.read_record_batch(message, SCHEMA)


def mapped(descriptor: Descriptor) -> Bytes:
    """Map a whole file for reading."""
    if not os.fstat(descriptor.fd).st_size:
        return np.zeros(0, np.uint8)
    return np.frombuffer(mmap.mmap(descriptor.fd, 0, access=mmap.ACCESS_READ), np.uint8)
