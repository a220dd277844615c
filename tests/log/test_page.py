"""The bytes that docs/log.md shows are the ones we write."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from uuid import UUID

import pytest
from tests.docs.test_protocol_pages import blocks
from tests.log.content import append, flat, seal_all

from headrace.log import Log, frame, sealed, sealing, snapshot, tail
from headrace.log.tail import FileHeader, TailFile
from headrace.message import Batch, Run

PAGE = (Path(__file__).parents[2] / "docs" / "log.md").read_text()
SHOWN = dict(blocks(PAGE))

HEADER = FileHeader(UUID("6f1d8a0c-3b52-4e7e-9a41-c05e2d7b9f10"), 1, 0, 0x51A7C0DE)
BATCHES = [
    Batch(Run.of([b"hello", b"world!"]), first=1, time=1_767_225_600_000_000, origin="fyrehose", node=60396),
    Batch(
        Run.of([b"21.5"]),
        first=3,
        time=1_767_225_600_000_250,
        origin="tube",
        node=60396,
        publisher="meter-7",
        number=42,
        topic="attic",
    ),
]


def table(heading: str, number: int = 0) -> list[list[str]]:
    """The rows of a table under a heading."""
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith(heading)]
    found = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)[number]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found.splitlines()[2:]]


def test_it_is_what_we_write() -> None:
    written = HEADER.serialize() + b"".join(
        piece for each in BATCHES for piece in frame.encode(each, HEADER.salt)[0]
    )
    assert SHOWN["a tail of three messages"].hex(" ") == written.hex(" ")


def test_it_is_what_we_read(tmp_path: Path) -> None:
    path = tmp_path / f"{1:016d}.open"
    path.write_bytes(SHOWN["a tail of three messages"])
    file, torn = TailFile.open(path, writable=False)
    assert torn is None
    assert flat(file.read(1, 3)) == flat(BATCHES)
    log = Log.open(tmp_path)
    assert (log.uuid, log.head) == (HEADER.uuid, 3)
    log.close()


@pytest.mark.parametrize(
    ("heading", "number", "layout"),
    [
        ("The open tail", 0, tail._FILE),
        ("The open tail", 1, frame.HEADER),
        ("Sealed segments", 0, sealed._HEAD),
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
    offsets = [int(sealed._ENTRY.fields[name][1]) for name in sealed._ENTRY.names or ()]
    shown = []
    for offset, names, *_ in table("Sealed segments", 1):
        shown += [int(offset), *([None] * names.count(","))]
    assert all(place in (None, offset) for place, offset in zip(shown, offsets, strict=True))
    assert sealed._ENTRY.itemsize == 48


def test_numbers_in_the_text() -> None:
    assert (tail.HEADER_BYTES, tail._FILE.size, sealed._HEAD.size, snapshot._HEAD.size) == (48, 48, 56, 36)
    assert frame.MAX_FRAME == 256 << 20
    assert (sealing.ROWS, sealing.BYTES) == (16_384, 4 << 20)
    assert snapshot.KEPT == 2


def test_names_of_files(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    append(log, b"x")
    seal_all(log)
    log.write_snapshot(1, 1, {})
    log.close()
    shown = {row[0].strip("`").rpartition(".")[2] for row in table("Files")}
    assert {path.suffix.lstrip(".") or path.name for path in tmp_path.iterdir()} <= shown
