"""The bytes that docs/log.md shows are the ones we write."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from uuid import UUID

import pytest
from tests.docs.test_protocol_pages import blocks
from tests.log.content import append, append_entries, flat, operations, seal_all

from headrace.log import Log, frame, frame_file
from headrace.log.files import Descriptor
from headrace.log.frame_file import FileHeader
from headrace.log.sealed import index, sealing
from headrace.log.snapshots import snapshot
from headrace.log.tail import TailFile
from headrace.message import NOT_A_MESSAGE, Batch, Run

PAGE = (Path(__file__).parents[2] / "docs" / "log.md").read_text()
SHOWN = dict(blocks(PAGE))

HEADER = FileHeader(UUID("6f1d8a0c-3b52-4e7e-9a41-c05e2d7b9f10"), 1, 1, 0, 0x51A7C0DE)
TIME = 1_767_225_600_000_000
METER = {"origin": "tube", "node": 60396, "publisher": "meter-7", "topic": "attic"}
BATCHES = [
    Batch(Run.of([b"hello", b"world!"]), first=1, time=TIME, origin="fyrehose", node=60396, op=1),
    Batch(Run.of([b"21.5"]), first=3, time=TIME + 250, number=42, op=3, **METER),
    Batch(Run.of([b"4"]), 3, TIME + 300, origin=NOT_A_MESSAGE, node=60396, topic="holds/job", op=4),
    Batch(Run.of([b"21.75"]), first=4, time=TIME + 1000, number=43, op=5, **METER),
]


def table(heading: str, number: int = 0) -> list[list[str]]:
    """The rows of a table under a heading."""
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith(heading)]
    found = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)[number]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found.splitlines()[2:]]


def test_it_is_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / f"{1:016d}.open"
    path.write_bytes(HEADER.serialize())
    file = TailFile(path, Descriptor(path, os.O_RDWR), HEADER)
    written = HEADER.serialize()
    for each in BATCHES:
        encoded = file.encode(each, frame.time_span(each), file.size, continued=False)
        file.appended(encoded)
        written += b"".join(encoded.pieces)
    assert SHOWN["a tail of four messages and an entry"].hex(" ") == written.hex(" ")


def test_it_is_what_we_read(tmp_path: Path) -> None:
    path = tmp_path / f"{1:016d}.open"
    path.write_bytes(SHOWN["a tail of four messages and an entry"])
    file, torn = TailFile.open(path, writable=False)
    assert torn is None
    assert operations(file.read_ops(1, 5)) == operations(BATCHES)
    log = Log.open(tmp_path)
    assert (log.uuid, log.head, log.head_op) == (HEADER.uuid, 4, 5)
    assert [message.payload for message in flat(log.scan(3))] == [b"21.5", b"21.75"]
    log.close()


@pytest.mark.parametrize(
    ("heading", "number", "layout"),
    [
        ("The open tail", 0, frame_file._FILE),
        ("The open tail", 1, frame.HEADER),
        ("Sealed segments", 0, index._HEAD),
    ],
)
def test_the_tables_have_the_right_offsets(heading: str, number: int, layout: struct.Struct) -> None:
    fields = layout.format.lstrip("<")
    parts = re.findall(r"\d+s|[A-Za-z]", fields)
    offsets = [struct.calcsize("<" + "".join(parts[:index])) for index in range(len(parts))]
    shown = []
    for offset, names, *_ in table(heading, number):
        if offset.isdigit() and int(offset) < layout.size:
            shown += [int(offset), *([None] * names.count(","))]
    assert len(shown) == len(offsets)
    assert all(place in (None, offset) for place, offset in zip(shown, offsets, strict=True))


def test_the_index_entry() -> None:
    offsets = [int(index.BATCH.fields[name][1]) for name in index.BATCH.names or ()]
    shown = []
    for offset, names, *_ in table("Sealed segments", 1):
        shown += [int(offset), *([None] * names.count(","))]
    assert all(place in (None, offset) for place, offset in zip(shown, offsets, strict=True))
    assert index.BATCH.itemsize == 48


def test_numbers_in_the_text() -> None:
    assert (frame_file.HEADER_BYTES, frame_file._FILE.size, index._HEAD.size, snapshot._HEAD.size) == (
        56,
        56,
        88,
        44,
    )
    assert (frame.HEADER.size, frame.REACH) == (36, 262_140)
    assert index.ENTRIES_LOST == (1 << 64) - 1
    assert frame.MAX_FRAME == 256 << 20
    assert (sealing.ROWS, sealing.BYTES) == (16_384, 4 << 20)
    assert snapshot.KEPT == 2


def test_names_of_files(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    append(log, b"x")
    append_entries(log, b"y")
    seal_all(log)
    log.write_snapshot(2, 1, {})
    log.close()
    shown = {row[0].strip("`").rpartition(".")[2] for row in table("Files")}
    assert {path.suffix.lstrip(".") or path.name for path in tmp_path.iterdir()} <= shown
